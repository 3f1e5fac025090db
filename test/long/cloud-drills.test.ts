/**
 * Bad days of machines in clouds: the real onejob on a stand-in of AWS, and machines that are played. Whatever goes wrong, no machine is
 * made twice, and none is left.
 */
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { systemClock } from '../../src/clock.ts';
import { createJoinClient } from '../../src/cloud/join/client.ts';
import { newSecret } from '../../src/cloud/join/protocol.ts';
import { testKey } from '../standins/aws/standin.ts';
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
    ...{ aws, home, played, left, view, states, cli, archive },
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

test('a controller that is killed while a machine boots has it after its restart', { timeout: 120_000 }, async () => {
  const boot = Promise.withResolvers<void>();
  await using here = await bench({ play: { beforeJoin: () => boot.promise } });
  const daemon = await here.home.up();
  await here.home.api.machineUp('burst');
  await expect.poll(async () => (await here.view())?.machines[0], soon).toMatchObject({ state: 'booting', stage: 'booted' });
  await daemon.kill();
  await here.home.up();
  expect(await here.states()).toEqual(['booting']);
  boot.resolve();
  await expect.poll(here.states, soon).toEqual(['joined']);
  expect((await here.view())?.machines[0]?.run).toBe(here.played[0]?.run);
  expect(here.created()).toBe(1);
  await here.down();
});

test('a controller that is killed between the create call and its answer finds the machine', { timeout: 120_000 }, async () => {
  await using here = await bench();
  here.aws.faults.push({ action: 'RunInstances', how: 'silent', times: 1 });
  const daemon = await here.home.up();
  await here.home.api.machineUp('burst');
  await expect.poll(() => here.aws.alive().length, soon).toBe(1);
  expect(await here.states()).toEqual(['intent']);
  await daemon.kill();
  await here.home.up();
  await expect.poll(here.states, soon).toEqual(['joined']);
  expect(here.aws.world.machines.size).toBe(1);
  await here.down();
});

test('a controller that is killed before the end of a machine is set sets it', { timeout: 120_000 }, async () => {
  await using here = await bench();
  const fault = { action: 'CreateSchedule', how: { status: 500, code: 'InternalServerException' } };
  here.aws.faults.push(fault);
  const daemon = await here.home.up();
  await here.home.api.machineUp('burst');
  await expect.poll(() => here.aws.calls.some(({ action }) => action === 'CreateSchedule'), soon).toBe(true);
  await daemon.kill();
  expect(here.left().filter((id) => id.startsWith('onejob-'))).toEqual([]);
  here.aws.faults.length = 0;
  await here.home.up();
  await expect.poll(here.states, soon).toEqual(['joined']);
  expect((await here.view())?.machines[0]?.end).toMatch(/schedule/);
  expect(here.created()).toBe(1);
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
  await here.home.api.machineUp('burst');
  await expect.poll(here.states, soon).toContain('joined');
  await expect.poll(here.states, soon).toEqual(['joined']);
  const [stolen, second] = here.played;
  expect(await here.receipts()).toEqual([
    expect.objectContaining({ run: stolen?.run, isFailure: true, why: expect.stringMatching(/join token was used twice.*127\.0\.0\.1/) }),
  ]);
  expect((await here.view())?.machines[0]?.run).toBe(second?.run);
});
