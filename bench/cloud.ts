/**
 * Clouds: what the adapters cost the daemon in memory, how long a waiting job takes to become a call that makes a machine, and how many
 * requests an hour takes in which nothing happens. All against stand-ins: what a real cloud takes to answer comes on top.
 */
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { createAws } from '../src/clouds/aws/aws.ts';
import { createAzure } from '../src/clouds/azure/azure.ts';
import { openGcp } from '../src/clouds/gcp/cloud.ts';
import { type Controller, createController } from '../src/machines/controller.ts';
import type { Cloud } from '../src/ports/cloud.ts';
import type { HostConfig } from '../src/schema/host-config.ts';
import { type Machine, mayLive } from '../src/store/machine.ts';
import { systemClock } from '../src/system/system-clock.ts';
import { awsBench, awsConfig, counted } from '../test/kit/aws.ts';
import { azureConfig, azureWorld } from '../test/kit/azure-cloud.ts';
import type { HandClock } from '../test/kit/core.ts';
import { gcpConfig, gcpWorld } from '../test/kit/gcp.ts';
import { type AwsStandin, createAws as awsStandin, schedulerRole, testKey } from '../test/standins/aws/standin.ts';
import {
  type AzureCloud,
  azureCloud,
  client,
  clientSecret,
  location,
  securityGroup,
  subnet,
  subscription,
  tenant,
} from '../test/standins/azure-cloud/azure-cloud.ts';
import { createGcp, type GcpStandin } from '../test/standins/gcp/standin.ts';
import { startGitHub } from '../test/support/github-server.ts';
import { onejob } from '../test/support/onejob.ts';
import { rss } from './daemon.ts';
import { type Stats, stats } from './stats.ts';

const types = { aws: 'g4dn.xlarge', gcp: 'n1-standard-4/nvidia-tesla-t4', azure: 'Standard_NC4as_T4_v3' } as const;
export type CloudName = keyof typeof types;
const names = Object.keys(types) as CloudName[];
const silent = { info() {}, warn() {}, error() {} };

/** No quota is in the way. */
function enough(...accounts: readonly (AwsStandin | GcpStandin | AzureCloud)[]): void {
  const plenty = 100_000;
  for (const one of accounts) {
    if ('quotas' in one) for (const quota of one.quotas.values()) quota.limit = plenty;
    else if ('account' in one && 'quotas' in one.account)
      for (const code of Object.keys(one.account.quotas)) one.account.quotas[code] = plenty;
    else if ('catalog' in one)
      for (const quotas of Object.values(one.catalog.quotas)) for (const metric of Object.keys(quotas)) quotas[metric] = plenty;
  }
}

/** All three on ports of this host. */
async function served() {
  await using parts = new AsyncDisposableStack();
  const aws = awsStandin({ clock: systemClock, times: { boot: 100, end: 100 } });
  parts.defer(() => aws.close());
  const address = parts.use(await aws.serve()).url;
  const gcp = createGcp({ clock: systemClock, times: { start: 100, stop: 100 } });
  parts.use(await gcp.serve());
  const timing = { allocate: 50, boot: 50, report: 50, removeMachine: 100, removeGroup: 100 };
  const azure = azureCloud({ timing, retryAfter: 1 });
  parts.use(await azure.serve());
  enough(aws, gcp, azure);
  const all = parts.move();
  return { aws, address, gcp, azure, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

export interface CloudMemory {
  /** MB of 10^6 bytes, of the daemon. */
  readonly without: number;
  readonly with: number;
  /** Lists of the three meanwhile. */
  readonly lists: number;
}

/** A daemon with a machine in each cloud, after `seconds`; and one with the same service and no cloud. */
export async function cloudMemory(seconds: number): Promise<CloudMemory> {
  await using github = await startGitHub();
  const measure = async (clouds: (dir: string) => string, env: Readonly<Record<string, string>>): Promise<number> => {
    await using home = await onejob({ config: '', env });
    const key = join(home.dir, 'app.pem');
    writeFileSync(key, github.app.pem, { mode: 0o600 });
    home.configure(`
services:
  hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: "${key}" } }, poll: 5s }
pools: { local: { agents: 1, runtime: process } }
${clouds(home.dir)}`);
    const { pid } = await home.up();
    await pause(seconds * 1000);
    return rss(pid);
  };
  const without = await measure(() => '', {});
  await using there = await served();
  const port = await freePort();
  const config = (dir: string): string => {
    writeFileSync(join(dir, 'google.json'), there.gcp.keyFile(), { mode: 0o600 });
    writeFileSync(join(dir, 'onejob.tgz'), 'a package');
    const pools = (name: string) => `{ ${name}: { service: hub, queue: acme/demo, agents: 1, devices: 1, tags: ${name} } }`;
    return `
clouds:
  aws:
    type: aws
    region: us-west-2
    endpoint: "${there.address}"
    scheduler_role: "${schedulerRole}"
    security_group: sg-0e00000000000000
    credentials: { access_key_id: ${testKey.id}, secret_access_key: { env: AWS_SECRET } }
  gcp:
    { type: gcp, project: acme-ci, region: us-central1, endpoint: "${there.gcp.origin}", credentials: { file: { file: "${dir}/google.json" } } }
  azure:
    type: azure
    subscription: ${subscription}
    location: ${location}
    subnet: ${subnet}
    security_group: ${securityGroup}
    endpoint: "${there.azure.url}"
    login_endpoint: "${there.azure.url}"
    credentials: { tenant: ${tenant}, client: ${client}, secret: { env: AZURE_SECRET } }
hosts:
${names.map((name) => `  on-${name}: { cloud: ${name}, types: ["${types[name]}"], min: 1, pools: ${pools(`p-${name}`)} }`).join('\n')}
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${dir}/onejob.tgz" }
`;
  };
  const used = await measure(config, { AWS_SECRET: testKey.secret, AZURE_SECRET: clientSecret });
  const made = [there.aws.alive().length, there.gcp.machines().length, there.azure.world.machines().length];
  if (made.includes(0)) throw new Error(`not every cloud was used: ${made.join(', ')} machines at AWS, Google Cloud and Azure`);
  const lists = [
    there.aws.calls.filter(({ action }) => action === 'DescribeInstances').length,
    there.gcp.requests.filter(({ url }) => url.pathname.includes('/aggregated/instances')).length,
    there.azure.calls.filter((call) => /^GET \S+\/resourcegroups /i.test(call)).length,
  ];
  if (lists.includes(0)) throw new Error(`not every cloud was listed: ${lists.join(', ')}`);
  return { without, with: used, lists: lists.reduce((sum, count) => sum + count, 0) };
}

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

const hostOf = (name: CloudName, cloud: Cloud, more: Partial<HostConfig> = {}): HostConfig => ({
  host: 'burst',
  cloud: cloud.name,
  types: [types[name]],
  spot: 'never',
  image: null,
  min: 0,
  max: 100,
  idle: 600_000,
  agents: 1,
  lifetime: 6 * 3_600_000,
  boot: 1_200_000,
  budget: null,
  prices: {},
  disk: 100,
  opengl: 'none',
  setup: [],
  ...more,
});

function controllerOf(clock: Parameters<typeof createController>[0]['clock'], cloud: Cloud, host: HostConfig): Controller {
  const rows = new Map<string, Machine>();
  const all = () => [...rows.values()];
  const machines = {
    put: (machine: Machine) => void rows.set(machine.run, machine),
    live: () => all().filter(mayLive),
    gone: (time: number) => all().filter((one) => !mayLive(one) && one.since >= time),
    newest: () => [],
    get: (run: string) => rows.get(run) ?? null,
    prune: () => {},
    wanted: () => new Map(),
    want: () => {},
  };
  const controller = createController({
    clock,
    log: silent,
    hosts: [host],
    userData: () => '#cloud-config\n{}\n',
    clouds: new Map([[host.cloud, { cloud, owner: 'bench' }]]),
    store: { machines: machines as never, transaction: ((_: unknown, act: () => unknown) => act()) as never },
  });
  controller.start();
  return controller;
}

/**
 * A job waits, until the call that makes a machine is at the stand-in. Each round has a controller and an adapter of its own, so a list,
 * the zones of the type, the image and the credential are all asked for first. ms
 */
export async function cloudDecision(rounds: number): Promise<Readonly<Record<CloudName, Stats>>> {
  await using there = await served();
  let arrived: () => void = () => {};
  const { machines } = there.aws.world;
  const keep = machines.set.bind(machines);
  machines.set = (id, machine) => {
    arrived();
    return keep(id, machine);
  };
  const { requests } = there.gcp;
  const push = requests.push.bind(requests);
  requests.push = (...more) => {
    if (more.some(({ method, url }) => method === 'POST' && url.pathname.endsWith('/instances'))) arrived();
    return push(...more);
  };
  const { calls } = there.azure;
  const note = calls.push.bind(calls);
  calls.push = (...more) => {
    if (more.some((call) => /^PUT \S+\/virtualMachines\//.test(call))) arrived();
    return note(...more);
  };
  const parts = { clock: systemClock, fetch, log: silent, version: 'bench' };
  const opened: Readonly<Record<CloudName, () => Cloud | Promise<Cloud>>> = {
    aws: () =>
      createAws(
        { ...awsConfig, endpoint: there.address },
        { ...parts, variables: { AWS_ACCESS_KEY_ID: testKey.id, AWS_SECRET_ACCESS_KEY: testKey.secret } },
      ),
    gcp: () => openGcp({ ...gcpConfig, endpoint: there.gcp.origin }, { ...parts, variables: { GCP_KEY: there.gcp.keyFile() } }),
    azure: () =>
      createAzure(
        { ...azureConfig, endpoint: there.azure.url, loginEndpoint: there.azure.url },
        { ...parts, variables: { AZURE_SECRET: clientSecret } },
      ),
  };
  const figures: Partial<Record<CloudName, Stats>> = {};
  for (const name of names) {
    const times: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const cloud = await opened[name]();
      const { promise, resolve } = Promise.withResolvers<void>();
      arrived = resolve;
      const controller = controllerOf(systemClock, cloud, hostOf(name, cloud));
      const began = performance.now();
      controller.setWaiting('burst', 1);
      await promise;
      times.push(performance.now() - began);
      controller.close();
    }
    figures[name] = stats(times);
  }
  return figures as Record<CloudName, Stats>;
}

interface Idle {
  readonly clock: HandClock;
  readonly cloud: Cloud;
  readonly isBusy: () => boolean;
  requests(): number;
}

const idleWorlds: Readonly<Record<CloudName, () => Promise<Idle>>> = {
  async aws() {
    const bench = awsBench();
    enough(bench.aws);
    return { ...counted(bench.cloud), clock: bench.clock, requests: () => bench.aws.calls.length };
  },
  async gcp() {
    const { gcp, ...world } = await gcpWorld();
    enough(gcp);
    return { ...world, isBusy: () => false, requests: () => gcp.requests.length };
  },
  async azure() {
    const { azure, ...world } = azureWorld();
    // As large as those of Azure itself are.
    azure.pages(1000);
    enough(azure);
    return { ...world, isBusy: () => false, requests: () => azure.calls.length };
  },
};

/** Requests in an hour in which so many machines have joined and nothing happens. In virtual time. */
export async function cloudIdleHour(name: CloudName, count: number): Promise<number> {
  const { clock, cloud, isBusy, requests } = await idleWorlds[name]();
  const controller = controllerOf(clock, cloud, hostOf(name, cloud, { min: count, max: count }));
  const pass = async (ms: number): Promise<void> => {
    const until = clock.now() + ms;
    for (;;) {
      for (let turns = 0; turns < 10; turns++) await new Promise((resolve) => setImmediate(resolve));
      if (isBusy()) continue;
      const next = clock.next();
      if (next === null || clock.now() + next > until) break;
      clock.advance(next);
    }
    clock.advance(until - clock.now());
  };
  const joined = () => controller.machines().filter(({ state }) => state === 'joined').length;
  for (let minutes = 0; joined() < count; minutes++) {
    if (minutes > 60) throw new Error(`only ${joined()} of ${count} machines of ${name} have joined`);
    await pass(60_000);
    for (const { run, state } of controller.machines()) if (state === 'booting') controller.joined(run);
  }
  await pass(30 * 60_000);
  const before = requests();
  await pass(3_600_000);
  const asked = requests() - before;
  if (joined() !== count) throw new Error(`${joined()} of ${count} machines of ${name} are left`);
  controller.close();
  return asked;
}

export async function cloudIdle(many: number) {
  const figures: Partial<Record<CloudName, { readonly one: number; readonly many: number }>> = {};
  for (const name of names) figures[name] = { one: await cloudIdleHour(name, 1), many: await cloudIdleHour(name, many) };
  return figures as Record<CloudName, { readonly one: number; readonly many: number }>;
}
