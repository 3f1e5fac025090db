/**
 * Bad days of machines in clouds: the real onejob on a stand-in of AWS, and machines that are played. Whatever goes wrong, no machine is
 * made twice, and none is left.
 */
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createJoinClient } from '../../src/machines/join/client.ts';
import { newSecret } from '../../src/machines/join/protocol.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { isDryRun } from '../standins/aws/standin.ts';
import { awsStandin } from '../support/cloud-standins.ts';
import { freePort } from '../support/free-port.ts';
import { onejob } from '../support/onejob.ts';
import { type Play, playMachines } from '../support/played-machines.ts';

const soon = { timeout: 60_000, interval: 100 };

interface Bench {
  readonly types?: readonly string[];
  /** More keys of the host. */
  readonly host?: string;
  readonly play?: Play;
}

/** An account, and a onejob whose host `burst` is there. */
async function bench({ types = ['g6.xlarge', 'g5.xlarge'], host = '', play = {} }: Bench = {}) {
  await using stack = new AsyncDisposableStack();
  const { machines, played, broken } = playMachines(play);
  const { aws, keys, env, left } = stack.use(await awsStandin(machines));
  const home = stack.use(await onejob({ config: '', env }));
  const archive = join(home.dir, 'onejob.tgz');
  writeFileSync(archive, 'a package');
  const port = await freePort();
  home.configure(`
clouds:
  aws: { owner: lab-1, ${keys} }
hosts:
  burst: { cloud: aws, types: ${JSON.stringify(types)}, pools: { gpu: { agents: 1, runtime: process } }${host === '' ? '' : `, ${host}`} }
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }
pools: { local: { agents: 1, runtime: process } }
`);
  const all = stack.move();
  const view = async () => (await home.api.machines())[0];
  const states = async () => (await view())?.machines.map(({ state }) => state) ?? [];
  /** Runs a command to its end. */
  const cli = async (args: readonly string[], code = 0, env = {}) => {
    const ended = await home.cli(args, { env }).ended;
    expect(ended.code, ended.stdout + ended.stderr).toBe(code);
    return ended.stdout + ended.stderr;
  };
  return {
    aws,
    home,
    played,
    left,
    view,
    states,
    cli,
    archive,
    created: () => aws.calls.filter(({ action, status }) => action === 'RunInstances' && status === 200).length,
    receipts: async () =>
      (await cli(['cloud', 'receipts', '--json']))
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as Record<string, unknown>),
    /** Nothing is left of it at the cloud, and nothing went wrong with a machine that nobody had ended. */
    async down(): Promise<void> {
      await cli(['cloud', 'down', 'burst']);
      expect(left()).toEqual([]);
      expect(broken).toEqual([]);
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

test('a controller that is killed between the create call and its answer finds the machine', { timeout: 120_000 }, async () => {
  await using here = await bench();
  here.aws.faults.push({ action: 'RunInstances', isDry: false, how: 'silent', times: 1 });
  const daemon = await here.home.up();
  await here.home.api.call('POST /v1/machines/:host/up', { params: { host: 'burst' } });
  await expect.poll(() => here.aws.alive().length, soon).toBe(1);
  expect(await here.states()).toEqual(['intent']);
  await daemon.kill();
  await here.home.up();
  await expect.poll(here.states, soon).toEqual(['joined']);
  expect(here.aws.world.machines.size).toBe(1);
  await here.down();
});

test('a join token that is used twice costs the machine its place, and another one comes', { timeout: 120_000 }, async () => {
  let thefts = 0;
  await using here = await bench({
    play: {
      // Somebody who may read user data is faster.
      async beforeJoin({ run, url, token }) {
        thefts += 1;
        if (thefts > 1) return;
        const thief = createJoinClient({ url, run, clock: systemClock, fetch });
        await thief.join({ token, credential: newSecret(), version: '0.1.0' }, AbortSignal.timeout(10_000));
      },
    },
  });
  await here.home.up();
  await here.home.api.call('POST /v1/machines/:host/up', { params: { host: 'burst' } });
  await expect.poll(here.states, soon).toContain('joined');
  await expect.poll(here.states, soon).toEqual(['joined']);
  const [stolen, second] = here.played;
  expect(await here.receipts()).toEqual([
    expect.objectContaining({
      run: stolen?.run,
      isFailure: true,
      why: expect.stringMatching(/join token was used twice.*127\.0\.0\.1/),
    }),
  ]);
  expect((await here.view())?.machines[0]?.run).toBe(second?.run);
});

test('a join token that comes again when the machine has long joined is refused, and costs nobody a job', {
  timeout: 180_000,
}, async () => {
  await using here = await bench({ host: 'boot: 1m' });
  await here.home.up();
  await here.home.api.call('POST /v1/machines/:host/up', { params: { host: 'burst' } });
  await expect.poll(here.states, soon).toEqual(['joined']);
  const joined = Date.now();
  // Within this time nobody could know who of the two is the machine.
  await expect.poll(() => Date.now() - joined, { timeout: 90_000, interval: 500 }).toBeGreaterThan(60_000);
  const [{ run = '', url = '', token = '' } = {}] = here.played;
  const thief = createJoinClient({ url, run, clock: systemClock, fetch });
  const again = thief.join({ token, credential: newSecret(), version: '0.1.0' }, AbortSignal.timeout(10_000));
  await expect(again).rejects.toMatchObject({ code: 'E_CLOUD_DENIED' });
  expect(await here.states()).toEqual(['joined']);
  expect(await here.receipts()).toEqual([]);
  await here.down();
});

test('a stockout everywhere is told, and "onejob cloud up" asks again once there is capacity', { timeout: 120_000 }, async () => {
  await using here = await bench();
  const { aws } = here;
  aws.exhaust('g6.xlarge', 'on-demand');
  aws.exhaust('g5.xlarge', 'on-demand');
  await here.home.up();
  await here.home.api.call('POST /v1/machines/:host/up', { params: { host: 'burst' } });
  const why = /no g6\.xlarge.* since \d\d:\d\d, no g5\.xlarge.* since \d\d:\d\d; trying again at \d\d:\d\d UTC/;
  await expect.poll(async () => (await here.view())?.reason, soon).toMatch(why);
  expect(await here.cli(['status'])).toMatch(why);
  const tries = () => aws.calls.filter((call) => call.action === 'RunInstances' && !isDryRun(call)).length;
  const tried = tries();
  expect([here.created(), here.left()]).toEqual([0, []]);
  aws.account.exhausted.clear();
  // Until somebody asks, nothing is asked for again so soon.
  expect(tries()).toBe(tried);
  await here.cli(['cloud', 'up', 'burst']);
  expect(here.created()).toBe(1);
  expect((await here.view())?.reason).toBeNull();
  await here.down();
  const receipts = await here.receipts();
  expect(receipts.filter(({ isFailure }) => isFailure)).toHaveLength(tried);
  expect(receipts).toHaveLength(tried + 1);
});

test('a quota of zero is what the check finds, and a raised one is used', { timeout: 120_000 }, async () => {
  await using here = await bench({ types: ['p5.48xlarge'] });
  await here.home.up();
  const refused = { code: 'E_CLOUD_CHECK', message: expect.stringMatching(/quota: .* is 0 vCPUs, but one p5\.48xlarge needs 192/) };
  await expect(here.home.api.call('POST /v1/machines/:host/up', { params: { host: 'burst' } })).rejects.toMatchObject(refused);
  expect([here.created(), here.left(), (await here.view())?.wanted]).toEqual([0, [], 0]);
  here.aws.account.quotas['L-417A185B'] = 192;
  await here.cli(['cloud', 'up', 'burst']);
  await here.down();
});

test('a quota that others have used up is told in "onejob status", and a free one is used', { timeout: 120_000 }, async () => {
  await using here = await bench({ types: ['p5.48xlarge'] });
  const { aws } = here;
  aws.account.quotas['L-417A185B'] = 192;
  const how = { status: 400, code: 'VcpuLimitExceeded', message: 'More vCPU capacity than your current vCPU limit of 192 allows.' };
  aws.faults.push({ action: 'RunInstances', isDry: false, how });
  await here.home.up();
  expect(await here.cli(['cloud', 'up', 'burst'], 1)).toMatch(/onejob: .*VcpuLimitExceeded.*limit is 192/);
  expect((await here.cli(['status'])).replace(/\s+/g, ' ')).toMatch(/burst in aws: 0 of .*! .*VcpuLimitExceeded.*Service Quotas/);
  expect([here.created(), here.left(), (await here.view())?.wanted]).toEqual([0, [], 0]);
  aws.faults.length = 0;
  await here.cli(['cloud', 'up', 'burst']);
  await here.down();
});

test('up and down work without a daemon, and down finds the machine by its tags', { timeout: 120_000 }, async () => {
  await using here = await bench();
  await here.cli(['cloud', 'up', 'burst']);
  expect(here.aws.alive()).toHaveLength(1);
  await expect.poll(() => here.played[0]?.stages).toEqual(['booted', 'joined']);
  const elsewhere = { ONEJOB_STATE_DIR: join(here.home.dir, 'another'), ONEJOB_SOCKET: join(here.home.dir, 'another.sock') };
  expect(await here.cli(['cloud', 'list'], 0, elsewhere)).toContain(here.played[0]?.run);
  await here.cli(['cloud', 'down', 'burst'], 0, elsewhere);
  expect(here.left()).toEqual([]);
  const receipt = JSON.parse(await here.cli(['cloud', 'receipts', '--json'], 0, elsewhere));
  expect(receipt).toMatchObject({ run: here.played[0]?.run, state: 'gone', absentAt: [expect.any(Number), expect.any(Number)] });
  rmSync(elsewhere.ONEJOB_STATE_DIR, { recursive: true });
});

test('a sweep fails while a region cannot be listed, and else removes what is left', { timeout: 120_000 }, async () => {
  await using here = await bench();
  const { aws } = here;
  await here.cli(['cloud', 'up', 'burst']);
  aws.denied.add('eu-central-1/ec2:DescribeInstances');
  const sweep = ['cloud', 'sweep', '--owner', 'lab-1'];
  expect(await here.cli([...sweep, '--timeout', '1s'], 1)).toMatch(/unknown: .*eu-central-1/);
  // What works stays, as long as nobody says otherwise.
  expect(aws.alive()).toHaveLength(1);
  aws.denied.clear();
  expect(await here.cli(sweep)).toContain('kept');
  expect(aws.alive()).toHaveLength(1);
  await here.cli([...sweep, '--all']);
  expect(here.left()).toEqual([]);
});
