import { defineConfig } from 'vitest/config';

const shared = { pool: 'forks', testTimeout: 30_000, hookTimeout: 60_000, globalSetup: './test/support/setup.ts' } as const;

export default defineConfig({
  test: {
    projects: [
      { test: { ...shared, name: 'unit', include: ['src/**/*.test.ts', 'scripts/**/*.test.ts', 'test/properties/**/*.test.ts'] } },
      { test: { ...shared, name: 'e2e', include: ['test/e2e/**/*.test.ts'], fileParallelism: false } },
      { test: { ...shared, name: 'long', include: ['test/long/**/*.test.ts'], fileParallelism: false, testTimeout: 600_000 } },
    ],
  },
});
