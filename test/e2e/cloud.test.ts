/**
 * Machines in a cloud, from a waiting job to nothing and a receipt: the real onejob on a stand-in of AWS, with a stand-in of GitHub that
 * has the queue. The machines are played here: they join, work and drain as a real one does (test/long/cloud-boot.test.ts).
 */

import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { gunzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { systemClock } from '../../src/clock.ts';
import { createJoinClient } from '../../src/cloud/join/client.ts';
import { newSecret } from '../../src/cloud/join/protocol.ts';
import { createAws, schedulerRole, testKey } from '../standins/aws/standin.ts';
import { startGitHub } from '../support/github-server.ts';
import { onejob } from '../support/onejob.ts';

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** As cloud-init reads it. */
const text = (userData: Buffer): string => (userData[0] === 0x1f ? gunzipSync(userData) : userData).toString();

interface Played {
  readonly run: string;
  /** The config that it got. */
  config: string;
  readonly stages: string[];
}

/** What a machine does: it joins, works while there are jobs, and drains when it is told to. */
function playMachines(isBusy: () => boolean) {
  const played: Played[] = [];
  const alive = new Set<string>();
  const play = async (id: string, userData: string): Promise<void> => {
    alive.add(id);
    const files = (parse(userData) as { write_files: { path: string; content: string }[] }).write_files;
    const { run, url, token } = JSON.parse(files.find(({ path }) => path.endsWith('machine.json'))?.content ?? '{}');
    const machine: Played = { run, config: '', stages: [] };
    played.push(machine);
    const signal = AbortSignal.timeout(120_000);
    const client = createJoinClient({ url, run, clock: systemClock, fetch });
    const tell = async (stage: 'booted' | 'joined' | 'drained', secret: string) => {
      await client.stage(stage, '', secret, signal);
      machine.stages.push(stage);
    };
    await tell('booted', token);
    const credential = newSecret();
    const answer = await client.join({ token, credential, version: '0.1.0' }, signal);
    machine.config = answer.config;
    await tell('joined', credential);
    for (let idleSince = Date.now(); alive.has(id); await after(50)) {
      if (isBusy()) idleSince = Date.now();
      const beat = { busy: isBusy() ? 1 : 0, agents: 1, waiting: null, idleFor: Date.now() - idleSince, problem: null };
      const order = await client.beat(beat, credential, signal);
      if (order === 'stay' || isBusy()) continue;
      await tell('drained', credential);
      return;
    }
  };
  return { played, alive, play };
}

test('a waiting job makes a machine, and afterwards two lists show nothing of it', { timeout: 120_000 }, async () => {
  await using github = await startGitHub();
  let busy = false;
  const machines = playMachines(() => busy);
  const broken: unknown[] = [];
  const aws = createAws({
    clock: systemClock,
    times: { boot: 200, end: 200 },
    hooks: {
      onBoot: ({ id, userData }) => void machines.play(id, text(userData)).catch((error: unknown) => broken.push(error)),
      onEnd: ({ id }) => void machines.alive.delete(id),
    },
  });
  await using served = await aws.serve();
  const [port, url] = [await freePort(), served.url];
  await using here = await onejob({ config: '' });
  const [key, archive] = [join(here.dir, 'app.pem'), join(here.dir, 'onejob.tgz')];
  writeFileSync(key, github.app.pem, { mode: 0o600 });
  writeFileSync(archive, 'a package');
  here.configure(`
services:
  hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: "${key}" } }, poll: 5s }
clouds:
  aws:
    type: aws
    region: us-west-2
    endpoint: "${url}"
    scheduler_role: "${schedulerRole}"
    security_group: sg-0e00000000000000
    credentials: { access_key_id: ${testKey.id}, secret_access_key: { env: AWS_SECRET } }
hosts:
  burst:
    cloud: aws
    types: [g6.xlarge, g5.xlarge]
    idle: 1m
    pools: { gpu: { service: hub, queue: acme/demo, agents: 1, devices: 1 } }
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }
pools: { local: { agents: 1, runtime: process } }
`);
  here.env.AWS_SECRET = testKey.secret;
  await here.up();
  const host = async () => (await here.api.machines())[0];
  expect(await host()).toMatchObject({ host: 'burst', machines: [], waiting: 0 });
  expect(aws.calls.filter(({ action }) => action === 'RunInstances')).toEqual([]);

  const job = github.queue({ labels: ['gpu'] });
  await expect.poll(async () => (await host())?.machines[0]?.state, { timeout: 60_000 }).toBe('joined');
  expect(job).toBeDefined();
  expect(broken).toEqual([]);
  const [machine] = machines.played;
  expect(machine?.stages).toEqual(['booted', 'joined']);
  // Its config has the pool and the credential of the service, as a file in memory.
  const config = parse(machine?.config ?? '');
  expect(config.services.hub.app.private_key).toEqual({ file: '/run/onejob-cloud/secrets/hub.app.private_key' });
  expect(config.pools.gpu).toMatchObject({ service: 'hub', queue: 'acme/demo', agents: 1 });
  expect(config.defaults.name).toMatch(/^burst-[0-9a-f]{6}-\{pool\}-\{n\}$/);

  // What stays of its agents when it dies, and what others have.
  const token = github.userToken();
  const register = async (name: string) => {
    const body = JSON.stringify({ name, runner_group_id: 1, labels: ['gpu'] });
    const address = `${github.api}/repos/acme/demo/actions/runners/generate-jitconfig`;
    const answer = await fetch(address, { method: 'POST', body, headers: { authorization: `Bearer ${token}` } });
    return ((await answer.json()) as { encoded_jit_config: string }).encoded_jit_config;
  };
  const prefix = config.defaults.name.slice(0, 'burst-123456'.length);
  const names = () => [...github.runners.values()].map(({ name }) => name);
  const strangers = ['burst-000000-by-hand', 'box-1-0123abcd-a1'];
  for (const name of [`${prefix}-gpu-1-0123abcd-a1`, ...strangers]) await register(name);

  // Somebody needs it no more.
  busy = false;
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  expect(machine?.stages).toEqual(['booted', 'joined', 'drained']);
  expect((await host())?.machines).toEqual([]);
  await expect.poll(names, { timeout: 20_000 }).toEqual(strangers);
  const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
  expect(JSON.parse(receipts.stdout)).toMatchObject({
    run: machine?.run,
    host: 'burst',
    state: 'gone',
    absentAt: [expect.any(Number), expect.any(Number)],
    registrations: { removed: [`${prefix}-gpu-1-0123abcd-a1`], left: [], unknown: [], clearedAt: expect.any(Number) },
  });
  expect(aws.leftovers()).toEqual([]);

  // What no ledger knows is found by its names.
  await register('burst-000000-gpu-1-4567abcd-b1');
  const swept = await here.cli(['cloud', 'sweep', '--json']).ended;
  expect(swept, swept.stderr).toMatchObject({ code: 0 });
  const lines = swept.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(lines.at(-1)).toEqual({ service: 'hub', removed: ['burst-000000-gpu-1-4567abcd-b1'], left: [], unknown: [] });
  expect(names()).toEqual(strangers);
  aws.close();
});
