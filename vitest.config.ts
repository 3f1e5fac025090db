import { defineConfig } from 'vitest/config';

const shared = {
  pool: 'forks',
  testTimeout: 30_000,
  hookTimeout: 60_000,
  // What is waited for mostly needs a new process to get a turn, which on a busy machine takes longer than the usual second.
  expect: { poll: { timeout: 10_000 } },
  globalSetup: './test/support/setup.ts',
} as const;

/** What the agent of a stand-in does at real services' pace. */
const agent = 'test/standins/*/agent/**/*.test.ts';

export default defineConfig({
  test: {
    // Most of a test's time is spent waiting for an Engine or a process, so two at a time pay on two cores as well.
    maxWorkers: 2,
    projects: [
      {
        test: {
          ...shared,
          name: 'unit',
          include: ['src/**/*.test.ts', 'scripts/**/*.test.ts', 'test/properties/**/*.test.ts', 'test/standins/**/*.test.ts'],
          exclude: [agent],
        },
      },
      { test: { ...shared, name: 'e2e', include: ['test/e2e/**/*.test.ts'], fileParallelism: false } },
      {
        test: { ...shared, name: 'long', include: ['test/long/**/*.test.ts', agent], fileParallelism: false, testTimeout: 600_000 },
      },
    ],
  },
});
