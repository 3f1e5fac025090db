/** The service on a Gitea in memory. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { createLog } from '../../src/base/log.ts';
import { GiteaClient } from '../../src/ci/gitea/client.ts';
import { createRunnerKeys } from '../../src/ci/gitea/keys.ts';
import type { GiteaParts } from '../../src/ci/gitea/parts.ts';
import { createGitea } from '../../src/ci/gitea/service.ts';
import type { GiteaServiceConfig } from '../../src/ci/gitea/type.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { Clock } from '../../src/core/clock.ts';
import type { Exit } from '../../src/core/slot.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { scratch } from '../support/scratch.ts';
import { type MemoryGitea, memoryGitea } from './gitea.ts';
import { bareRecipe } from './recipe.ts';

interface Options {
  readonly gitea?: MemoryGitea;
  readonly clock?: Clock;
  readonly tags?: readonly string[];
  /** Of each pool: `ci`, `ci-1` and so on. */
  readonly queues?: readonly string[];
  readonly slots?: Partial<GiteaParts['slots']>;
  /** What pools have besides. */
  readonly pool?: Partial<PoolConfig>;
  readonly program?: Partial<GiteaParts['program']>;
}

/** The server in memory gives no runner a job that it began to pick earlier, so nothing has to be waited for. */
const quick: Clock = { ...systemClock, after: (ms, then) => systemClock.after(ms === 1_000 ? 1 : ms, then) };

export function giteaService(options: Options = {}) {
  const { gitea = memoryGitea(), clock = quick, tags = [], queues = ['acme'], slots = {}, pool = {}, program = {} } = options;
  const dir = scratch();
  const store = openInstantStore(join(dir.path, 'state'));
  const live = new Set<string>();
  const exits = new Map<string, Exit>();
  const config: GiteaServiceConfig = {
    name: 'forge',
    type: 'gitea',
    url: gitea.url,
    pollEvery: 20,
    bootTimeout: 60_000,
    binding: 'early',
    token: { kind: 'memory', name: 'the test', expires: null, read: () => 'secret-token' },
    agentPackage: { version: null, from: null, sha256: null },
  };
  const pools = queues.map((queue, n) => {
    return { name: n === 0 ? 'ci' : `ci-${n}`, service: 'forge', queue, tags, timeout: 3_600_000, recipe: bareRecipe, ...pool };
  }) as unknown as PoolConfig[];
  const keyDir = join(dir.path, 'keys');
  mkdirSync(keyDir);
  const service = createGitea({
    config,
    pools,
    store,
    clock,
    random: () => 0.5,
    opened: new Set(['forge']),
    client: new GiteaClient({ url: gitea.url, token: async () => 'secret-token', clock, fetch: gitea.fetch, version: '0.0.0' }),
    program: { folder: '/tools/at-1', ready: async () => '/tools/at-1/gitea-runner', state: { kind: 'unknown' }, ...program },
    keys: createRunnerKeys(keyDir),
    exitOf: (agent) => exits.get(agent) ?? null,
    log: createLog({ json: true, stream: new PassThrough() }),
    slots: { poolOf: (agent) => (live.has(agent) ? 'ci' : null), silentFor: () => null, isBusy: () => false, ...slots },
  });
  /** The runner of a script, as a runner reads it. */
  const runnerOf = (script: string) => {
    const uuid = /"uuid":"([^"]+)"/.exec(script)?.[1] ?? '';
    const found = gitea.byUuid(uuid);
    if (found === undefined) throw new Error('the script has no runner');
    return found;
  };
  return {
    gitea,
    service,
    store,
    live,
    exits,
    keyDir,
    runnerOf,
    close(): void {
      store.close();
      dir[Symbol.dispose]();
    },
  };
}
