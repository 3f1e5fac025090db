/** Jobs of the own queue on machines of a cloud: the real onejob on a stand-in of a cloud, and a second real onejob as each machine. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { awsStandin, type CloudStandin, gcpStandin, joinOf, type Machines } from '../support/cloud-standins.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { secondOnejobs } from '../support/second-onejob.ts';

async function world(agents = 1, standin: (machines: Machines) => Promise<CloudStandin> = awsStandin) {
  await using parts = new AsyncDisposableStack();
  const second = parts.use(secondOnejobs());
  const cloud = parts.use(await standin(second.machines));
  const here: Home = parts.use(await onejob({ config: '', env: cloud.env }));
  here.configure(`
clouds:
  lab: { ${cloud.keys} }
hosts:
  burst:
    cloud: lab
    types: [${cloud.types[0]}]
    max: 2
    idle: 1m
    pools: { cpu: { agents: ${agents}, runtime: process, volumes: ["${here.cwd}:/flags"] } }
${await joinOf(here)}
`);
  const daemon = await here.up();
  const all = parts.move();
  return { here, cloud, second, daemon, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

const jobs = async (home: Home) =>
  (await home.api.jobs({ all: true, pool: null })).map(({ state, result, attempt, verdict }) => ({
    state,
    result,
    attempt,
    kind: verdict?.kind,
  }));

describe.skipIf(lacks('bubblewrap'))('a job of the own queue', () => {
  test('makes a machine, runs there with its workspace, and brings back output, artifacts and exit code', async () => {
    await using all = await world();
    const { here, cloud, second } = all;
    writeFileSync(join(here.cwd, 'input'), 'from here\n');
    const command = 'cat input; echo $ONEJOB_ATTEMPT >&2; echo made > out.txt; exit 7';
    const done = await here.run('--pool', 'burst.cpu', '--artifact', 'out.txt', '--', 'sh', '-c', command).ended;
    expect(second.broken).toEqual([]);
    expect(done, done.stderr).toMatchObject({ code: 7, stdout: 'from here\n' });
    expect(done.stderr).toMatch(/^1$/m);
    expect(readFileSync(join(here.cwd, 'out.txt'), 'utf8')).toBe('made\n');
    const [job] = await here.api.jobs({ all: true, pool: null });
    const [machine] = await second.all();
    expect(job?.agent).toContain(machine?.run);
    // It is the same job for people, here and there.
    expect((await here.cli(['logs', job?.id ?? '']).ended).stdout).toBe('from here\n');
    const down = await here.cli(['cloud', 'down', 'burst']).ended;
    expect(down, down.stderr).toMatchObject({ code: 0 });
    expect(cloud.left()).toEqual([]);
    expect(await machine?.daemon.child.ended).toMatchObject({ code: 0 });
    const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
    expect(JSON.parse(receipts.stdout)).toMatchObject({ run: machine?.run, state: 'gone', isFailure: false });
  });

  test('makes one machine, also one that joins before the cloud has answered', async () => {
    await using all = await world(1, gcpStandin);
    const { here, second } = all;
    const done = await here.run('--pool', 'burst.cpu', '--no-workspace', '--', 'true').ended;
    expect(done, done.stderr).toMatchObject({ code: 0 });
    expect((await here.api.machines())[0]?.machines).toHaveLength(1);
    expect(await second.all()).toHaveLength(1);
    expect(second.broken).toEqual([]);
  });

  test('survives the end of either side, can be cancelled, and is lost with its machine', async () => {
    await using all = await world(2);
    const { here, second } = all;
    const until = (flag: string) => `until [ -e /flags/${flag} ]; do sleep 0.05; done`;
    const long = here.run(
      '--pool',
      'burst.cpu',
      '--no-workspace',
      '--',
      'sh',
      '-c',
      `echo first; ${until('a')}; echo second; ${until('b')}; echo third; exit 3`,
    );
    await long.says(/^first$/m);
    const [machine] = await second.all();
    if (machine === undefined) throw new Error('there is no machine');
    const flag = (name: string) => writeFileSync(join(here.cwd, name), '');
    const ended = await here.run('--pool', 'burst.cpu', '--detach', '--no-workspace', '--', 'sleep', '600').ended;
    const id = ended.stdout.trim();
    await expect.poll(async () => (await here.api.job(id)).state, { timeout: 30_000 }).toBe('running');

    await machine.unattended();
    flag('a');
    await all.daemon.kill();
    machine.attend();
    const again = await here.up();
    await long.says(/^second$/m);
    expect((await here.cli(['cancel', id]).ended).code).toBe(0);
    await expect.poll(async () => (await here.api.job(id)).result, { timeout: 30_000 }).toEqual({ kind: 'cancelled' });
    flag('b');
    expect(await long.ended).toMatchObject({ code: 3, stdout: 'first\nsecond\nthird\n' });

    const lost = here.run(
      '--pool',
      'burst.cpu',
      '--no-workspace',
      '--retries',
      '1',
      '--',
      'sh',
      '-c',
      'echo attempt $ONEJOB_ATTEMPT; [ $ONEJOB_ATTEMPT = 2 ] || sleep 600',
    );
    await lost.says(/^attempt 1$/m);
    await machine.die();
    expect((await here.cli(['cloud', 'down', 'burst', '--now', '--no-wait']).ended).code).toBe(0);
    await expect.poll(async () => (await here.api.machines())[0]?.machines.length, { timeout: 60_000 }).toBe(0);
    expect((await here.cli(['cloud', 'up', 'burst', '--no-wait']).ended).code).toBe(0);
    const done = await lost.ended;
    expect(done, done.stderr).toMatchObject({ code: 0, stdout: 'attempt 1\nattempt 2\n' });
    expect(await jobs(here)).toMatchObject([
      { attempt: 1 },
      { kind: 'cancelled' },
      { attempt: 2, result: { kind: 'code', code: 0 } },
    ]);
    await here.cli(['cloud', 'down', 'burst']).ended;
    await again.stop();
    expect(second.broken).toEqual([]);
  });
});
