/**
 * Machines in a cloud, from a waiting job to nothing and a receipt: the real onejob on stand-ins of clouds, with one of GitHub that has
 * the queue. The machines are played here: they join, work and drain as a real one does (test/long/cloud-boot.test.ts).
 */

import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { systemClock } from '../../src/clock.ts';
import { createJoinClient } from '../../src/cloud/join/client.ts';
import { newSecret } from '../../src/cloud/join/protocol.ts';
import { cloudStands } from '../support/cloud-stands.ts';
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

test.each(['aws', 'azure'] as const)(
  '%s: a waiting job makes a machine, and afterwards two lists show nothing of it',
  { timeout: 120_000 },
  async (type) => {
    await using github = await startGitHub();
    let busy = false;
    const machines = playMachines(() => busy);
    const broken: unknown[] = [];
    await using stand = await cloudStands[type]({
      onBoot: (id, userData) => void machines.play(id, userData).catch((error: unknown) => broken.push(error)),
      onEnd: (id) => void machines.alive.delete(id),
    });
    const port = await freePort();
    await using here = await onejob({ config: '' });
    const [key, archive] = [join(here.dir, 'app.pem'), join(here.dir, 'onejob.tgz')];
    writeFileSync(key, github.app.pem, { mode: 0o600 });
    writeFileSync(archive, 'a package');
    here.configure(`
services:
  hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: "${key}" } }, poll: 5s }
clouds: { lab: ${stand.entry} }
hosts:
  burst:
    cloud: lab
    types: ${stand.types}
    idle: 1m
    pools: { gpu: { service: hub, queue: acme/demo, agents: 1, devices: 1, tags: gpu } }
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }
pools: { local: { agents: 1, runtime: process } }
`);
    here.env.CLOUD_SECRET = stand.secret;
    await here.up();
    const host = async () => (await here.api.machines())[0];
    expect(await host()).toMatchObject({ host: 'burst', machines: [], waiting: 0 });
    expect(stand.creations()).toBe(0);

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

    // Somebody needs it no more.
    busy = false;
    const down = await here.cli(['cloud', 'down', 'burst']).ended;
    expect(down, down.stderr).toMatchObject({ code: 0 });
    expect(machine?.stages).toEqual(['booted', 'joined', 'drained']);
    expect((await host())?.machines).toEqual([]);
    const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
    expect(JSON.parse(receipts.stdout)).toMatchObject({
      run: machine?.run,
      host: 'burst',
      state: 'gone',
      absentAt: [expect.any(Number), expect.any(Number)],
    });
    expect([stand.creations(), stand.leftovers()]).toEqual([1, 0]);
  },
);
