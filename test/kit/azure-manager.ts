/** For tests of the service: one manager on a state directory, with slots of its own, and what its image would say of itself. */
import { Writable } from 'node:stream';
import { createLog } from '../../src/base/log.ts';
import { AzureClient } from '../../src/ci/azure-pipelines/client.ts';
import { createCredential } from '../../src/ci/azure-pipelines/credential.ts';
import { type AzurePool, queuesOf } from '../../src/ci/azure-pipelines/pools.ts';
import { makeAgentKey } from '../../src/ci/azure-pipelines/script.ts';
import { createAzurePipelines } from '../../src/ci/azure-pipelines/service.ts';
import type { AzureServiceConfig } from '../../src/ci/azure-pipelines/type.ts';
import type { Clock } from '../../src/core/clock.ts';
import type { AgentId } from '../../src/core/slot.ts';
import type { AgentContext, CiEvent, CiService, Registration } from '../../src/ports/ci-service.ts';
import type { Store } from '../../src/store/store.ts';
import { type HandAgent, handAgentFromFiles } from '../standins/azure-devops/hand-agent.ts';
import type { AzureDevOps } from '../standins/azure-devops/types.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { memory, patient } from './azure.ts';
import type { World } from './azure-service.ts';
import { agentContext } from './ci-contract.ts';

/** One is enough for agents that never meet; making them takes most of a test's time. */
const oneKey = makeAgentKey();

export interface ManagerOptions {
  readonly dir?: string;
  readonly config?: Partial<AzureServiceConfig> | undefined;
  readonly pools?: readonly AzurePool[] | undefined;
  /** Names of other services that the same manager has opened. */
  readonly opened?: readonly string[] | undefined;
  /** What its token may, instead of everything. */
  readonly pat?: Parameters<AzureDevOps['addPat']>[0] | undefined;
}

export interface Manager {
  readonly dir: string;
  readonly store: Store;
  readonly service: ReturnType<typeof createAzurePipelines>;
  readonly client: AzureClient;
  readonly events: CiEvent[];
  /** Slots' agents; `since`: when an agent was released that was not seen since, core clock. */
  readonly slots: Map<AgentId, { readonly pool: string; since: number | null }>;
  /** Why pools are held. */
  readonly held: Map<string, string>;
  context(agent: AgentId, o?: Partial<AgentContext> & { readonly inside?: string }): AgentContext;
  /** As of a standby of a slot. */
  register(agent: AgentId, o?: Partial<AgentContext> & { readonly inside?: string }): Promise<Registration>;
  /** Registers it, lets it go online, and has it seen. */
  start(agent: AgentId, o?: Parameters<Manager['register']>[1] & { readonly says?: Record<string, string> }): Promise<HandAgent>;
  /** Its sandbox is gone: what the loop does then. */
  end(agent: AgentId): Promise<Awaited<ReturnType<CiService['deregister']>>>;
  /** Looks at the service from now on. */
  watch(): Promise<void>;
  /** Whether a look is under way. */
  isLooking(): boolean;
  /** As by `kill -9`: nothing is done any more. */
  stop(): void;
  /** Stops it; the next one on its state. */
  next(o?: Omit<ManagerOptions, 'dir'>): Manager;
  of<K extends CiEvent['kind']>(kind: K): Extract<CiEvent, { kind: K }>[];
}

/** What `lookInside` says of an image that onejob builds, with more lines of facts and of its environment. */
export const inside = (facts = '', environment = ''): string =>
  `root=/opt/agent\nwritable=yes\nversion=5.278.0\ntool=git=/usr/bin/git\nuid=1000\narch=x86_64\n${facts}environment\nexport PATH='/usr/bin:/bin'\n${environment}`;

export function openManager(
  world: World,
  send: typeof fetch,
  { dir, config, pools, opened, pat }: ManagerOptions & { dir: string },
): Manager {
  const { azure, clock, said } = world;
  const store = openInstantStore(dir);
  const inFile = { kind: 'file', path: world.tokenFile, expires: null } as const;
  const whole: AzureServiceConfig = {
    name: 'azure',
    type: 'azure-pipelines',
    url: azure.url,
    credential: { kind: 'pat', token: pat === undefined ? inFile : memory(tokenOf(world, pat)) },
    registration: 'manager',
    pollEvery: 10_000,
    bootTimeout: 180_000,
    agentPackage: { version: null, from: null, sha256: null },
    ...config,
  };
  const url = whole.url;
  const credential = createCredential(whole.credential, { clock, url, fetch: send });
  const client = new AzureClient({ url, credential, clock, fetch: send, version: '0.0.0' });
  const served = pools ?? [{ name: 'ci', queue: 'gpu', tags: [] }];
  const slots: Manager['slots'] = new Map();
  const events: CiEvent[] = [];
  const held = new Map<string, string>();
  const alive = new AbortController();
  let isOpen = true;
  /** Watches that wait for their next look; only they set timers on the service's own clock. */
  let waiting = 0;
  let watches = 0;
  const watched: Clock = {
    ...clock,
    after(ms, fn) {
      waiting += 1;
      return clock.after(ms, () => {
        waiting -= 1;
        fn();
      });
    },
  };
  const stream = new Writable({
    write(line: Buffer, _, done) {
      said.push(line.toString());
      done();
    },
  });
  const service = createAzurePipelines({
    config: whole,
    pools: served,
    store,
    client,
    clock: watched,
    log: createLog({ json: true, stream }),
    makeKey: () => oneKey,
    random: () => 0.5,
    opened: new Set([whole.name, ...(opened ?? [])]),
    slots: {
      poolOf: (agent) => slots.get(agent)?.pool ?? null,
      silentFor(agent) {
        const since = slots.get(agent)?.since ?? null;
        return since === null ? null : clock.now() - since;
      },
      isBusy: (agent) => events.some((event) => event.kind === 'jobSeen' && event.agent === agent),
    },
  });

  /** What the loop makes of an event, as far as the service sees it. */
  const follow = (event: CiEvent): void => {
    if (!isOpen) return;
    events.push(event);
    said.push(JSON.stringify(event));
    if (event.kind === 'hold' && event.reason === null) held.delete(event.pool);
    if (event.kind === 'hold' && event.reason !== null) held.set(event.pool, event.reason);
    if (event.kind === 'online') {
      const slot = slots.get(event.agent);
      if (slot !== undefined) slots.set(event.agent, { ...slot, since: null });
    }
  };

  const manager: Manager = {
    dir,
    store,
    service,
    client,
    events,
    slots,
    held,
    context: (agent, { inside: text = inside(), ...more } = {}) => agentContext(agent, { ask: async () => text, ...more }),
    register(agent, o) {
      const context = manager.context(agent, o);
      slots.set(agent, { pool: context.pool, since: null });
      return service.register(context, patient);
    },
    async start(agent, { says = {}, ...o } = {}) {
      const registration = await manager.register(agent, o);
      slots.set(agent, { pool: o.pool ?? 'ci', since: clock.now() });
      const one = handAgentFromFiles(filesOf(registration.script));
      await one.signIn(clock.wall());
      await one.open({ 'Agent.Version': '5.278.0', ...says });
      return one;
    },
    async end(agent) {
      const context = manager.context(agent);
      const ended = await service.deregister(context, patient);
      slots.delete(agent);
      return ended;
    },
    async watch() {
      // Without pools there is one that looks after what is left.
      watches = Math.max(1, queuesOf(served).length);
      service.observe(follow, alive.signal);
      await world.quiet();
    },
    isLooking: () => isOpen && waiting < watches,
    stop() {
      if (!isOpen) return;
      isOpen = false;
      alive.abort();
      store.close();
    },
    next(o) {
      manager.stop();
      return world.manager({ ...o, dir });
    },
    of: <K extends CiEvent['kind']>(kind: K) =>
      events.filter((event): event is Extract<CiEvent, { kind: K }> => event.kind === kind),
  };
  return manager;
}

function tokenOf({ azure, secrets }: World, pat: NonNullable<ManagerOptions['pat']>): string {
  const token = azure.addPat(pat);
  secrets.push(token);
  return token;
}

type Files = Parameters<typeof handAgentFromFiles>[0];

/** The files that a script writes, as `sh` would. */
export function filesOf(script: string): Files {
  const written = [...script.matchAll(/printf '%s' '((?:[^']|'\\'')*)' >(\S+)/g)];
  const file = (name: keyof Files): string => written.find(([, , path]) => path === name)?.[1]?.replaceAll("'\\''", "'") ?? '';
  return {
    '.agent': file('.agent'),
    '.credentials': file('.credentials'),
    '.credentials_rsaparams': file('.credentials_rsaparams'),
  };
}
