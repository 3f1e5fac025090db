/**
 * For tests of the service: a stand-in for Azure DevOps, a clock that both sides share and that is moved by hand, and managers that
 * come and go on state directories of their own. After each test everything that was written or said is searched for secrets.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { afterEach, expect } from 'vitest';
import { type HandAgent, handAgentFromFiles } from '../../../test/standins/azure-devops/hand-agent.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../../../test/standins/azure-devops/standin.ts';
import { scratch } from '../../../test/support/scratch.ts';
import type { AzureServiceConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { createLog } from '../../log.ts';
import { openStore, type Store } from '../../store/store.ts';
import type { AgentContext, CiEvent, CiService, Registration } from '../ci-service.ts';
import { type AzureClient, createAzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { makeAgentKey } from './key.ts';
import { type AzurePool, createAzurePipelines } from './service.ts';
import { type HandClock, handClock, patient } from './testing.ts';

/** One is enough for agents that never meet; making them takes most of a test's time. */
const oneKey = makeAgentKey();

export interface World {
  readonly azure: AzureDevOps;
  /** Id of the agent pool `gpu`. */
  readonly pool: number;
  readonly clock: HandClock;
  /** Holds the PAT of the stand-in. */
  readonly tokenFile: string;
  /** Everything that people could have read: log lines, events, failures. */
  readonly said: string[];
  /** Values that must stand nowhere. */
  readonly secrets: string[];
  manager(o?: ManagerOptions): Manager;
  /** Until nothing goes on that needs no time. */
  quiet(): Promise<void>;
  /** Lets time pass, and everything happen that happens in it. */
  pass(ms: number): Promise<void>;
  /** The error that a promise fails with. */
  failure(promise: Promise<unknown>): Promise<OnejobError>;
  /** How often the service was asked since `from` (a length of its log). */
  asked(from: number, route?: string, method?: string): number;
  /** Names of the entries in a pool. */
  names(pool?: number): string[];
}

export interface WorldOptions extends StandInOptions {
  /** Part of the address of requests that are not waited for, since nobody answers them. */
  readonly notAwaited?: string;
}

export interface ManagerOptions {
  readonly dir?: string;
  readonly config?: Partial<AzureServiceConfig>;
  readonly pools?: readonly AzurePool[];
}

export interface Manager {
  readonly dir: string;
  readonly store: Store;
  readonly service: CiService;
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
  of<K extends CiEvent['kind']>(kind: K): Extract<CiEvent, { kind: K }>[];
}

/** What `lookInside` says of an image that onejob builds, with more lines of facts and of its environment. */
export const inside = (facts = '', environment = ''): string =>
  `root=/opt/agent\nwritable=yes\nversion=5.278.0\ntool=git=/usr/bin/git\nuid=1000\narch=x86_64\n${facts}environment\nexport PATH='/usr/bin:/bin'\n${environment}`;

/** Registers what happens after each test; the answer opens a world for one. */
export function worlds(): (o?: WorldOptions) => Promise<World> {
  const open: { close(): Promise<void> }[] = [];
  afterEach(async () => {
    for (const one of open.splice(0)) await one.close();
  });
  return async (options = {}) => {
    const { world, close } = await openWorld(options);
    open.push({ close });
    return world;
  };
}

async function openWorld({ notAwaited, ...options }: WorldOptions) {
  const clock = handClock(Date.now());
  const day = 86_400_000;
  const azure = await startAzureDevOps({ now: () => clock.wall(), sessionMs: day, tokenMs: day, pollHoldMs: 10, ...options });
  const pool = azure.addPool('gpu', { autoUpdate: false });
  const files = scratch();
  const tokenFile = join(files.path, 'pat');
  writeFileSync(tokenFile, `${azure.pat}\n`, { mode: 0o600 });
  const said: string[] = [];
  const secrets = [azure.pat, azure.principal.secret];
  const managers: Manager[] = [];
  let inFlight = 0;
  const counted: typeof fetch = async (...sent) => {
    if (notAwaited !== undefined && String(sent[0]).includes(notAwaited)) return fetch(...sent);
    inFlight += 1;
    try {
      const answer = await fetch(...sent);
      const body = await answer.arrayBuffer();
      return new Response(body.byteLength === 0 ? null : body, { status: answer.status, headers: answer.headers });
    } finally {
      inFlight -= 1;
    }
  };

  const world: World = {
    ...{ azure, pool, clock, tokenFile, said, secrets },
    manager(o = {}) {
      const one = openManager(world, counted, { dir: join(files.path, `state${managers.length}`), ...o });
      managers.push(one);
      return one;
    },
    async quiet() {
      // A look that waits for the clock, as the service has asked for, cannot be told from one that waits for a file.
      for (let calm = 0; calm < (managers.some((one) => one.isLooking()) ? 40 : 3); calm += 1) {
        await stat('/');
        await new Promise((resolve) => setImmediate(resolve));
        if (inFlight > 0) calm = -1;
      }
    },
    async pass(ms) {
      const end = clock.now() + ms;
      await world.quiet();
      for (let next = clock.next(); next !== null && clock.now() + next <= end; next = clock.next()) {
        clock.advance(next);
        await world.quiet();
      }
      clock.advance(end - clock.now());
      await world.quiet();
    },
    async failure(promise) {
      try {
        await promise;
      } catch (error) {
        const { code, message } = toFailure(error);
        said.push(`${code} ${message}`);
        expect(error).toBeInstanceOf(OnejobError);
        return error as OnejobError;
      }
      throw new Error('it did not fail');
    },
    asked: (from, route, method) =>
      azure.log
        .slice(from)
        .filter((one) => one.identity !== 'agent' && one.identity !== 'job')
        .filter((one) => (route === undefined || one.route === route) && (method === undefined || one.method === method)).length,
    names: (id = pool) => azure.agents(id).map(({ name }) => name),
  };

  return {
    world,
    async close() {
      await world.quiet();
      for (const one of managers) one.stop();
      await azure[Symbol.asyncDispose]();
      const forms = secrets.flatMap((one) => [one, Buffer.from(one).toString('base64'), Buffer.from(`:${one}`).toString('base64')]);
      const states = readdirSync(files.path, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
      const written = states
        .map((file) => join(file.parentPath, file.name))
        .filter((path) => path !== tokenFile)
        .map((path) => [path, readFileSync(path, 'latin1')] as const);
      files[Symbol.dispose]();
      for (const secret of forms) {
        for (const line of said) expect(line).not.toContain(secret);
        for (const [path, text] of written) expect(text.includes(secret), `a secret in ${path}`).toBe(false);
      }
      expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
      expect(azure.strays).toEqual([]);
    },
  };
}

function openManager(world: World, send: typeof fetch, { dir, config, pools }: ManagerOptions & { dir: string }): Manager {
  const { azure, clock, said } = world;
  const store = openStore(dir);
  const whole: AzureServiceConfig = {
    name: 'azure',
    type: 'azure-pipelines',
    url: azure.url,
    credential: { kind: 'pat', token: { kind: 'file', path: world.tokenFile, expires: null } },
    registration: 'manager',
    pollEvery: 10_000,
    bootTimeout: 180_000,
    agentPackage: { version: null, from: null, sha256: null },
    ...config,
  };
  const url = whole.url;
  const credential = createCredential(whole.credential, { clock, wall: () => clock.wall(), url, fetch: send });
  const client = createAzureClient({ url, credential, clock, fetch: send, version: '0.0.0' });
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
    ...{ store, client, clock: watched, log: createLog({ json: true, stream }) },
    token: async () => azure.pat,
    makeKey: () => oneKey,
    random: () => 0.5,
    isLive: (agent) => slots.has(agent),
    poolOf: (agent) => slots.get(agent)?.pool ?? null,
    silentFor(agent) {
      const since = slots.get(agent)?.since ?? null;
      return since === null ? null : clock.now() - since;
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
    ...{ dir, store, service, client, events, slots, held },
    context(agent, { inside: text = inside(), ...more } = {}) {
      const pool = more.pool ?? 'ci';
      const common = { agent, pool, slot: `${pool}/1`, name: 'box-1', workspace: '/workspace', job: null, devices: [], cuda: null };
      return { ...common, ask: async () => text, ...more };
    },
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
      watches = new Set(served.map(({ queue }) => queue)).size;
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
    of: <K extends CiEvent['kind']>(kind: K) =>
      events.filter((event): event is Extract<CiEvent, { kind: K }> => event.kind === kind),
  };
  return manager;
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
