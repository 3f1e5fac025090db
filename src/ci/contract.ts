/**
 * What every CI service must keep to, whatever stands behind it. A member runs this suite with a subject of its own: its
 * real client against its stand-in, or, for the own queue, the queue itself.
 */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Change } from '../core/slot.ts';
import type { AgentContext, AgentFiles, CiEvent, CiService } from './ci-service.ts';
import { noTrial } from './trial.ts';

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

    const context = (agent: string, job: string | null): AgentContext => ({
      agent,
      pool: subject.pool,
      slot: `${subject.pool}/1`,
      name: 'box-1',
      workspace: '/workspace',
      job,
      devices: [],
      cuda: null,
      ask: () => Promise.reject(new Error('no sandbox to ask')),
      door: async () => '127.0.0.1',
    });
    /** The pool's next job, for any slot; where an agent stands for each slot, for the one whose agent was given it. */
    const next = () => {
      const { service, pool } = subject;
      return service.jobs?.next(pool, service.capabilities.standsForSlots ? `${pool}/1` : null) ?? null;
    };
    const record = (change: Change) => subject.commit(() => subject.service.jobs?.record(change), 'committed');

    it('says what it is and has findings for doctor', async () => {
      expect(subject.service.capabilities.binds).toBe(binds);
      for (const finding of await subject.service.check(never, noTrial)) {
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
