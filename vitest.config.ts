import { defineConfig } from 'vitest/config';

const shared = {
  pool: 'forks',
  testTimeout: 30_000,
  hookTimeout: 60_000,
  // What is waited for mostly needs a new process to get a turn, which on a busy machine takes longer than the usual second.
  expect: { poll: { timeout: 10_000 } },
  globalSetup: './test/support/setup.ts',
  setupFiles: './test/support/seed.ts',
} as const;

/** What the agent of a stand-in does at real services' pace. */
const agent = 'test/standins/*/agent/**/*.test.ts';

/** Two long tests at a time, each with several daemons, leave a process less often a turn. */
const long = { ...shared, testTimeout: 600_000, expect: { poll: { timeout: 30_000 } } } as const;

/** Long tests that decide about a change beside the end-to-end ones: a real Engine, real kills, real grants. Few on purpose. */
const real = ['gpu-grants', 'hostile-jobs', 'jobs', 'kills', 'sandbox-options'].map((name) => `test/long/${name}.test.ts`);

/**
 * Long tests that need the machine to themselves: they start Engines and end them, build and remove images, change the firewall,
 * or say how long something may take. The others wait for most of their time, and have only what carries their own owner's label.
 */
const alone = [
  'auto-image',
  'built-images',
  'docker-*',
  'engine*',
  'gpu-tool',
  'image-builder',
  'images',
  'internet-network',
  'podman.*',
  'private-engine',
].map((name) => `test/long/${name}.test.ts`);

export default defineConfig({
  test: {
    // Most of a test's time is spent waiting for an Engine or a process, so two at a time pay on two cores as well.
    maxWorkers: 2,
    projects: [
      {
        test: {
          ...shared,
          name: 'unit',
          // No module keeps state, so files can share a process: that halves what they cost.
          isolate: false,
          include: [
            'src/**/*.test.ts',
            'scripts/**/*.test.ts',
            'bench/**/*.test.ts',
            'test/properties/**/*.test.ts',
            'test/sim/**/*.test.ts',
            'test/standins/**/*.test.ts',
          ],
          exclude: [agent],
        },
      },
      { test: { ...shared, name: 'e2e', include: ['test/e2e/**/*.test.ts'] } },
      { test: { ...long, name: 'real', include: real, fileParallelism: false } },
      { test: { ...long, name: 'long', include: ['test/long/**/*.test.ts', agent], exclude: [...alone, ...real] } },
      { test: { ...long, name: 'long-alone', include: alone, fileParallelism: false } },
    ],
  },
});
