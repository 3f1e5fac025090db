/**
 * Keeps what an ended job asked for, before its sandbox is removed. It ends in all cases, if need be with a note of what
 * was not kept: until it has, nobody is told the job's result and its sandbox stays.
 */
import type { Readable } from 'node:stream';
import { OnejobError } from '../../errors.ts';
import { collect } from './collect.ts';
import { globMatcher } from './globs.ts';
import type { Job } from './job.ts';
import type { Spool } from './spool.ts';

export interface SettleParts {
  readonly spool: Spool;
  /** Bytes of artifacts kept per job. */
  readonly artifactLimit: number;
  /** Writes sentences for people down with the job. */
  readonly annotate: (job: string, notes: readonly string[]) => void;
}

export type Settle = (job: Job, files: (signal: AbortSignal) => Promise<Readable>, signal: AbortSignal) => Promise<void>;

/** How often artifacts are tried when what goes wrong is not understood. */
const triesWhenStrange = 3;
/** How often they are tried when what goes wrong is said to pass: with the growing pauses in between, for about two minutes. */
const triesWhenPassing = 10;

/** What is waited out however long it takes: no runtime there to ask, or no room to keep anything. */
const outlasted: ReadonlySet<string> = new Set(['E_ENGINE_UNREACHABLE', 'E_ENGINE_PERMISSION', 'E_STATE_FULL']);

/** Idempotent. Throws when the same should be tried again later. */
export function createSettle({ spool, artifactLimit, annotate }: SettleParts): Settle {
  const tries = new Map<string, number>();
  return async ({ id, request }, files, signal) => {
    if (request.artifacts.length === 0 || spool.hasArtifacts(id)) return;
    try {
      const notes: string[] = [];
      await spool.putArtifacts(id, async (to) => {
        const wanted = request.artifacts.map((pattern) => ({ pattern, matches: globMatcher([pattern]), found: false }));
        const matches = (path: string): boolean => {
          const by = wanted.filter((one) => one.matches(path));
          for (const one of by) one.found = true;
          return by.length > 0;
        };
        const collected = await collect(await files(signal), to, { matches, limit: artifactLimit, signal });
        notes.push(...collected.notes);
        const missing = wanted.filter((one) => !one.found).map((one) => one.pattern);
        if (missing.length > 0) notes.push(`No file matched the artifacts ${missing.join(', ')}.`);
        return collected.files > 0;
      });
      annotate(id, notes);
    } catch (error) {
      signal.throwIfAborted();
      if (isWorthAnother(id, error)) throw error;
      annotate(id, [`Its artifacts could not be kept: ${error instanceof Error ? error.message : error}`]);
    }
    tries.delete(id);
  };

  function isWorthAnother(id: string, error: unknown): boolean {
    const known = error instanceof OnejobError ? error : null;
    if (known !== null && outlasted.has(known.code)) return true;
    if (known !== null && !known.retry) return false;
    const tried = (tries.get(id) ?? 0) + 1;
    tries.set(id, tried);
    return tried < (known === null ? triesWhenStrange : triesWhenPassing);
  }
}
