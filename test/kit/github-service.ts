/** The service on a GitHub in memory. */
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { createLog } from '../../src/base/log.ts';
import { GithubClient } from '../../src/ci/github/client.ts';
import type { GithubCredential, GithubServiceConfig } from '../../src/ci/github/config.ts';
import type { GithubParts } from '../../src/ci/github/parts.ts';
import { ScaleSets } from '../../src/ci/github/scale-sets.ts';
import { createGithub } from '../../src/ci/github/service.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { Clock } from '../../src/core/clock.ts';
import type { AgentContext } from '../../src/ports/ci-service.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { scratch } from '../support/scratch.ts';
import { type MemoryGitHub, memoryGitHub } from './github.ts';
import { bareRecipe } from './recipe.ts';

interface Options {
  readonly clock?: Clock;
  readonly github?: MemoryGitHub;
  readonly config?: Partial<GithubServiceConfig>;
  readonly tags?: readonly string[];
  /** What pools have besides. */
  readonly pool?: Partial<PoolConfig>;
  /** Of each pool: `ci`, `ci-1` and so on. */
  readonly queues?: readonly string[];
  readonly slots?: Partial<GithubParts['slots']>;
  /** Signs in with this token instead of as the App. */
  readonly token?: string;
}

const memory = (text: string) => ({ kind: 'memory', name: 'the test', expires: null, read: () => text }) as const;

/** With which webhooks are signed. */
export const hookSecret = 'the secret of webhooks';

/** What a sandbox says of its image. */
export const inside = 'root=/opt/agent\nwritable=yes\nversion=2.336.0\nend=yes\n';

export function githubService(options: Options = {}) {
  const {
    pool = {},
    clock = systemClock,
    github = memoryGitHub({ clock }),
    tags = [],
    queues = ['acme'],
    slots = {},
    token,
  } = options;
  const dir = scratch();
  const store = openInstantStore(join(dir.path, 'state'));
  const live = new Set<string>();
  const key = github.app.key.export({ type: 'pkcs8', format: 'pem' }).toString();
  const credential: GithubCredential =
    token === undefined
      ? { kind: 'app', id: github.app.id, privateKey: memory(key), installation: null }
      : { kind: 'token', token: memory(token) };
  const config: GithubServiceConfig = {
    name: 'hub',
    type: 'github',
    url: github.origin,
    credential,
    group: 'Default',
    mode: 'jit',
    webhook: null,
    docker: null,
    forks: 'refuse',
    public: 'refuse',
    pollEvery: 20,
    bootTimeout: 60_000,
    agentPackage: { version: null, from: null, sha256: null },
    mountedRunner: null,
    ...options.config,
  };
  const pools = queues.map((queue, n) => {
    return {
      name: n === 0 ? 'ci' : `ci-${n}`,
      service: 'hub',
      queue,
      tags,
      timeout: null,
      standby: true,
      devices: { count: 0 },
      recipe: bareRecipe,
      ...pool,
    };
  }) as unknown as PoolConfig[];
  const common = { base: github.api, clock, fetch: github.fetch, version: '0.0.0' };
  const client = new GithubClient({ ...common, credential, secret: async () => token ?? key });
  const log = createLog({ json: true, stream: new PassThrough() });
  const sets = config.mode === 'jit' ? null : new ScaleSets({ ...common, url: config.url, client, owner: 'onejob-test', log });
  const parts: GithubParts = {
    config,
    pools,
    store,
    clock,
    client,
    sets,
    log,
    random: () => 0.5,
    opened: new Set(['hub']),
    slots: {
      poolOf: (agent) => (live.has(agent) ? 'ci' : null),
      silentFor: () => null,
      isBusy: () => false,
      sizeOf: () => 2,
      ...slots,
    },
  };
  const service = createGithub(parts);
  return {
    github,
    service,
    client,
    store,
    live,
    key,
    parts,
    close(): void {
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

/** The configuration that a script gives its runner. */
export function jitIn(script: string): string {
  const found = /ACTIONS_RUNNER_INPUT_JITCONFIG='([^']+)'/.exec(script)?.[1];
  if (found === undefined) throw new Error('the script has no runner');
  return found;
}

/** What registers an agent in slot 1 of pool `ci`. */
export const contextOf = (agent: string, more: Partial<AgentContext> = {}): AgentContext => ({
  agent,
  pool: 'ci',
  slot: 'ci/1',
  name: 'box-1',
  workspace: '/workspace',
  job: null,
  devices: [],
  cuda: null,
  ask: async () => inside,
  isRemote: false,
  hostAddress: async () => '127.0.0.1',
  ...more,
});

/** What the script in front of a job says of it. */
export const jobLine = (more: object = {}): string =>
  `onejob: job ${JSON.stringify({
    repository: 'acme/demo',
    run: 7_000,
    number: 12,
    workflow: 'CI',
    name: 'build',
    event: 'push',
    ref: 'refs/heads/main',
    refused: null,
    ...more,
  })}`;
