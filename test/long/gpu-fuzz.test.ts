/** For a minute, recordings of GPU tools damaged at random: nothing throws, nothing hangs, no device is made up. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { damagedRecordings } from '../support/gpu-fuzz.ts';

const seconds = 60;

test(`damaged recordings for ${seconds} s`, () => {
  const run = fc.check(damagedRecordings(), {
    numRuns: 1e9,
    interruptAfterTimeLimit: seconds * 1000,
    markInterruptAsFailure: false,
  });
  expect(run.failed, fc.defaultReportMessage(run) ?? '').toBe(false);
  // A minute in which nearly nothing ran has shown nothing.
  expect(run.numRuns).toBeGreaterThan(200);
});
