/**
 * The stand-in for Azure DevOps where containers reach it, with a pool, and a config that uses both: what every end-to-end test
 * of Azure Pipelines begins with.
 */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { PoolView } from '../../src/contract/schema.ts';
import { type AzureDevOps, type QueuedJob, type StandInOptions, startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { ensureAzureImages } from './azure-images.ts';
import { call } from './images.ts';
import { poolOf } from './look.ts';
import type { Home } from './onejob.ts';

export interface AzureConfig {
  readonly agents?: number;
  /** More keys of the service. */
  readonly service?: string;
  /** Instead of the PAT: `principal: { … }`. */
  readonly credential?: string;
}

export interface AzureBench extends AsyncDisposable {
  readonly azure: AzureDevOps;
  /** Id of the agent pool `gpu` at the service. */
  readonly pool: number;
  /** Holds the PAT, mode 600. */
  readonly tokenFile: string;
  /** `services:` and one pool `ci` of `agents`. */
  config(more?: AzureConfig): string;
  /** Queues a job that continues until `go(name)`; prints `began NAME` and `ended NAME`. */
  hold(name: string): QueuedJob;
  /** Lets jobs of that name continue to their end. */
  go(name: string): void;
  /** Registrations of agents that are not placeholders. */
  left(): string[];
}

/**
 * Address of the Engine's default bridge: a listener there can be reached from the containers of any bridge. The Engine is asked,
 * since a bridge without containers is down and not listed among the interfaces.
 */
export async function bridgeAddress(): Promise<string> {
  const { body } = await call('/var/run/docker.sock', 'GET', '/networks/bridge');
  const address = /"Gateway":"([0-9.]+)"/.exec(body)?.[1];
  if (address !== undefined) return address;
  // Engines before 28 name only the subnet of a bridge that they made themselves at this start; they took its first address.
  const subnet = /"Subnet":"([0-9]+\.[0-9]+\.[0-9]+)\.0\//.exec(body)?.[1];
  if (subnet === undefined) throw new Error(`The Engine's default bridge has no address: ${body}`);
  return `${subnet}.1`;
}

export async function azureBench(options: StandInOptions = {}): Promise<AzureBench> {
  const images = await ensureAzureImages();
  const azure = await startAzureDevOps({ host: '0.0.0.0', publicHost: await bridgeAddress(), pollHoldMs: 2_000, ...options });
  const pool = azure.addPool('gpu', { autoUpdate: false });
  const dir = mkdtempSync(join(tmpdir(), 'oj-azure-'));
  // Jobs look into it; the token's own mode keeps it from them.
  chmodSync(dir, 0o755);
  const gate = join(dir, 'go');
  mkdirSync(gate);
  const tokenFile = join(dir, 'pat');
  writeToken(tokenFile, azure.pat);
  return {
    azure,
    pool,
    tokenFile,
    // The grace is enough for an agent to report the job that it ends.
    config: ({ agents = 1, service, credential = `token: { file: ${tokenFile} }` } = {}) => `
services:
  azure: { type: azure-pipelines, url: ${azure.url}, ${credential}, poll: 2s${service === undefined ? '' : `, ${service}`} }
pools:
  ci: { service: azure, queue: gpu, agents: ${agents}, runtime: docker, image: "${images.agent}", stop_grace: 10s, volumes: ["${gate}:/go"] }
`,
    hold: (name) =>
      azure.queue(pool, { name, script: `echo began ${name}; until [ -e /go/${name} ]; do sleep 0.1; done; echo ended ${name}` }),
    go: (name) => writeFileSync(join(gate, name), ''),
    left: () =>
      azure
        .agents(pool)
        .map(({ name }) => name)
        .filter((name) => !isPlaceholder(name)),
    async [Symbol.asyncDispose]() {
      await azure[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

export function isPlaceholder(name: string): boolean {
  return name.startsWith('onejob-placeholder-');
}

/** As a person writes it: with a line break. */
export function writeToken(file: string, token: string): void {
  writeFileSync(file, `${token}\n`);
  chmodSync(file, 0o600);
}

/** Resolves once a job runs at the service. */
export async function untilRunning(job: QueuedJob, timeout = 60_000): Promise<void> {
  await expect.poll(() => job.view().state, { timeout, interval: 50 }).toBe('running');
}

/** Resolves once an agent of ours is online and waits for a job; one whose job has ended may be online for a moment more. */
export async function untilIdle({ azure, pool }: Pick<AzureBench, 'azure' | 'pool'>, count = 1, timeout = 60_000): Promise<void> {
  const idle = () => {
    const had = new Set(azure.requests(pool).map(({ agent }) => agent?.id));
    return azure.agents(pool).filter(({ id, online, enabled }) => online && enabled && !had.has(id)).length;
  };
  await expect.poll(idle, { timeout, interval: 50 }).toBe(count);
}

/** Why the pool starts nothing, as a person reads it in `onejob status`; empty while nothing is wrong. */
export async function troubleOf(here: Home, name = 'ci'): Promise<string> {
  const { paused, backoff }: PoolView = await poolOf(here, name);
  return [...paused, ...(backoff === null ? [] : [backoff.reason])].join('\n');
}

/** A trivial job ends well: the pool works. */
export async function works({ azure, pool }: Pick<AzureBench, 'azure' | 'pool'>): Promise<void> {
  const { result, log } = await azure.queue(pool, { script: 'echo well' }).finished;
  expect({ result, log }).toEqual({ result: 'succeeded', log: expect.stringContaining('well') });
}

/** What must hold at the service after every test: nothing of ours but placeholders, no secret where it should not be. */
export function expectClean({ azure, pool, left }: AzureBench): void {
  expect(left()).toEqual([]);
  expect(azure.requests(pool).filter(({ failedAtQueue }) => failedAtQueue)).toEqual([]);
  expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
  expect(azure.strays).toEqual([]);
  expect(azure.log.filter(({ identity, route }) => identity === 'pat' && /session|message|plan/.test(route))).toEqual([]);
}
