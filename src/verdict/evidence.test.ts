import { expect, it } from 'vitest';
import { type Ending, judgeEnding } from '../contract/verdict.ts';
import type { Outcome } from '../core/job-end.ts';
import type { Exit, JobResult } from '../core/slot.ts';
import { agentEvidence, imageEvidence } from './evidence.ts';

const code = (number: number): Exit => ({ kind: 'code', code: number });
const own = (result: JobResult | null): Ending => ({
  result,
  exit: null,
  memoryLimited: true,
  ownRecipe: false,
  ownImage: false,
});
const reported = (outcome: Outcome | null, exit: Exit | null = null): Ending => ({
  ...own(null),
  result: { kind: 'reported', word: 'word', outcome, failedIn: 'script', note: null },
  exit,
});
const unstartable = (failure: string): JobResult => ({
  kind: 'unstartable',
  failure: { code: failure, message: 'it failed', retry: false },
});

it.each<[string, Ending, 'works' | 'fails' | 'nothing']>([
  ['exit 0', own(code(0)), 'works'],
  ['exit 1', own(code(1)), 'works'],
  ['a command that its shell did not find', own(code(127)), 'nothing'],
  ['a command that its shell could not run', own(code(126)), 'nothing'],
  ['an exit code after somebody killed it', own(code(137)), 'nothing'],
  ['cancelled', own({ kind: 'cancelled' }), 'nothing'],
  ['its time limit', own({ kind: 'timeout' }), 'nothing'],
  ['its disk limit', own({ kind: 'disk' }), 'nothing'],
  ['its memory limit', own({ kind: 'oom' }), 'nothing'],
  ['SIGSEGV', own({ kind: 'signal', signal: 'SIGSEGV' }), 'nothing'],
  ['a lost agent', own({ kind: 'lost', reason: 'its sandbox was removed by someone else' }), 'fails'],
  ['a job that could not be started', own(unstartable('E_GATE')), 'fails'],
  ['an image that does not exist', own(unstartable('E_IMAGE_NOT_FOUND')), 'fails'],
  ['a request that could not be fulfilled', own(unstartable('E_JOB_REQUEST')), 'nothing'],
  ['nobody knows', own(null), 'nothing'],
  ['passed, as its service says', reported('passed'), 'works'],
  ['passed, although its agent ended with an error', reported('passed', code(1)), 'works'],
  ['failed, as its service says', reported('failed'), 'works'],
  ['failed, and its agent ended with an exit code', reported('failed', code(1)), 'works'],
  ['failed, and its agent was killed', reported('failed', { kind: 'signal', signal: 'SIGKILL' }), 'nothing'],
  ['failed, and its agent was lost', reported('failed', { kind: 'lost', reason: 'gone' }), 'fails'],
  ['cancelled, as its service says', reported('cancelled', code(0)), 'nothing'],
  ['lost, as its service says', reported('lost'), 'fails'],
  ['lost by its memory limit', reported('lost', { kind: 'oom' }), 'nothing'],
  ['an unknown word', reported(null), 'nothing'],
])('%s', (_, ending, says) => {
  const found = imageEvidence(ending, judgeEnding(ending, { faults: [], doubts: [], errors: [] }));
  expect(found === null ? 'nothing' : found.works ? 'works' : 'fails').toBe(says);
});

it('says nothing for a card that failed under a job that ended with an error', () => {
  const verdict = judgeEnding(own(code(1)), { faults: ['Xid 79 on GPU-1'], doubts: [], errors: [] });
  expect(imageEvidence(own(code(1)), verdict)).toBeNull();
});

it.each<[string, Exit | null, string | null]>([
  [
    'lost',
    { kind: 'lost', reason: 'its sandbox was removed by someone else' },
    'its agent was lost: its sandbox was removed by someone else',
  ],
  ['killed', code(137), 'its agent was killed (exit code 137)'],
  ['killed by a signal', { kind: 'signal', signal: 'SIGKILL' }, 'its agent was killed (SIGKILL)'],
  ['out of memory', { kind: 'oom' }, null],
  ['ended by itself', code(0), null],
  ['failed by itself', code(1), null],
  ['crashed', { kind: 'signal', signal: 'SIGSEGV' }, null],
  ['stopped by onejob', null, null],
])('knows of an agent whose job has no end yet, and that was %s', (_, exit, why) => {
  expect(agentEvidence(exit)).toEqual(why === null ? null : { works: false, why });
});
