/** Jobs on a host with stub cards: handed in through the API, held until a test lets them go, and what they said of their cards. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { DeviceView, JobView } from '../../src/contract/schema.ts';
import { card } from './gpu-cards.ts';
import type { GpuHost } from './gpu-host.ts';
import { type Daemon, type Home, onejob } from './onejob.ts';

export interface HeldJob {
  readonly id: string;
  /** Lets it continue to its end. */
  go(): void;
  readonly ended: Promise<JobView>;
}

/** What every job of these tests does first: it says which cards it was given and which nodes it finds. */
const says = 'echo "cards=$CUDA_VISIBLE_DEVICES nvidia=$NVIDIA_VISIBLE_DEVICES nodes=$(ls /dev | grep nvidia | tr "\\n" " ")"';

/** A home on `host` whose pools run processes, in bubblewrap where it is there. Jobs find a folder of the test's at /go. */
export async function gpuHome(host: GpuHost, pools: Readonly<Record<string, object>>): Promise<Home> {
  const here = await onejob({ config: '', env: host.env });
  mkdirSync(gate(here));
  const defaults = { runtime: 'process', stop_grace: '1s', volumes: [`${gate(here)}:/go`] };
  here.configure(JSON.stringify({ defaults, pools }));
  return here;
}

function gate(here: Home): string {
  return join(here.dir, 'go');
}

/** Hands in a job that says what it sees and ends; resolves with its words once it has ended well. */
export async function see(here: Home, pool: string, devices: number | null = null): Promise<Sight> {
  const { id } = await here.api.submit({ command: ['sh', '-c', says], pool, devices });
  const job = await here.api.settled(id);
  if (job.result?.kind !== 'code' || job.result.code !== 0) throw new Error(`job ${id} ended with ${JSON.stringify(job.result)}`);
  return sightOf(here, id);
}

/** Hands in a job that continues until it is let go. */
export async function hold(here: Home, pool: string, devices: number | null = null): Promise<HeldJob> {
  const script = `${says}; until [ -e /go/$ONEJOB_JOB_ID ]; do sleep 0.05; done`;
  const { id } = await here.api.submit({ command: ['sh', '-c', script], pool, devices });
  return {
    id,
    go: () => writeFileSync(join(gate(here), id), ''),
    // Asked for when somebody waits for it: until then its manager may be killed.
    get ended() {
      return here.api.settled(id);
    },
  };
}

export interface Sight {
  readonly cards: readonly string[];
  /** `NVIDIA_VISIBLE_DEVICES` */
  readonly nvidia: string;
  /** Names below /dev. */
  readonly nodes: readonly string[];
}

/** What a job has said so far; null while it has not. */
export async function sightOf(here: Home, job: string): Promise<Sight> {
  const output = await outputOf(here, job);
  const found = /cards=(\S*) nvidia=(\S*) nodes=(.*)/.exec(output);
  if (found === null) throw new Error(`job ${job} has not said which cards it has: ${output}`);
  const [, cards = '', nvidia = '', nodes = ''] = found;
  return { cards: cards.split(',').filter(Boolean), nvidia, nodes: nodes.split(' ').filter(Boolean).sort() };
}

export async function outputOf(here: Home, job: string): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const { bytes } of here.api.logs({ job }, { follow: false })) pieces.push(bytes);
  return Buffer.concat(pieces).toString();
}

/** A process that is not an agent's, until it is disposed of. `env` is all of its environment. */
export function bystander({
  env = {},
  uid = 65_534,
}: {
  readonly env?: Readonly<Record<string, string>>;
  readonly uid?: number;
} = {}) {
  const child = spawn('/usr/bin/sleep', ['600'], { env, uid, stdio: 'ignore' });
  const gone = once(child, 'exit');
  return {
    pid: child.pid ?? 0,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL');
      await gone;
    },
  };
}

export async function device(here: Home, uuid: string): Promise<DeviceView | undefined> {
  return (await here.api.devices()).find((one) => one.uuid === uuid);
}

/** Waits until a job has begun, and says which cards it has. */
export async function running(here: Home, job: HeldJob): Promise<readonly string[]> {
  await expect.poll(() => outputOf(here, job.id)).toMatch(/cards=/);
  return (await sightOf(here, job.id)).cards;
}

/** Lets a job go, and it must end well. */
export async function finish(job: HeldJob): Promise<void> {
  job.go();
  expect((await job.ended).result).toEqual({ kind: 'code', code: 0 });
}

/** One agent on the first of two cards, so that there is a free one to move to, and a job on it. */
export async function oneOfTwo(host: GpuHost) {
  const here = await gpuHome(host, { gpu: { agents: 1, devices: 1 }, cpu: { agents: 1 } });
  const daemon = await here.up();
  const job = await hold(here, 'gpu');
  expect(await running(here, job)).toEqual([card(0).uuid]);
  return { here, daemon, job };
}

/** A stop must not wait for what may take for ever. */
export async function stopsSoon({ child }: Daemon): Promise<void> {
  child.signal('SIGTERM');
  await expect.poll(() => child.running, { timeout: 12_000 }).toBe(false);
  expect((await child.ended).code).toBe(0);
}
