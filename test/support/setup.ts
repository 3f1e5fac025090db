/** Before the first test of a run: look at the machine, hand it to the tests, say what will be skipped and why. */
import type { TestProject } from 'vitest/node';
import { explainMissing, lookAtMachine, mayLack } from './require.ts';

export async function setup(project: TestProject): Promise<() => void> {
  const machine = await lookAtMachine();
  project.provide('machine', machine);
  const missing = explainMissing(machine);
  const needed = process.env.CI === 'true' ? explainMissing(machine, mayLack) : [];
  if (needed.length > 0) {
    throw new Error(`In CI nothing may be skipped, but this machine lacks:\n  ${needed.join('\n  ')}`);
  }
  const speaks = project.vitest.projects[0] === project;
  const say = (): void => {
    if (speaks && missing.length > 0) console.log(`\nSkipped here, for lack of:\n  ${missing.join('\n  ')}\n`);
  };
  say();
  return say;
}
