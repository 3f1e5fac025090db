/**
 * What every CI service must keep to, whatever stands behind it. A member runs this suite with a subject of its own: its
 * real client against its stand-in, or, for the own queue, the queue itself.
 */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { JobFacts } from '../../src/ci/early/port.ts';
import type { AgentId, Change, JobId } from '../../src/core/slot.ts';
import type { AgentContext, AgentFiles, CiEvent, CiService } from '../../src/ports/ci-service.ts';

export interface CiSubject {
  readonly service: CiService;
  /** A pool the service hands out jobs for. */
  readonly pool: string;
  /** Makes a job wait for that pool; its id. */
  readonly enqueue: () => Promise<string>;
  /** Runs `write` as one commit of the store, which ends as `outcome`. */
  readonly commit: (write: () => void, outcome: 'committed' | 'rolledBack') => void;
  readonly close: () => Promise<void>;
}

/** A service that binds early, and what can be done there that is not onejob's. Its list has one entry that a stranger made. */
export interface EarlySubject extends CiSubject {
  /** Agents that slots have. */
  readonly live: Set<AgentId>;
  /** What an agent's sandbox says when it is asked what is in it. */
  readonly inside: string;
  /** Becomes the agent of this script, and goes online. */
  readonly start: (script: string) => Promise<EarlyAgent>;
  /** Names of all agents that the service lists. */
  readonly listed: () => string[];
  /** Another installation has registered an agent with this name. */
  readonly other: (name: string, isOnline: boolean) => Promise<unknown> | unknown;
  /** The next entry is made, and nobody hears of it. */
  readonly loseAnswer: () => void;
  /** The service answers nobody until what this answers is called. */
  readonly goAway: () => Promise<() => Promise<void>>;
}

export interface EarlyAgent {
  /** Is given a job, and begins it. */
  work(): Promise<JobId>;
  /** Tells the service the result, and ends. */
  finish(): Promise<void>;
}

/** What an early service that knows nothing says of a job, but its title. */
export const noFacts: Omit<JobFacts, 'title'> = {
  definition: null,
  build: null,
  repository: null,
  branch: null,
  reason: null,
  link: null,
  demands: [],
  result: null,
  outcome: null,
  failedIn: null,
  queuedAt: null,
  startedAt: null,
  endedAt: null,
};

/** What a service is told of a standby of the first slot of a pool. */
export function agentContext(
  agent: AgentId,
  { pool = 'ci', ...more }: Partial<AgentContext> & Pick<AgentContext, 'ask'>,
): AgentContext {
  const usual = { slot: `${pool}/1`, name: 'box-1', workspace: '/workspace', job: null, devices: [], cuda: null };
  return { ...usual, agent, pool, isRemote: false, hostAddress: async () => '127.0.0.1', ...more };
}

const never = new AbortController().signal;

const nothing = () => Promise.reject(new Error('nothing to read'));
const unread: AgentFiles = { all: nothing, folder: nothing };

/** Registers the suite. Members that bind early skip what only late binding has. */
export function ciServiceContract(name: string, open: () => Promise<CiSubject>, binds: 'late' | 'early'): void {
  describe(`the CI service ${name}`, () => {
    let subject: CiSubject;
    beforeEach(async () => {
      subject = await open();
    });
    afterEach(() => subject.close());

    const context = (agent: string, job: string | null): AgentContext =>
      agentContext(agent, { pool: subject.pool, job, ask: () => Promise.reject(new Error('no sandbox to ask')) });
    /** The pool's next job, for any slot; where an agent stands for each slot, for the one whose agent was given it. */
    const next = () => {
      const { service, pool } = subject;
      return service.jobs?.next(pool, service.capabilities.standsForSlots ? `${pool}/1` : null) ?? null;
    };
    const record = (change: Change) => subject.commit(() => subject.service.jobs?.record(change), 'committed');

    it('says what it is and has findings for doctor', async () => {
      expect(subject.service.capabilities.binds).toBe(binds);
      for (const finding of await subject.service.check(never, { like: () => null })) {
        expect(finding.message).not.toBe('');
        if (finding.level !== 'ok') expect(finding.hint).not.toBeNull();
      }
    });

    it('takes no notice of jobs and agents it does not know', async () => {
      expect(subject.service.jobs?.next('no such pool', null) ?? null).toBeNull();
      record({ change: 'started', job: 'stranger', agent: 'a1' });
      record({ change: 'worked', stage: 'prepare' });
      await subject.service.settle?.(context('stranger', null), unread, never);
    });

    it('says nothing once nobody listens', async () => {
      const seen: CiEvent[] = [];
      const abort = new AbortController();
      subject.service.observe((event) => seen.push(event), abort.signal);
      abort.abort();
      seen.length = 0;
      await subject.enqueue();
      expect(seen).toEqual([]);
    });

    if (binds === 'early') return;

    it('tells of a waiting job, and of the next one without taking it', async () => {
      const seen: CiEvent[] = [];
      subject.service.observe((event) => seen.push(event), never);
      const job = await subject.enqueue();
      expect(seen).toContainEqual(expect.objectContaining({ kind: 'waiting', pool: subject.pool }));
      expect(next()?.job).toBe(job);
      expect(next()?.job).toBe(job);
    });

    it('offers a job no more once it is taken, and again when it comes back', async () => {
      const job = await subject.enqueue();
      record({ change: 'assigned', job, agent: 'a1' });
      expect(next()).toBeNull();
      record({ change: 'assigned', job, agent: 'a1' });
      record({ change: 'returned', job, agent: 'a1', failure: null });
      expect(next()?.job).toBe(job);
      record({ change: 'returned', job, agent: 'a1', failure: null });
      expect(next()?.job).toBe(job);
    });

    it('has forgotten what was not committed', async () => {
      const job = await subject.enqueue();
      subject.commit(() => subject.service.jobs?.record({ change: 'assigned', job, agent: 'a1' }), 'rolledBack');
      expect(next()?.job).toBe(job);
    });

    it('gives a script that ends by becoming the job', async () => {
      const job = await subject.enqueue();
      record({ change: 'assigned', job, agent: 'a1' });
      const { script } = await subject.service.register(context('a1', job), never);
      expect(script).not.toContain('\0');
      expect(script.trimEnd().split('\n').at(-1)).toMatch(/^exec /);
    });

    it('settles twice as once', async () => {
      const job = await subject.enqueue();
      record({ change: 'assigned', job, agent: 'a1' });
      record({ change: 'started', job, agent: 'a1' });
      record({ change: 'ended', job, agent: 'a1', result: { kind: 'code', code: 0 } });
      await subject.service.settle?.(context('a1', job), unread, never);
      await subject.service.settle?.(context('a1', job), unread, never);
      record({ change: 'settled', job, agent: 'a1' });
      record({ change: 'settled', job, agent: 'a1' });
      subject.service.jobs?.syncing()();
      expect(next()).toBeNull();
    });
  });
}

/** Registers the suite for one that binds early, with what only these have. */
export function earlyBoundContract(name: string, open: () => Promise<EarlySubject>): void {
  ciServiceContract(name, open, 'early');

  describe(`the CI service ${name}, which binds early`, () => {
    let subject: EarlySubject;
    let service: CiService;
    let watching: AbortController;
    let seen: CiEvent[];
    beforeEach(async () => {
      subject = await open();
      service = subject.service;
      watching = new AbortController();
      seen = [];
    });
    afterEach(async () => {
      watching.abort();
      await subject.close();
    });

    const contextOf = (agent: AgentId): AgentContext =>
      agentContext(agent, { pool: subject.pool, ask: async () => subject.inside });
    const register = async (agent: AgentId): Promise<string> => {
      subject.live.add(agent);
      return (await service.register(contextOf(agent), never)).script;
    };
    const start = async (agent: AgentId): Promise<EarlyAgent> => subject.start(await register(agent));
    const watch = () => service.observe((event) => seen.push(event), watching.signal);
    const ours = () => subject.listed().filter((one) => one.startsWith('box-1-'));
    const soon = <T>(what: () => T) => expect.poll(what, { timeout: 10_000 });

    it('has no source of jobs', () => {
      expect(service.jobs).toBeNull();
    });

    it('gives each agent a script of its own that ends by becoming the agent', async () => {
      const scripts = [await register('a1'), await register('a2')];
      for (const script of scripts) expect(script.trimEnd().split('\n').at(-1)).toMatch(/^exec /);
      expect(scripts[0]).not.toBe(scripts[1]);
      expect(ours()).toHaveLength(2);
    });

    it('has one entry of an agent whose first answer was lost', async () => {
      await register('a1');
      subject.loseAnswer();
      await expect(register('a2')).rejects.toMatchObject({ retry: true });
      await register('a2');
      expect(ours()).toHaveLength(2);
    });

    it('tells who is online, and who has which job', async () => {
      const agent = await start('a1');
      watch();
      await soon(() => seen).toContainEqual({ kind: 'online', agent: 'a1' });
      const job = await agent.work();
      await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job });
      await soon(() => service.serviceJobs?.()).toMatchObject([{ id: job, agent: 'a1', pool: subject.pool, state: 'running' }]);
    });

    it('retires an agent so that no job comes to it, and answers the one that has', async () => {
      const job = await (await start('a1')).work();
      await start('a2');
      expect(await service.retire('a1', never)).toBe(job);
      expect(await service.retire('a2', never)).toBeNull();
      await subject.enqueue();
      expect(await service.retire('a2', never)).toBeNull();
    });

    it('lets an agent end that has no job, and that gets none', async () => {
      await start('a1');
      await service.ending?.({ agent: 'a1', job: null, why: 'shutdown', released: true }, never);
      await subject.enqueue();
      expect(await service.retire('a1', never)).toBeNull();
    });

    it('forgets an agent with what it ran, twice as once', async () => {
      const agent = await start('a1');
      const job = await agent.work();
      watch();
      await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job });
      await agent.finish();
      expect(await service.deregister(contextOf('a1'), never)).toEqual({ ran: job });
      expect(await service.deregister(contextOf('a1'), never)).toEqual({ ran: job });
      expect(ours()).toEqual([]);
    });

    it('removes what is left of agents that are gone, and nothing of strangers', async () => {
      await register('a1');
      await register('a2');
      subject.live.delete('a1');
      watch();
      await soon(ours).toEqual([expect.stringMatching(/-a2$/)]);
      expect(subject.listed()).toHaveLength(2);
    });

    describe('what another installation has left behind', () => {
      const gone = ['burst-3fa9c1-ci-1-0123abcd-a1', 'burst-3fa9c1-ci-2-0123abcd-b1'];
      const isOurs = (name: string) => name.startsWith('burst-3fa9c1-');

      it('is removed by its names if it is offline, and nothing else is', async () => {
        for (const name of gone) await subject.other(name, false);
        const kept = ['burst-3fa9c1-ci-3-0123abcd-c1', 'burst-3fa9c2-ci-1-4567abcd-a1', 'burst-3fa9c1-by-hand'];
        for (const name of kept) await subject.other(name, name === kept[0]);
        await register('a1');
        const before = subject.listed();
        const dry = await service.removeNamed?.(isOurs, never, { dryRun: true });
        expect(subject.listed()).toEqual(before);
        const found = await service.removeNamed?.(isOurs, never);
        expect(found).toMatchObject({ left: [kept[0]], unknown: [] });
        expect(found?.removed.toSorted()).toEqual(gone);
        expect(dry).toEqual(found);
        expect(subject.listed().toSorted()).toEqual(before.filter((name) => !gone.includes(name)).toSorted());
        expect(await service.removeNamed?.(isOurs, never)).toMatchObject({ removed: [], left: [kept[0]] });
      });

      it('stays while the service is away, and nothing of this one is touched by any name', async () => {
        for (const name of gone) await subject.other(name, false);
        await register('a1');
        const before = subject.listed();
        const comeBack = await subject.goAway();
        const away = await service.removeNamed?.(isOurs, never);
        expect(away).toMatchObject({ removed: [], unknown: [expect.stringMatching(/./)] });
        await comeBack();
        await service.removeNamed?.(() => true, never);
        expect(subject.listed().toSorted()).toEqual(before.filter((name) => !gone.includes(name)).toSorted());
      });
    });

    it('holds its pool while the service is away, and concludes nothing', async () => {
      await start('a1');
      watch();
      await soon(() => seen).toContainEqual({ kind: 'hold', pool: subject.pool, reason: null });
      const comeBack = await subject.goAway();
      seen.length = 0;
      await soon(() => seen).toContainEqual({ kind: 'hold', pool: subject.pool, reason: expect.stringMatching(/./) });
      await expect(service.retire('a1', never)).rejects.toMatchObject({ retry: true });
      expect(seen.filter(({ kind }) => kind !== 'hold')).toEqual([]);
      await comeBack();
      await soon(() => seen).toContainEqual({ kind: 'online', agent: 'a1' });
    });
  });
}
