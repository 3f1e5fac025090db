import { join } from 'node:path';
import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';
import { lanes } from './test/lanes.ts';
import LongestFirst from './test/support/longest-first.ts';

type TestOptions = TestProjectInlineConfiguration['test'];

// Where bin/onejob has it, too: a Node that a test starts need not compile what an earlier one did.
process.env.NODE_COMPILE_CACHE ??= join(import.meta.dirname, 'node_modules/.cache/onejob');

const shared = {
  pool: 'forks',
  testTimeout: 30_000,
  hookTimeout: 60_000,
  // What is waited for mostly needs a new process to get a turn, which on a busy machine takes longer than the usual second.
  expect: { poll: { timeout: 10_000 } },
  globalSetup: './test/support/setup.ts',
  setupFiles: ['./test/support/seed.ts'],
} satisfies TestOptions;

/** Deterministic, so only what hangs runs out of time: a busy machine must not make it red. */
const deterministic = { ...shared, testTimeout: 300_000 } satisfies TestOptions;

/** Starts no process and no server. No module keeps state, so files share a worker: that halves what they cost. */
const unit = {
  ...deterministic,
  isolate: false,
  setupFiles: [...shared.setupFiles, './test/support/no-outside.ts'],
  sequence: { groupOrder: 1 },
} satisfies TestOptions;

/** Plays in processes of its own, as many as there are cores, so nothing else runs beside it. */
const sim = { ...deterministic, isolate: false, maxWorkers: 1, sequence: { groupOrder: 2 } } satisfies TestOptions;

/** Waits for an Engine or for processes most of the time, so more workers than cores pay. */
const outside = { ...shared, testTimeout: 60_000, maxWorkers: 4, sequence: { groupOrder: 3 } } satisfies TestOptions;

/** Two long tests at a time, each with several daemons, leave a process less often a turn. */
const long = { ...shared, testTimeout: 600_000, expect: { poll: { timeout: 30_000 } } } satisfies TestOptions;

// `--sequence.shuffle.files` takes effect only where no other order is named.
const isShuffled = process.argv.some((word) => word.startsWith('--sequence.shuffle'));

export default defineConfig({
  test: {
    maxWorkers: 2,
    ...(isShuffled ? {} : { sequence: { sequencer: LongestFirst } }),
    reporters: ['default', './test/support/lane-times.ts'],
    projects: [
      { test: { ...unit, ...lanes.unit, name: 'unit' } },
      { test: { ...sim, ...lanes.sim, name: 'sim' } },
      { test: { ...outside, ...lanes.process, name: 'process', isolate: false } },
      { test: { ...outside, ...lanes.e2e, name: 'e2e' } },
      { test: { ...long, ...lanes.real, name: 'real', fileParallelism: false } },
      { test: { ...long, ...lanes.long, name: 'long' } },
      { test: { ...long, ...lanes['long-alone'], name: 'long-alone', fileParallelism: false } },
      { test: { ...long, ...lanes.engines, name: 'engines', fileParallelism: false } },
      // Each file has one machine, and two cores bear two.
      { test: { ...long, ...lanes.hosts, name: 'hosts' } },
    ],
  },
});
