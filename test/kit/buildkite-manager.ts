/**
 * For tests of the service: a manager with slots whose lanes are moved by hand, the Stacks API in memory, a store on disk, and time
 * that is moved by hand. What the loop would do about an event is done here only as far as the service could see it.
 */

import { join } from 'node:path';
import { OnejobError } from '../../src/base/errors.ts';
import type { Log } from '../../src/base/log.ts';
import { admit } from '../../src/ci/buildkite/jobs/admission.ts';
import { createJobRows } from '../../src/ci/buildkite/jobs/job-rows.ts';
import type { BuildkiteParts } from '../../src/ci/buildkite/parts.ts';
import { createBuildkite } from '../../src/ci/buildkite/service.ts';
import { createStackEntry } from '../../src/ci/buildkite/stacks/stacks.ts';
import type { BuildkiteServiceConfig } from '../../src/ci/buildkite/type.ts';
import type { Filter } from '../../src/ci/filter/filter.ts';
import { Seal } from '../../src/ci/filter/seal.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { AgentId, Change, JobId } from '../../src/core/slot.ts';
import type { AgentContext, CiEvent, CiService, JobSource } from '../../src/ports/ci-service.ts';
import type { Store } from '../../src/store/store.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { type Scratch, scratch } from '../support/scratch.ts';
import { type FakeStacks, fakeStacks } from './buildkite-stacks.ts';
import { type HandClock, handClock } from './core.ts';
import { bareRecipe } from './recipe.ts';

export interface ManagerOptions {
  readonly stacks?: FakeStacks;
  readonly dir?: Scratch;
  readonly pools?: readonly PoolConfig[];
  readonly parts?: Partial<BuildkiteParts>;
}

export interface Manager extends AsyncDisposable {
  readonly stacks: FakeStacks;
  /** Agents that slots have. */
  readonly live: Set<AgentId>;
  readonly clock: HandClock;
  readonly log: ReturnType<typeof keptLog>;
  readonly store: Store;
  readonly service: CiService;
  readonly jobs: Required<Pick<JobSource, 'next' | 'record' | 'committed' | 'rolledBack' | 'offer' | 'recipeFor'>>;
  readonly events: CiEvent[];
  /** Why pools are held. */
  readonly held: Map<string, string>;
  /** Jobs that slots have, in whatever lane. */
  readonly lanes: Map<string, JobId[]>;
  /** What the token's source says; an error is thrown. */
  token: string | OnejobError;
  /** What looking for the agent's program says; null: it is there. */
  program: OnejobError | null;
  /** Why the private keys cannot be read; null: config has none. */
  keys: OnejobError | null;
  /** Listens from now on. */
  watch(): Promise<void>;
  /** Lets time pass, and everything happen that happens in it. */
  pass(ms: number): Promise<void>;
  /** As one commit of the loop. */
  commit(...changes: Change[]): void;
  context(agent: AgentId, job: JobId | null, more?: Partial<AgentContext>): AgentContext;
  of<K extends CiEvent['kind']>(kind: K): Extract<CiEvent, { kind: K }>[];
  /** As by `kill -9`: nothing is done any more, and nobody is told. */
  stop(): void;
}

const never = new AbortController().signal;

/** What the service gives with a job of the pipeline `acme/app`, of its own repository. */
export const trustedEnv: Readonly<Record<string, string>> = {
  BUILDKITE_ORGANIZATION_SLUG: 'acme',
  BUILDKITE_PIPELINE_SLUG: 'app',
  BUILDKITE_BRANCH: 'main',
  BUILDKITE_REPO: 'https://github.com/acme/app.git',
  BUILDKITE_PULL_REQUEST: 'false',
  BUILDKITE_BUILD_NUMBER: '7',
  BUILDKITE_LABEL: 'unit tests',
};
export const forkEnv: Readonly<Record<string, string>> = {
  ...trustedEnv,
  BUILDKITE_PULL_REQUEST: '12',
  BUILDKITE_PULL_REQUEST_REPO: 'https://github.com/stranger/app.git',
};

export function testPool(more: Partial<PoolConfig> = {}): PoolConfig {
  return {
    name: 'ci',
    service: 'bk',
    runtime: 'docker',
    queue: 'default',
    priority: 0,
    agentName: '{host}-{pool}-{n}',
    agents: 1,
    devices: { count: 0, mig: null, model: null, uuids: [] } as unknown as PoolConfig['devices'],
    tags: ['cuda=12', 'cuda=13'],
    standby: true,
    standbyMaxAge: 3_600_000,
    stopGrace: 35_000,
    timeout: null,
    disk: null,
    holdFailed: null,
    trust: {
      forks: 'refuse',
      pipelines: null,
      branches: null,
      repositories: null,
      tags: null,
      sources: null,
      others: 'refuse',
      triggered: 'as-others',
      caches: 'none',
      image: null,
      network: 'default',
      containers: 'refuse',
      oci_runtime: null,
    },
    isolation: 'full',
    hooks: null,
    plugins: null,
    cacheFor: 'slot',
    cacheLimit: 0,
    imageRecipe: null,
    recipe: { ...bareRecipe, image: 'debian', pull: 'missing' },
    ...more,
  };
}

export function testConfig(more: Partial<BuildkiteServiceConfig> = {}): BuildkiteServiceConfig {
  return {
    name: 'bk',
    type: 'buildkite',
    endpoint: 'https://agent.example/v3',
    metricsToken: null,
    registration: 'manager',
    token: { kind: 'memory', name: 'a test', expires: null, read: () => 'registration-token' },
    pollEvery: 10_000,
    bootTimeout: 60_000,
    holdTimeout: 180_000,
    agentPackage: { version: null, from: null, sha256: null },
    ...more,
  };
}

export function openManager({
  stacks = fakeStacks(),
  dir = scratch(),
  pools = [testPool()],
  parts = {},
}: ManagerOptions = {}): Manager {
  const clock = handClock();
  const log = keptLog();
  const store = openInstantStore(join(dir.path, 'state'));
  const live = new Set<AgentId>();
  const lanes = new Map<string, JobId[]>();
  const events: CiEvent[] = [];
  const held = new Map<string, string>();
  const alive = new AbortController();
  const whole: BuildkiteParts = {
    config: testConfig(),
    pools,
    stacks,
    clock,
    log,
    exitOf: (agent: AgentId) => store.history.get(agent)?.exit ?? null,
    stateDir: store.dir,
    places: new Map(),
    host: 'box',
    filter: fakeFilter,
    entry: createStackEntry('bk', stacks, { host: 'box', version: '1.0.0', store, clock }),
    rows: createJobRows('bk', { store, clock, log }),
    async token() {
      if (manager.token instanceof OnejobError) throw manager.token;
      return manager.token;
    },
    admit: (job, pool) =>
      admit(job, {
        trust: pool.trust,
        async keys() {
          if (manager.keys !== null) throw manager.keys;
          return null;
        },
        pins: { of: () => [], first: (_, pipeline) => [pipeline] },
      }),
    program: {
      folder: '/tools/at-1',
      async ready() {
        if (manager.program !== null) throw manager.program;
        return '/tools/at-1/buildkite-agent';
      },
    },
    slots: {
      jobsOf: (slot) => lanes.get(slot) ?? [],
      // A slot has one agent here, and a job at most.
      agentOf: (slot, job) => (lanes.get(slot)?.includes(job) ? ([...live][0] ?? null) : null),
    },
    random: () => 0,
    counts: { waiting: () => null, unserved: () => new Map(), follow: async () => {} },
    check: async () => [],
    ...parts,
  };
  const service = createBuildkite(whole);
  const jobs = service.jobs as Manager['jobs'];
  const manager: Manager = {
    stacks,
    live,
    clock,
    log,
    store,
    service,
    jobs,
    events,
    held,
    lanes,
    token: 'registration-token',
    program: null,
    keys: null,
    async watch() {
      service.observe((event) => {
        events.push(event);
        if (event.kind === 'hold' && event.reason === null) held.delete(event.pool);
        if (event.kind === 'hold' && event.reason !== null) held.set(event.pool, event.reason);
      }, alive.signal);
      await manager.pass(150);
    },
    async pass(ms) {
      // Big leaps in few steps: a test of a deadline has minutes in it.
      const step = Math.max(50, Math.ceil(ms / 200));
      for (let gone = 0; gone < ms; gone += step) {
        await turns();
        clock.advance(Math.min(step, ms - gone));
      }
      await turns();
    },
    commit(...changes) {
      for (const change of changes) jobs.record(change);
      jobs.committed();
    },
    context: (agent, job, more = {}) => ({
      agent,
      pool: 'ci',
      slot: 'ci/1',
      name: 'box-ci-1',
      workspace: '/workspace',
      job,
      devices: [],
      cuda: null,
      ask: () => Promise.reject(new Error('nobody asks')),
      isRemote: false,
      hostAddress: async () => '172.18.0.1',
      ...more,
    }),
    of: <K extends CiEvent['kind']>(kind: K) =>
      events.filter((event): event is Extract<CiEvent, { kind: K }> => event.kind === kind),
    stop: () => alive.abort(),
    async [Symbol.asyncDispose]() {
      alive.abort();
      await service.close?.(true);
      store.close();
      dir[Symbol.dispose]();
    },
  };
  return manager;
}

/** Keeps what it is told. */
export function keptLog(): Log & {
  readonly lines: { readonly level: string; readonly event: string; readonly fields: unknown }[];
} {
  const lines: { level: string; event: string; fields: unknown }[] = [];
  const say = (level: string) => (event: string, fields: unknown) => void lines.push({ level, event, fields });
  return { lines, info: say('info'), warn: say('warn'), error: say('error') };
}

/** One that is always there. */
export const fakeFilter: Filter = {
  start() {},
  check: async () => [],
  listenFor: async () => ({ origin: 'http://172.18.0.1:7070', ca: null, seal: new Seal(new Uint8Array(32)) }),
  close: async () => {},
};

/** Everything that needs no time. */
async function turns(): Promise<void> {
  for (let n = 0; n < 4; n++) await new Promise<void>((resolve) => setImmediate(resolve));
}

export const patient = never;
