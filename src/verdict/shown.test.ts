import { expect, it } from 'vitest';
import { type DeviceEvidence, type Ending, judgeEnding } from '../contract/verdict.ts';
import { newEvidence } from './shown.ts';

const healthy: DeviceEvidence = { faults: [], doubts: [], errors: [] };
const ending = { exit: null, memoryLimited: true, ownRecipe: false, ownImage: false };
const fault = 'Xid 79, GPU has fallen off the bus, on GPU-1';

function shown(result: Ending['result'], more: Partial<Ending> = {}, devices = healthy): readonly string[] {
  return newEvidence(judgeEnding({ ...ending, result, ...more }, devices));
}

it('leaves out evidence that the reason says already', () => {
  expect(shown({ kind: 'code', code: 3 })).toEqual([]);
  expect(shown({ kind: 'signal', signal: 'SIGSEGV' })).toEqual([]);
  expect(shown({ kind: 'timeout' })).toEqual([]);
  expect(shown({ kind: 'lost', reason: 'the host was restarted' })).toEqual([]);
  expect(shown({ kind: 'reported', word: 'failed', outcome: 'failed', failedIn: 'script', note: 'it says so' })).toEqual([
    'it says so',
  ]);
});

it('shows all other evidence', () => {
  expect(shown({ kind: 'code', code: 143 })).toEqual(['exit code 143']);
  expect(shown({ kind: 'timeout' }, { timeLimit: 6_000 })).toEqual(['time limit 6s']);
  expect(shown({ kind: 'oom' })).toEqual(['OOM kill']);
  expect(shown({ kind: 'code', code: 79 }, {}, { ...healthy, faults: [fault] })).toEqual(['exit code 79']);
});
