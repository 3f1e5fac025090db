/**
 * Machines in clouds from zero to zero: jobs wait in a queue of Buildkite, the real controller makes a machine at a stand-in of a cloud,
 * a real cloud-init and systemd boot it, it installs and joins, the real agent runs the job, and in the end two lists show nothing.
 */
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startBuildkite } from '../standins/buildkite/standin.ts';
import { theAgent } from '../support/buildkite-days.ts';
import { type CloudMachine, cloudMachine, type Package, packThisClone } from '../support/cloud-machine.ts';
import { awsStandin, azureStandin, type CloudStandin, gcpStandin, type Machines } from '../support/cloud-standins.ts';
import { freePort } from '../support/free-port.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

let archive: Package;
beforeAll(() => {
  if (!lacks('nspawn')) archive = packThisClone();
}, 120_000);
afterAll(() => archive?.[Symbol.dispose]());

/** Serves one file to whoever asks. */
async function fileServer(path: string): Promise<AsyncDisposable & { readonly url: string }> {
  const server = createServer((_request, response) => void createReadStream(path).pipe(response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** Boots machines as the cloud does, and switches them off. */
function realMachines() {
  const booted = new Map<string, Promise<CloudMachine>>();
  const ends: Promise<void>[] = [];
  const machines: Machines = {
    boot(id, text) {
      // No metadata service is asked, and yet the rules of the cloud are made.
      booted.set(id, cloudMachine(text.replace(/"cloud":"(aws|gcp|azure)"/, '"cloud":"none"')));
    },
    end(id) {
      const machine = booted.get(id);
      booted.delete(id);
      if (machine !== undefined) ends.push(machine.then((one) => one[Symbol.asyncDispose]()));
    },
  };
  return {
    machines,
    booted,
    async [Symbol.asyncDispose]() {
      for (const id of booted.keys()) machines.end(id);
      await Promise.all(ends);
    },
  };
}

interface Case {
  readonly open: (machines: Machines) => Promise<CloudStandin>;
  /** Waits for the machine's own end, or asks for it. */
  readonly end: 'idle' | 'down';
}

const cases: Readonly<Record<string, Case>> = {
  aws: { open: awsStandin, end: 'idle' },
  gcp: { open: gcpStandin, end: 'down' },
  azure: { open: azureStandin, end: 'down' },
};

describe.skipIf(lacks('nspawn', 'openssl', 'buildkiteAgent'))('from zero to zero, driven by a queue', () => {
  test.for(Object.entries(cases))('at %s', { timeout: 400_000 }, async ([name, { open, end }]) => {
    await using buildkite = await startBuildkite({ metricsPollSeconds: 1 });
    await using agents = await fileServer(theAgent());
    await using real = realMachines();
    await using cloud = await open(real.machines);
    const port = await freePort();
    await using here: Home = await onejob({ config: '', env: { ...cloud.env, BK_TOKEN: buildkite.token } });
    here.configure(`
services:
  bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { env: BK_TOKEN }, poll: 2s, agent: { from: image } }
clouds:
  there: { owner: lab-1, ${cloud.keys} }
hosts:
  burst:
    cloud: there
    types: ${JSON.stringify(cloud.types)}
    idle: 1m
    prices: { ${cloud.types.map((type) => `${type}: 0.80`).join(', ')} }
    setup: ["curl -sSf -o /usr/local/bin/buildkite-agent ${agents.url}", "chmod 755 /usr/local/bin/buildkite-agent"]
    pools:
      ci: { service: bk, queue: default, agents: 1, runtime: process, isolation: none }
      own: { agents: 1, runtime: process }
join: { listen: "127.0.0.1:${port}", url: "${cloud.scheme}://127.0.0.1:${port}", package: "${archive.path}", ${cloud.join(here.dir)} }
pools: { local: { agents: 1, runtime: process } }
`);
    await here.up();
    const machinesOf = async () => (await here.api.machines()).flatMap(({ machines }) => machines);
    expect(cloud.left()).toEqual([]);

    const id = buildkite.queueJob({ command: 'echo hello from a job' });
    // A machine that failed says why, instead of a time limit here.
    const far = async () => [buildkite.job(id).state, ...(await machinesOf()).map(({ isFailure, why }) => isFailure && why)];
    await expect.poll(far, { timeout: 300_000, interval: 500 }).toEqual(['finished', false]);
    const job = buildkite.job(id);
    expect({ exit: job.exit, log: job.log }).toEqual({ exit: 0, log: expect.stringContaining('hello from a job') });
    expect(job.agent?.name).toMatch(/^burst-[0-9a-f]{6}-ci-1$/);
    // Its daemon may be faster than what tells the controller.
    const joined = { host: 'burst', state: 'joined', end: expect.any(String) };
    await expect.poll(machinesOf, { timeout: 20_000 }).toEqual([expect.objectContaining(joined)]);
    // So do jobs of the own queue, through the machine's own connection; the pool has a shorter name there.
    const own = await here.run(
      '--pool',
      'burst.own',
      '--no-workspace',
      '--',
      'sh',
      '-c',
      'echo hello from pool $ONEJOB_POOL; exit 3',
    ).ended;
    expect(own, own.stderr).toMatchObject({ code: 3, stdout: 'hello from pool own\n' });
    const [machine] = await machinesOf();
    const [at] = real.booted.keys();
    expect(real.booted.size).toBe(1);

    if (end === 'down') {
      const down = await here.cli(['cloud', 'down', 'burst']).ended;
      expect(down, down.stderr).toMatchObject({ code: 0 });
    } else await expect.poll(machinesOf, { timeout: 240_000 }).toEqual([]);
    const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
    expect(JSON.parse(receipts.stdout)).toMatchObject({
      run: machine?.run,
      host: 'burst',
      state: 'gone',
      stage: 'drained',
      isFailure: false,
      cost: expect.any(Number),
      absentAt: [expect.any(Number), expect.any(Number)],
      items: expect.arrayContaining([expect.objectContaining({ kind: 'machine', id: expect.stringContaining(at ?? '') })]),
      why: end === 'down' ? 'It was ended with "onejob cloud down".' : 'It had no job for 60 s.',
    });
    expect(cloud.left(), name).toEqual([]);
    expect(real.booted.size).toBe(0);
    const listed = await here.cli(['cloud', 'list']).ended;
    expect(listed, listed.stderr).toMatchObject({ code: 0, stdout: expect.stringContaining('No resources found.') });
    expect(buildkite.census()).toEqual({ agents: [], jobs: [] });
  });
});
