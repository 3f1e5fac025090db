/**
 * Before the first test of a run: look at the machine, hand it to the tests, say what will be skipped and why; and choose the
 * seed by which properties draw. The gate derives it from the tree; any other run draws a new one and says which.
 */
import { randomInt } from 'node:crypto';
import type { TestProject } from 'vitest/node';
import { explainMissing, lookAtMachine, mayLack } from './require.ts';

declare module 'vitest' {
  interface ProvidedContext {
    seed: number;
  }
}

export async function setup(project: TestProject): Promise<() => void> {
  // Once for all projects of a run, and for what tests start.
  process.env.ONEJOB_TEST_SEED ??= String(randomInt(2 ** 31));
  const seed = Number(process.env.ONEJOB_TEST_SEED) | 0;
  project.provide('seed', seed);
  const machine = await lookAtMachine();
  project.provide('machine', machine);
  const missing = explainMissing(machine);
  const needed = process.env.CI === 'true' ? explainMissing(machine, mayLack) : [];
  if (needed.length > 0) {
    throw new Error(`In CI nothing may be skipped, but this machine lacks:\n  ${needed.join('\n  ')}`);
  }
  const speaks = project.vitest.projects[0] === project;
  const say = (): void => {
    if (!speaks) return;
    if (missing.length > 0) console.log(`\nSkipped here, for lack of:\n  ${missing.join('\n  ')}\n`);
    console.log(`Properties draw by the seed ${seed}: set ONEJOB_TEST_SEED=${seed} to have the same examples again.`);
  };
  say();
  return say;
}
