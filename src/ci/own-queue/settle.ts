/**
 * Keeps what an ended job asked for, before its sandbox is removed. It ends in all cases, if need be with a note of what
 * was not kept: until it has, nobody is told the job's result and its sandbox stays. The job decides what there is to read,
 * so bytes, time and tries are bounded, the last also over restarts of the manager.
 */

import type { Readable } from 'node:stream';
import { type Clock, deadline } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import type { JobProgress } from '../../store/jobs.ts';
import { collect } from './collect.ts';
import { globMatcher, topName } from './globs.ts';
import type { Job } from './job.ts';
import type { Spool } from './spool.ts';

type Tries = JobProgress['settling'];

export interface SettleParts {
  readonly clock: Clock;
  readonly spool: Spool;
  /** Bytes of artifacts kept per job. */
  readonly artifactLimit: number;
  /** Bytes of a workspace that are read for them; default 100 GiB. */
  readonly readLimit?: number;
  /** How long one try may take, in ms; default 10 minutes. */
  readonly timeLimit?: number;
  /** Writes sentences for people down with the job. */
  readonly annotate: (job: string, notes: readonly string[]) => void;
  readonly triesOf: (job: string) => Tries;
  /** Committed when it returns. */
  readonly saveTries: (job: string, tries: Tries) => void;
}

/** What a try is given: `signal` ends it for the next manager, `giveUp` for good, its reason being a clause for people. */
export interface SettleHow {
  /** Opens the workspace, or of it what has these names at its top; it may hold more. */
  readonly open: (signal: AbortSignal, only: readonly string[] | null) => Promise<Readable>;
  readonly signal: AbortSignal;
  readonly giveUp: AbortSignal;
}

export type Settle = (job: Pick<Job, 'id' | 'request'>, how: SettleHow) => Promise<void>;

/** How often artifacts are tried when what goes wrong is not understood. */
const triesWhenStrange = 3;
/** How often they are tried when what goes wrong is said to pass: with the growing pauses in between, for about two minutes. */
const triesWhenPassing = 10;
/** How often they are tried when each time the manager is killed meanwhile, perhaps by them. */
const triesWhenKilled = 3;

/** What is waited out however long it takes: no runtime there to ask, or no room to keep anything. */
const outlasted: ReadonlySet<string> = new Set(['E_ENGINE_UNREACHABLE', 'E_ENGINE_PERMISSION', 'E_STATE_FULL']);

/** Idempotent. Throws when the same should be tried again later. */
export function createSettle(parts: SettleParts): Settle {
  const { clock, spool, annotate, triesOf, saveTries, timeLimit = 10 * 60_000 } = parts;
  return async ({ id, request }, { open, signal, giveUp }) => {
    if (request.artifacts.length === 0 || spool.hasArtifacts(id)) return;
    const before = triesOf(id);
    const notKept = (why: string) => annotate(id, [`Its artifacts could not be kept: ${why}`]);
    if (giveUp.aborted) return notKept(`${giveUp.reason}.`);
    if (before.killed >= triesWhenKilled) return notKept(`onejob was killed ${before.killed} times while it read them.`);
    saveTries(id, { ...before, killed: before.killed + 1 });
    const over = new AbortController();
    using limit = deadline(clock, timeLimit, signal, giveUp, over.signal);
    try {
      annotate(id, await keep(id, request.artifacts, open, limit.signal));
    } catch (error) {
      if (signal.aborted) saveTries(id, before);
      signal.throwIfAborted();
      if (giveUp.aborted) return notKept(`${giveUp.reason}.`);
      if (limit.passed) return notKept(`its workspace could not be read within ${timeLimit / 1000} s.`);
      const known = error instanceof OnejobError ? error : null;
      if (known !== null && outlasted.has(known.code)) {
        saveTries(id, before);
        throw error;
      }
      const failed = before.failed + 1;
      saveTries(id, { ...before, failed });
      const isLasting = known !== null && !known.retry;
      if (!isLasting && failed < (known === null ? triesWhenStrange : triesWhenPassing)) throw error;
      notKept(error instanceof Error ? error.message : String(error));
    } finally {
      // Whatever still flows is of no use any more.
      over.abort();
    }
  };

  /** Notes for people. */
  async function keep(
    id: string,
    artifacts: readonly string[],
    open: SettleHow['open'],
    signal: AbortSignal,
  ): Promise<readonly string[]> {
    const { artifactLimit: limit, readLimit = 100 * 2 ** 30 } = parts;
    const notes: string[] = [];
    await spool.putArtifacts(id, async (to) => {
      const wanted = artifacts.map((pattern) => ({ pattern, matches: globMatcher([pattern]), found: false }));
      const matches = (path: string): boolean => {
        const by = wanted.filter((one) => one.matches(path));
        for (const one of by) one.found = true;
        return by.length > 0;
      };
      const tops = artifacts.map(topName);
      const only = tops.includes(null) ? null : [...new Set(tops.filter((name) => name !== null))];
      const collected = await collect(await open(signal, only), to, { matches, limit, readLimit, signal });
      notes.push(...collected.notes);
      const missing = wanted.filter((one) => !one.found).map((one) => one.pattern);
      if (missing.length > 0) {
        const why = collected.cutShort ? 'No file was found, and not all were looked at, for' : 'No file matched';
        notes.push(`${why} the artifacts ${missing.join(', ')}.`);
      }
      return collected.files > 0;
    });
    return notes;
  }
}
