/**
 * Writes into a test's report with which seed each of its properties ran and how often, so that runs can be compared
 * (`test/repeat.ts`). A file of its own, because a plugin of fast-check stays for as long as its process: it must come once.
 */
import fc from 'fast-check';

declare module 'vitest' {
  interface TaskMeta {
    /** Of each property of the test: its seed, and how many examples it was tried with. */
    properties?: string[];
  }
}

let meta: { properties?: string[] } | null = null;

/** Says whose properties run from now on. */
export function writeTo(current: { properties?: string[] }): void {
  meta = current;
}

fc.installGlobalPlugin(() => ({
  onAllRunsComplete: ({ seed, numRuns }) => {
    if (meta !== null) meta.properties = [...(meta.properties ?? []), `${numRuns} examples by seed ${seed}`];
  },
}));
