import { expect, it } from 'vitest';
import { type Outcome, outcomeOf } from '../core/job-end.ts';
import type { JobResult } from '../core/slot.ts';
import { detailOf, endText, outcomeIn } from './outcome.ts';

const failure = { code: 'E_GATE', message: 'it failed', retry: false };

it.each<[JobResult, Outcome, string]>([
  [{ kind: 'code', code: 0 }, 'passed', 'passed'],
  [{ kind: 'code', code: 3 }, 'failed', 'failed (exit 3)'],
  [{ kind: 'signal', signal: 'SIGSEGV' }, 'failed', 'failed (SIGSEGV)'],
  [{ kind: 'oom' }, 'failed', 'failed (oom)'],
  [{ kind: 'timeout' }, 'failed', 'failed (timeout)'],
  [{ kind: 'disk' }, 'failed', 'failed (disk)'],
  [{ kind: 'unstartable', failure }, 'failed', 'failed (unstartable)'],
  [{ kind: 'cancelled' }, 'cancelled', 'cancelled'],
  [{ kind: 'lost', reason: 'gone' }, 'lost', 'lost'],
])('a job of the own queue with %j is %s', (result, outcome, shown) => {
  expect(outcomeOf(result)).toBe(outcome);
  expect(endText(outcomeIn({ result, outcome }), detailOf(result))).toBe(shown);
  // As an older daemon says it.
  expect(outcomeIn({ result })).toBe(outcome);
});

it.each<[string, Outcome | null, string]>([
  ['passed', 'passed', 'passed'],
  ['succeeded', 'passed', 'passed (succeeded)'],
  ['success', 'passed', 'passed (success)'],
  ['failed (exit 3)', 'failed', 'failed (exit 3)'],
  ['abandoned', 'lost', 'lost (abandoned)'],
  ['ended', null, 'ended'],
  ['refused', null, 'ended (refused)'],
])('a job of which its service says "%s"', (word, outcome, shown) => {
  const result = { kind: 'reported', word } as const;
  expect(endText(outcomeIn({ result, outcome }), detailOf(result))).toBe(shown);
});

it('takes the verdict where an older daemon says no outcome, and knows nothing of a job without a result', () => {
  const result = { kind: 'reported', word: 'failed' } as const;
  expect(outcomeIn({ result, verdict: { kind: 'code', why: 'x', evidence: [] } })).toBe('failed');
  expect(outcomeIn({ result, verdict: { kind: 'unknown', why: 'x', evidence: [] } })).toBeNull();
  expect(endText(outcomeIn({ result: null }), detailOf(null))).toBe('ended');
});
