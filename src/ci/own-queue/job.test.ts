import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { engineAway } from '../../base/errors.ts';
import { jobRequest } from '../../contract/job.ts';
import { applyCancel, applyChange, hasFailed, type Job, type JobChange, newJob } from './job.ts';

function job(more: { retries?: number; cold?: boolean } = {}): Job {
  const { retries = 0, cold = false } = more;
  const request = { ...jobRequest.parse({ command: ['true'], retries }), pool: 'p', array: null };
  return { ...newJob('j', request, cold, 1_000), seq: 1 };
}

function told(start: Job, ...changes: JobChange[]): Job {
  return changes.reduce((one, change) => applyChange(one, change, 2_000), start);
}

const reserved = (agent: string): JobChange => ({ change: 'reserved', job: 'j', agent });
const assigned = (agent: string): JobChange => ({ change: 'assigned', job: 'j', agent });
const started = (agent: string): JobChange => ({ change: 'started', job: 'j', agent });
const settled = (agent: string): JobChange => ({ change: 'settled', job: 'j', agent });
const ended = (agent: string, code = 0): JobChange => ({ change: 'ended', job: 'j', agent, result: { kind: 'code', code } });
const lost = (agent: string): JobChange => ({ change: 'ended', job: 'j', agent, result: { kind: 'lost', reason: 'gone' } });
const unmendable = { code: 'E_X', message: 'no such image', retry: false };
const passing = { code: 'E_Y', message: 'engine away', retry: true };
const returned = (agent: string, failure: typeof passing | null = null): JobChange => ({
  change: 'returned',
  job: 'j',
  agent,
  failure,
});

describe('a job', () => {
  it('goes from queued to done and keeps its result', () => {
    const done = told(job(), reserved('a'), assigned('a'), started('a'), ended('a', 7), settled('a'));
    expect(done.progress).toMatchObject({ state: 'done', result: { kind: 'code', code: 7 }, attempt: 1, agent: 'a' });
  });

  it.each([
    [{ kind: 'code', code: 1 }, true],
    [{ kind: 'signal', signal: 'SEGV' }, true],
    [{ kind: 'oom' }, true],
    [{ kind: 'timeout' }, true],
    [{ kind: 'disk' }, true],
    [{ kind: 'code', code: 0 }, false],
    [{ kind: 'cancelled' }, false],
    [{ kind: 'lost', reason: 'gone' }, false],
  ] as const)('that ended with %o has failed by itself: %s', (result, failed) => {
    expect(hasFailed(told(job(), started('a'), { change: 'ended', job: 'j', agent: 'a', result }))).toBe(failed);
    expect(hasFailed(told(job(), started('a')))).toBe(false);
  });

  it('goes back to its queue when its agent gave it back, and is not taken again by that agent', () => {
    const back = told(job(), assigned('a'), returned('a'));
    expect(back.progress).toMatchObject({ state: 'queued', agent: null, attempt: 1 });
    expect(told(back, reserved('a'), assigned('a'), ended('a'))).toBe(back);
    expect(told(back, assigned('b')).progress).toMatchObject({ state: 'assigned', agent: 'b', attempt: 2 });
  });

  it('is lost, not run again, when it is said not to have begun after it did', () => {
    expect(told(job(), assigned('a'), started('a'), returned('a')).progress).toMatchObject({
      state: 'settling',
      result: { kind: 'lost' },
    });
  });

  it('is tried again after its agent was lost only as often as was asked for', () => {
    const once = told(job({ retries: 1 }), assigned('a'), started('a'), lost('a'));
    expect(once.progress).toMatchObject({ state: 'queued', result: null });
    expect(told(once, settled('a'))).toBe(once);
    const twice = told(once, assigned('b'), started('b'), lost('b'), settled('b'));
    expect(twice.progress).toMatchObject({ state: 'done', result: { kind: 'lost', reason: 'gone' }, attempt: 2 });
  });

  it('is not tried again for an exit code, nor once it was cancelled', () => {
    expect(told(job({ retries: 5 }), assigned('a'), started('a'), ended('a', 1)).progress.state).toBe('settling');
    const cancelled = applyCancel(told(job({ retries: 5 }), assigned('a'), started('a')), 3_000);
    expect(told(cancelled, lost('a')).progress.result).toEqual({ kind: 'lost', reason: 'gone' });
  });

  it.each([...engineAway])('waits while the Engine is away, although it has a recipe of its own: %s', (code) => {
    const away = { code, message: 'Away.', retry: false };
    let one = job({ cold: true });
    for (let at = 0; at < 5; at += 1) one = told(one, reserved(`a${at}`), returned(`a${at}`, away));
    expect(one.progress).toMatchObject({ state: 'queued', result: null });
  });

  it('ends as unstartable at once when what fails is its own, and after three times when it is the pool’s', () => {
    const own = told(job({ cold: true }), reserved('a'), returned('a', unmendable));
    expect(own.progress).toMatchObject({ state: 'done', result: { kind: 'unstartable', failure: unmendable } });
    const two = told(job(), reserved('a'), returned('a', unmendable), reserved('b'), returned('b', unmendable));
    expect(two.progress).toMatchObject({ state: 'queued', note: 'no such image' });
    expect(told(two, reserved('c'), returned('c', unmendable)).progress.result?.kind).toBe('unstartable');
  });

  it('is tried three times in a sandbox of its own when what fails may pass: no pool backs off for it', () => {
    const once = told(job({ cold: true }), reserved('a'), returned('a', passing));
    expect(once.progress.state).toBe('queued');
    const thrice = told(once, reserved('b'), returned('b', passing), reserved('c'), returned('c', passing));
    expect(thrice.progress.result).toEqual({ kind: 'unstartable', failure: passing });
  });

  it('waits forever when what fails is its pool’s and may pass', () => {
    let one = job({ cold: false });
    for (let i = 0; i < 200; i += 1) one = told(one, reserved(`a${i}`), returned(`a${i}`, passing));
    expect(one.progress).toMatchObject({ state: 'queued', attempt: 200 });
    expect(JSON.stringify(one).length).toBeLessThan(2_000);
  });

  it('ends at once when it is cancelled while it waits, and when a cancelled one comes back', () => {
    expect(applyCancel(job(), 5).progress).toMatchObject({ state: 'done', result: { kind: 'cancelled' }, endedAt: 5 });
    const asked = applyCancel(told(job(), reserved('a')), 5);
    expect(asked.progress).toMatchObject({ state: 'reserved', cancelling: true });
    expect(told(asked, returned('a')).progress).toMatchObject({ state: 'done', result: { kind: 'cancelled' } });
  });

  // S7
  it('has one result however its changes are repeated, dropped and reordered', () => {
    const agent = fc.constantFrom('a', 'b', 'c');
    const change: fc.Arbitrary<JobChange> = fc.oneof(
      agent.map(reserved),
      agent.map(assigned),
      agent.map(started),
      agent.map(settled),
      agent.map(lost),
      fc.tuple(agent, fc.nat(3)).map(([who, code]) => ended(who, code)),
      fc.tuple(agent, fc.constantFrom(null, unmendable, passing)).map(([who, failure]) => returned(who, failure)),
    );
    const steps = fc.array(fc.oneof({ weight: 9, arbitrary: change }, { weight: 1, arbitrary: fc.constant('cancel' as const) }), {
      maxLength: 40,
    });
    fc.assert(
      fc.property(steps, fc.nat(2), fc.boolean(), (changes, retries, cold) => {
        let one = job({ retries, cold });
        let begun = 0;
        for (const step of changes) {
          const next = step === 'cancel' ? applyCancel(one, 2_000) : applyChange(one, step, 2_000);
          if (one.progress.result !== null) expect(next.progress.result).toEqual(one.progress.result);
          if (one.progress.state === 'done') expect(next).toBe(one);
          if (next.progress.state === 'done') expect(next.progress.result).not.toBeNull();
          if (next.progress.state === 'queued') expect(next.progress.agent).toBeNull();
          if (next.progress.state === 'running' && one.progress.state !== 'running') begun += 1;
          // The same change again is not a change.
          if (step !== 'cancel') expect(applyChange(next, step, 2_000)).toBe(next);
          one = next;
        }
        expect(begun).toBeLessThanOrEqual(1 + retries);
      }),
      { numRuns: 2_000 },
    );
  });

  it('ends the same when all changes are repeated at any moment', () => {
    const story = [reserved('a'), returned('a'), assigned('b'), started('b'), ended('b', 3), settled('b')];
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(5), fc.nat(5))), (replays) => {
        let one = job();
        story.forEach((change, at) => {
          one = applyChange(one, change, 2_000);
          for (const [when, which] of replays) {
            const old = story[Math.min(which, at)];
            if (when === at && old !== undefined) one = applyChange(one, old, 2_000);
          }
        });
        expect(one.progress).toMatchObject({ state: 'done', result: { kind: 'code', code: 3 }, attempt: 2, agent: 'b' });
      }),
    );
  });
});
