/**
 * In the worker, before each test file: sets the switch of `mutate.ts`, and notes which mutants the file reaches.
 *
 * A mutant can make a loop endless, and a worker that spins answers nobody. So the switch ends the worker once a test file has used
 * up its processor time, and leaves a note of which file that was.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject } from 'vitest';
import type { Mutation } from './mutate.ts';

/** What the tool tells its workers. */
export interface MutantOrder {
  /** The number of the mutant that is on; null while nothing is and the tool looks which test reaches which. */
  readonly active: number | null;
  readonly count: number;
  /** Processor time that a test file may use, ms. */
  readonly limit: number;
  /** Where the notes go. */
  readonly notes: string;
}

declare module 'vitest' {
  interface ProvidedContext {
    mutants: MutantOrder;
  }
}

/** A note that a worker leaves, as JSON. */
export interface Note {
  readonly file: string;
  /** Numbers of the mutants that its tests reached; null when the worker ended itself. */
  readonly reached: readonly number[] | null;
  /** Those that ran when modules were loaded. A worker loads a module once, for the first of its test files that wants it. */
  readonly loaded: readonly number[];
}

const { active, count, limit, notes } = inject('mutants');
const begun = process.cpuUsage();
const [loaded, reached] = [new Uint8Array(count), new Uint8Array(count)];
let hasBegun = false;
let calls = 0;
let hasFailed = false;

/** Where the test file lies; a name is enough to tell its note from others. */
const file = expect.getState().testPath ?? '';

function note(what: Note): void {
  writeFileSync(join(notes, `${process.pid}-${performance.now()}.json`), JSON.stringify(what));
}

function isOn(number: Mutation['start']): boolean {
  if (active === null) {
    (hasBegun ? reached : loaded)[number] = 1;
    return false;
  }
  if (number !== active) return false;
  calls += 1;
  if (calls % 1_000 === 0) {
    const { user, system } = process.cpuUsage(begun);
    if ((user + system) / 1_000 > limit) {
      note({ file, reached: null, loaded: [] });
      process.kill(process.pid, 'SIGKILL');
    }
  }
  return true;
}

Object.assign(globalThis, { __onejobMutant: isOn });

if (active === null) {
  const marked = (all: Uint8Array): number[] => [...all.keys()].filter((number) => all[number] === 1);
  // Only modules have run until now, those of the test file among them.
  beforeAll(() => {
    hasBegun = true;
  });
  afterAll(() => note({ file, reached: marked(reached), loaded: marked(loaded) }));
} else {
  // One red test is enough to kill a mutant.
  beforeEach(({ skip }) => skip(hasFailed));
  afterEach(({ task }) => {
    hasFailed ||= task.result?.state === 'fail';
  });
}
