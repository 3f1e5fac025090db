/** Before the first test of a run: look at the machine, hand it to the tests, say what will be skipped and why. */
import type { TestProject } from 'vitest/node';
import { explainMissing, lookAtMachine } from './require.ts';

export async function setup(project: TestProject): Promise<() => void> {
  const machine = await lookAtMachine();
  project.provide('machine', machine);
  const missing = explainMissing(machine);
  if (missing.length > 0 && process.env.CI === 'true') {
    throw new Error(`In CI nothing may be skipped, but this machine lacks:\n  ${missing.join('\n  ')}`);
  }
  const speaks = project.vitest.projects[0] === project;
  const say = (): void => {
    if (speaks && missing.length > 0) console.log(`\nSkipped here, for lack of:\n  ${missing.join('\n  ')}\n`);
  };
  say();
  return say;
}
