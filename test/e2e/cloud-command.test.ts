/** `onejob cloud` on bad days: interrupted, on another host, with a cloud that does not answer. The real onejob on a stand-in of AWS. */
import { expect, test } from 'vitest';
import type { Child, Ended } from '../support/child.ts';
import { awsStandin, joinOf } from '../support/cloud-standins.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { playMachines } from '../support/played-machines.ts';

/** Machines boot, and join only if `joins`. `homes`: of so many installations with one owner. `more`: clouds. */
async function world({ joins = false, homes = 1, more = '' } = {}) {
  await using parts = new AsyncDisposableStack();
  const { machines, played, broken } = playMachines(joins ? {} : { beforeJoin: () => new Promise(() => {}) });
  const cloud = parts.use(await awsStandin(machines));
  const made: Home[] = [];
  for (let n = 0; n < homes; n += 1) {
    const home = parts.use(await onejob({ config: '', env: cloud.env }));
    home.configure(`
clouds: { aws: { ${cloud.keys}, owner: acme-ci }${more} }
hosts: { burst: { cloud: aws, types: [g6.xlarge], pools: { gpu: { agents: 1 } } } }
${await joinOf(home)}
pools: { local: { agents: 1, runtime: process } }
`);
    made.push(home);
  }
  const [here, there = here] = made;
  if (here === undefined || there === undefined) throw new Error('no home');
  const owned = parts.move();
  return {
    cloud,
    here,
    there,
    played,
    async [Symbol.asyncDispose]() {
      await owned.disposeAsync();
      expect(broken).toEqual([]);
    },
  };
}

/** Sends signals until one counts as the second, and waits for the end. One that comes while Node itself ends would be its end. */
async function interruptedAgain(command: Child): Promise<Ended> {
  const timer = setInterval(() => command.signal('SIGINT'), 200);
  await command.says(/may exist until/).finally(() => clearInterval(timer));
  return command.ended;
}

test('without a daemon it removes what it has asked for', { timeout: 120_000 }, async () => {
  await using set = await world();
  const { cloud, here } = set;
  const up = here.cli(['cloud', 'up', 'burst', '--json']);
  await up.says(/boots/);
  up.signal('SIGINT');
  const ended = await up.ended;
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/interrupted.*removing.*again/);
  expect(ended.stderr).toMatch(/machine onejob-[0-9a-f]{16} is gone/);
  expect(cloud.left()).toEqual([]);
  expect(JSON.parse(ended.stdout)).toMatchObject({ host: 'burst', wanted: 0, machines: [] });
});

// A machine that no list shows yet is waited for two minutes.
test('without a daemon it removes what it has asked for, too, when it gives up', { timeout: 300_000 }, async () => {
  await using set = await world();
  const { cloud, here } = set;
  const up = await here.cli(['cloud', 'up', 'burst', '--timeout', '15s']).ended;
  expect(up, up.stderr).toMatchObject({ code: 1 });
  expect(up.stderr).toMatch(/gave up after 15s; removing machines of burst that have not joined/);
  expect(cloud.left()).toEqual([]);
});

test('without a daemon, somebody who cannot wait is told what may live and how to remove it', { timeout: 120_000 }, async () => {
  await using set = await world();
  const { here } = set;
  const up = here.cli(['cloud', 'up', 'burst']);
  await up.says(/boots/);
  up.signal('SIGINT');
  await up.says(/interrupted/);
  const ended = await interruptedAgain(up);
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/machine onejob-\w+ \(i-\w+ in us-west-2\) may exist until 20\d\d-.* UTC/);
  expect(ended.stderr).toMatch(/onejob cloud down burst/);
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
});

test('without a daemon, a signal that comes twice at once is one, as from a wrapper', { timeout: 120_000 }, async () => {
  await using set = await world();
  const { cloud, here } = set;
  const up = here.cli(['cloud', 'up', 'burst']);
  await up.says(/boots/);
  up.signal('SIGINT');
  up.signal('SIGTERM');
  const ended = await up.ended;
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/machine onejob-[0-9a-f]{16} is gone/);
  expect(cloud.left()).toEqual([]);
});

test('without a daemon it says that the cloud does not answer, also while it takes back', { timeout: 120_000 }, async () => {
  await using set = await world();
  const { cloud, here } = set;
  const up = here.cli(['cloud', 'up', 'burst']);
  await up.says(/boots/);
  await cloud[Symbol.asyncDispose]();
  up.signal('SIGINT');
  await up.says(/Cannot list all of cloud aws: .*no answer/);
  const ended = await interruptedAgain(up);
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/machine onejob-\w+ .*may exist until/);
});

test('a command about a host or a cloud needs no secret of another one', { timeout: 120_000 }, async () => {
  const other =
    ', other: { type: gcp, project: acme-ci, region: us-central1, owner: acme-ci, credentials: { file: { env: GCP_KEY } } }';
  await using set = await world({ joins: true, more: other });
  const { here } = set;
  for (const args of [
    ['up', 'burst'],
    ['console', 'burst'],
    ['down', 'burst'],
    ['sweep', '--cloud', 'aws'],
  ]) {
    const { code, stderr } = await here.cli(['cloud', ...args]).ended;
    expect([args, code, stderr]).toEqual([args, 0, expect.not.stringMatching(/GCP_KEY/)]);
  }
  expect((await here.cli(['cloud', 'list']).ended).stderr).toMatch(/GCP_KEY/);
  const wrong = await here.cli(['cloud', 'sweep', '--cloud', 'asw']).ended;
  expect(wrong).toMatchObject({ code: 2, stderr: expect.stringMatching(/no cloud "asw"; did you mean "aws"/) });
});

test('with a daemon it says that the daemon continues, and how to take it back', { timeout: 120_000 }, async () => {
  await using set = await world();
  const { cloud, here } = set;
  await here.up();
  const up = here.cli(['cloud', 'up', 'burst', '--timeout', '10m']);
  await up.says(/boots/);
  up.signal('SIGINT');
  const ended = await up.ended;
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/the daemon will try for up to \d+m.* more .*onejob cloud down burst/);
  expect((await here.api.machines())[0]).toMatchObject({ wanted: 1, machines: [{ state: 'booting' }] });
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  expect(down.stderr).toMatch(/burst gets no other machine until "onejob cloud up burst"/);
  expect(cloud.left()).toEqual([]);
});

test('a daemon is asked by a shell that has none of its secrets', { timeout: 120_000 }, async () => {
  await using set = await world({ joins: true });
  const { here } = set;
  await here.up();
  const without = (...args: string[]) => here.cli(['cloud', ...args], { env: { AWS_SECRET: '' } }).ended;
  const up = await without('up', 'burst');
  expect(up, up.stderr).toMatchObject({ code: 0 });
  const down = await without('down', 'burst');
  expect(down, down.stderr).toMatchObject({ code: 0 });
  const receipts = await without('receipts', '--json');
  expect(receipts, receipts.stderr).toMatchObject({ code: 0, stdout: expect.stringMatching(/"host":"burst"/) });
  const unknown = await without('up', 'brust');
  expect(unknown).toMatchObject({ code: 2, stderr: expect.stringMatching(/daemon has no host "brust"; did you mean "burst"/) });
  expect((await without('list')).stderr).toMatch(/AWS_SECRET/);
});

test('a job says that its machine has joined, but not opened the connection that brings it there', {
  timeout: 120_000,
}, async () => {
  await using set = await world({ joins: true });
  const { here } = set;
  await here.up();
  expect((await here.cli(['cloud', 'up', 'burst']).ended).code).toBe(0);
  const run = await here.run('--detach', '--no-workspace', '--pool', 'burst.gpu', '--', 'true').ended;
  expect(run, run.stderr).toMatchObject({ code: 0 });
  const said = async () => (await here.cli(['jobs', '--json']).ended).stdout;
  await expect.poll(said).toMatch(/machine onejob-[0-9a-f]{16} has joined, but not opened its connection for jobs/);
  expect((await here.cli(['cancel', '--all']).ended).code).toBe(0);
  expect((await here.cli(['cloud', 'down', 'burst']).ended).code).toBe(0);
});

test('down says of machines that another host has made that they do not drain', { timeout: 120_000 }, async () => {
  await using set = await world({ joins: true, homes: 2 });
  const { cloud, here, there, played } = set;
  const up = await here.cli(['cloud', 'up', 'burst']).ended;
  expect(up, up.stderr).toMatchObject({ code: 0 });
  const down = await there.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  const said = down.stderr.replace(/\s+/g, ' ');
  expect(said).toMatch(
    /machine onejob-[0-9a-f]{16} was made by another host: it is removed without a drain, so jobs that run there are lost/,
  );
  expect(said).toMatch(/if a daemon there still has it, run "onejob cloud down burst" there/);
  await expect.poll(() => played[0]?.stages).toEqual(['booted', 'joined']);
  expect(cloud.left()).toEqual([]);
});

test('what cannot be listed keeps no other cloud from being listed, and is not called nothing', { timeout: 120_000 }, async () => {
  // Nothing listens there.
  const dead = `, dead: { type: aws, region: us-west-2, endpoint: "http://127.0.0.1:1", death_date: manager-only, owner: acme-ci, credentials: { access_key_id: AKIAIOSFODNN7EXAMPLE, secret_access_key: { env: AWS_SECRET } } }`;
  await using set = await world({ more: dead });
  const { here } = set;
  const empty = await here.cli(['cloud', 'list']).ended;
  expect(empty).toMatchObject({ code: 1, stdout: 'No other resources found.\n' });
  expect(empty.stderr.replace(/\s+/g, ' ')).toMatch(
    /could not list all of cloud dead: .*instances in us-west-2 \(no answer\).*cloud check/,
  );
  const run = `onejob-${'0'.repeat(16)}`;
  const console = await here.cli(['cloud', 'console', run]).ended;
  expect(console).toMatchObject({ code: 1 });
  const said = console.stderr.replace(/\s+/g, ' ');
  expect(said).toMatch(new RegExp(`could not list all of cloud dead: .*It is unknown whether a machine of ${run} exists`));
});

test('a sweep that is interrupted says that something may live', { timeout: 120_000 }, async () => {
  await using set = await world({ joins: true });
  const { here } = set;
  expect((await here.cli(['cloud', 'up', 'burst']).ended).code).toBe(0);
  const sweep = here.cli(['cloud', 'sweep', '--all']);
  await sweep.says(/removing machine/);
  sweep.signal('SIGINT');
  const ended = await sweep.ended;
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  expect(ended.stderr).toMatch(/interrupted; something of aws may still exist. Run it again, or see "onejob cloud list"/);
  expect(ended.stderr).not.toMatch(/bug/);
});
