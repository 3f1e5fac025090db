/**
 * The stand-in for Buildkite, the real agent, and a config that uses both: what every end-to-end test of Buildkite begins with.
 * Jobs run in the image that jobs run in by default, with the agent mounted; nothing is built or pulled.
 */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import {
  type BuildkiteOptions,
  type BuildkiteStandin,
  type JobSpec,
  type JobView,
  startBuildkite,
} from '../standins/buildkite/standin.ts';
import { lacksAgent, realAgent } from './buildkite-agent.ts';
import { bridgeAddress } from './buildkite-host.ts';

export interface BuildkiteConfig {
  readonly agents?: number | string;
  /** More keys of the pool, as YAML in braces; each stands before the usual one of its name. */
  readonly pool?: string;
  /** More keys of the service. */
  readonly service?: string;
  readonly top?: string;
  readonly image?: string;
  /** Default `default`. */
  readonly queue?: string;
  /** Beside the one that `hold` needs. */
  readonly volumes?: readonly string[];
  /** More pools, as lines of YAML. */
  readonly pools?: string;
}

export interface BuildkiteBench extends AsyncDisposable {
  readonly buildkite: BuildkiteStandin;
  /** Holds the registration token, mode 600. */
  readonly tokenFile: string;
  /** `services:` and one pool `ci` of `agents`. */
  config(more?: BuildkiteConfig): string;
  /** Runs a command to its end. */
  job(command: string, spec?: Omit<JobSpec, 'command'>): Promise<JobView>;
  /** Queues a job that continues until `go(name)`; prints `began NAME` and `ended NAME`. */
  hold(name: string, spec?: Omit<JobSpec, 'command'>): string;
  /** Lets jobs of that name continue to their end. */
  go(name: string): void;
}

/**
 * s. The agent loses what it has just taken from its buffer to send when the job ends in that moment: it closes its streamer without
 * waiting for who holds that (v3.137 `agent/run_job.go`, `cleanup`). Who only looks at the end can do without what is sent before.
 */
export const onlyAtTheEnd = 3_600;

/** Path of the real agent's program; the test is skipped with a sentence where it cannot be had. */
export function agentOrSkip(skip: (note: string) => void): string {
  const agent = realAgent();
  if (agent === null) {
    skip(`Skipped: ${lacksAgent()}.`);
    throw new Error('skipped');
  }
  return agent;
}

export async function buildkiteBench(agent: string, options: BuildkiteOptions = {}): Promise<BuildkiteBench> {
  // Agents of trusted jobs call it from their containers, by the host's address on the Engine's own bridge.
  const buildkite = await startBuildkite({ host: '0.0.0.0', publicHost: bridgeAddress(), ...options });
  const dir = mkdtempSync(join(tmpdir(), 'oj-buildkite-'));
  // Jobs look into it; the token's own mode keeps it from them.
  chmodSync(dir, 0o755);
  const gate = join(dir, 'go');
  mkdirSync(gate);
  const tokenFile = join(dir, 'token');
  writeFileSync(tokenFile, `${buildkite.token}\n`, { mode: 0o600 });
  const bench: BuildkiteBench = {
    buildkite,
    tokenFile,
    config({
      agents = 1,
      pool = '',
      service = '',
      top = '',
      pools = '',
      image = 'debian:stable-slim',
      queue = 'default',
      volumes = [],
    } = {}) {
      // Untrusted jobs have the pool's network, so that no test needs the firewall of its host for another matter.
      return `
defaults: { trust: { network: default } }
${top}
services:
  bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${tokenFile} }, poll: 2s, agent: { from: ${agent} }${more(service)} }
pools:
  ci: { service: bk, queue: ${queue}, agents: ${agents}, image: "${image}", volumes: ${JSON.stringify([`${gate}:/go`, ...volumes])}${more(pool)} }
${pools}
`;
    },
    job: (command, spec = {}) => buildkite.jobEnded(buildkite.queueJob({ chunksIntervalS: onlyAtTheEnd, ...spec, command })),
    hold: (name, spec = {}) =>
      buildkite.queueJob({
        ...spec,
        command: `echo began ${name}; until [ -e /go/${name} ]; do sleep 0.1; done; echo ended ${name}`,
      }),
    go: (name) => writeFileSync(join(gate, name), ''),
    async [Symbol.asyncDispose]() {
      await buildkite[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true, force: true });
    },
  };
  return bench;
}

function more(keys: string): string {
  return keys === '' ? '' : `, ${keys}`;
}

/** What must hold at the service after every test: no agent, no job left, no token where it should not be. */
export function expectClean({ buildkite }: Pick<BuildkiteBench, 'buildkite'>): void {
  expect(buildkite.census()).toEqual({ agents: [], jobs: [] });
  expect(buildkite.requests.filter(({ leaked }) => leaked)).toEqual([]);
}
