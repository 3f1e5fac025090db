/**
 * What this host can do to isolate jobs from each other, found by trying it. A trial that does not end says nothing: the host is busy,
 * and a job may see to that. Nor is a failure proof where the same worked before. So jobs never get less than that because of either;
 * rather none starts. Only what is not installed, which no job can bring about, is really not there.
 */
import { rmSync } from 'node:fs';
import { z } from 'zod';
import { writeWhole } from '../../system/files.ts';
import { jsonOf } from '../../system/json.ts';
import { readOr } from '../../system/process-identity.ts';
import type { Ended } from '../../system/run.ts';

/** ms that a trial may take. */
export const trialLimit = 5_000;

/** `why`: a sentence, for each end. */
export interface Trial {
  readonly end: 'works' | 'absent' | 'fails' | 'late';
  readonly why: string;
}

const parts = ['bubblewrap', 'seccomp', 'network'] as const;
export type Part = (typeof parts)[number];

/** Whether a program was killed, by `run` or by the program `timeout`. */
export function wasLate({ code, error }: Pick<Ended, 'code' | 'error'>): boolean {
  return error !== null && (error.killed === true || error.signal === 'SIGKILL' || code === 137);
}

export interface Trials {
  /** Where what worked is written down. */
  readonly path: string;
  /** Why jobs are isolated as before, or not at all, although this could not be shown now; sentences. */
  readonly doubts: readonly string[];
  /** Whether jobs have this part of their isolation. */
  settle(part: Part, trial: Trial): boolean;
}

/** What worked on this host before, in the file at `path`. */
export function openTrials(path: string): Trials {
  const known = new Set(
    z
      .array(z.enum(parts))
      .catch([])
      .parse(jsonOf(readOr(path, ''))),
  );
  const doubts: string[] = [];

  function save(): void {
    if (known.size === 0) rmSync(path, { force: true });
    else writeWhole(path, `${JSON.stringify([...known].sort())}\n`, { over: true, mode: 0o600, alone: true });
  }

  return {
    doubts,
    path,
    settle(part, { end, why }) {
      if (end === 'absent' ? known.delete(part) : end === 'works' && !known.has(part) && known.add(part)) save();
      if (end === 'late') doubts.push(why);
      if (end === 'fails' && known.has(part)) doubts.push(`${why} It worked here before.`);
      return end === 'works' || end === 'late' || known.has(part);
    },
  };
}
