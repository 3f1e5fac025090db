/** Gitea bound late, on a Gitea in memory. */
import { join } from 'node:path';
import { Seal } from '../../src/ci/filter/seal.ts';
import { GiteaClient } from '../../src/ci/gitea/client.ts';
import { askEvery, createLateGitea, GiteaPort, openRunnerFiles, schemas } from '../../src/ci/gitea/late.ts';
import type { GiteaServiceConfig } from '../../src/ci/gitea/type.ts';
import { LateRows } from '../../src/ci/kit/job-rows.ts';
import { openJobFiles } from '../../src/ci/late/jobs.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { SecretKeys } from '../../src/secrets/keys.ts';
import { fakeFilter, testPool } from './buildkite-manager.ts';
import { type MemoryGitea, memoryGitea } from './gitea.ts';
import { type LateOptions, lateBench, lateHost } from './late-bench.ts';

interface Options extends LateOptions {
  readonly gitea?: MemoryGitea;
  readonly pool?: Partial<PoolConfig>;
  readonly keys?: SecretKeys;
}

export type LateBench = ReturnType<typeof lateGitea>;

export function lateGitea({ gitea = memoryGitea(), pool: more = {}, keys, ...options }: Options = {}) {
  const here = lateHost(options);
  const { clock, log, store, track } = here;
  const files = openJobFiles(join(store.dir, 'jobs-forge'), { schemas });
  const runners = openRunnerFiles(join(store.dir, 'runners-forge'));
  const config: GiteaServiceConfig = {
    name: 'forge',
    type: 'gitea',
    url: gitea.url,
    pollEvery: 5_000,
    bootTimeout: 60_000,
    binding: 'late',
    token: { kind: 'memory', name: 'the test', expires: null, read: () => 'secret-token' },
    agentPackage: { version: null, from: null, sha256: null },
  };
  const pool = testPool({ service: 'forge', queue: 'acme', tags: [], ...more });
  const client = new GiteaClient({
    url: gitea.url,
    token: async () => 'secret-token',
    clock,
    fetch: gitea.fetch,
    version: '0.0.0',
  });
  const program = {
    folder: '/tools/at-1',
    ready: async () => '/tools/at-1/gitea-runner',
    state: { kind: 'unknown' } as const,
  };
  const own = { config, client, program, clock, log, owner: '0123456789abcdef' };
  const port = new GiteaPort({
    ...own,
    host: 'box',
    pool,
    runners: { ...runners, keep: (id, one) => track(runners.keep(id, one)) },
    held: files.all().map((found) => ('given' in found ? found.given.runner.id : found.begun.runner.id)),
  });
  const service = createLateGitea({
    ...own,
    port,
    images: [],
    pollEvery: askEvery,
    pools: [pool],
    stateDir: store.dir,
    left: here.left,
    filter: fakeFilter,
    places: new Map(),
    minFree: 0,
    files: { ...files, keep: (id, one) => track(files.keep(id, one)) },
    rows: new LateRows('forge', { store, clock, log }, (one) => ({
      ...port.aboutOf(one),
      id: `forge-${port.idOf(port.keyOf(one))}`,
    })),
    admission: { keys: async () => keys ?? null, pins: { of: () => [], first: (_, pipeline) => [pipeline] } },
    slots: here.slots,
    random: () => 0,
    exitOf: here.exitOf,
    known: here.known,
  });
  const bench = lateBench(here, service);
  return {
    ...bench,
    service,
    gitea,
    files: () =>
      files
        .all()
        .map((found) => ('given' in found ? `${port.idOf(port.keyOf(found.given))} whole` : `${port.idOf(found.begun)} begun`)),
    /** Ids of runners on disk that have no task. */
    waitingRunners: () => runners.all().map(({ id }) => id),
    /** What the runner of a script gets from the filter; null: nothing (any more). */
    async givenBy(script: string) {
      const token = /"token":"(ojf_[\w-]+)"/.exec(script)?.[1] ?? '';
      const sealed = new Seal(new Uint8Array(32)).open(token);
      const answer = await here.left.take(sealed?.file ?? '', sealed?.token ?? '');
      return answer === null ? null : { sealed, answer };
    },
    /** The manager ends, and so do its jobs. */
    async end(): Promise<void> {
      const closed = service.close?.(false);
      await bench.pass(6_000);
      await closed;
    },
  };
}
