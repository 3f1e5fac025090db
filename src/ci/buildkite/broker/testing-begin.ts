/** For tests: one world with its first broker, taken apart after the test; and the only one of a list. */
import { onTestFinished } from 'vitest';
import { scratch } from '../../../../test/support/scratch.ts';
import { type Running, type World, world } from './testing.ts';

export interface Begun extends World {
  readonly running: Running;
}

/** Brokers that the test starts later are for it to kill, by `endsWithTest`. */
export function begin(options?: Parameters<World['start']>[0]): Begun {
  const folder = scratch();
  onTestFinished(() => folder[Symbol.dispose]());
  const made = world(folder.path);
  return { ...made, running: endsWithTest(made.start(options)) };
}

export function endsWithTest(running: Running): Running {
  // Killed within the test already, its store cannot be closed again.
  onTestFinished(() => running.kill().catch(() => {}));
  return running;
}

/** @throws Error when there is none, or more than one */
export function only<T>(list: Iterable<T>): T {
  const [first, ...rest] = list;
  if (first === undefined || rest.length > 0) throw new Error(`expected one, got ${rest.length + (first === undefined ? 0 : 1)}`);
  return first;
}
