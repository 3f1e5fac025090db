/**
 * Keeps an ended job's artifacts before its sandbox is removed. It always ends, if necessary with a note on what was not kept,
 * because the result waits for it. The job decides what there is to read, so bytes, time and tries are bounded, tries also over
 * restarts.
 */
import { hash } from 'node:crypto';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Extract, extract, type Header, type Pack, pack } from 'tar-stream';
import { isEngineAway, messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { JobProgress } from '../../store/jobs.ts';
import { timeOf } from '../../workspace/tar-time.ts';
import { globMatcher, topName } from './globs.ts';
import type { Job } from './job.ts';
import type { Spool } from './spool.ts';

type Tries = JobProgress['settling'];

export interface SettleParts {
  readonly clock: Clock;
  readonly spool: Pick<Spool, 'hasArtifacts' | 'putArtifacts'>;
  readonly artifactLimit: number;
  /** Bytes of a workspace that are read; default 100 GiB. */
  readonly readLimit?: number;
  /** Bytes that names of artifacts may take on disk; default 256 MiB. */
  readonly headsLimit?: number;
  /** ms for one try; default 10 minutes. */
  readonly timeLimit?: number;
  /** Adds sentences for people to the job. */
  readonly annotate: (job: string, notes: readonly string[]) => void;
  readonly triesOf: (job: string) => Tries;
  /** Committed when it returns. */
  readonly saveTries: (job: string, tries: Tries) => void;
}

/** `signal` leaves the rest to the next manager; `giveUp` ends it for good, with a clause as its reason. */
export interface SettleHow {
  /** Opens the workspace, or what has these top-level names; it may contain more. */
  readonly open: (signal: AbortSignal, only: readonly string[] | null) => Promise<Readable>;
  readonly signal: AbortSignal;
  readonly giveUp: AbortSignal;
}

/** Tries after an unknown error. */
const triesWhenStrange = 3;
/** Tries after an error that may pass: about two minutes, with growing pauses. */
const triesWhenPassing = 10;
/** Tries during which the manager was killed, perhaps because of them. */
const triesWhenKilled = 3;

/** Whether it is waited out without limit: no runtime, or no room. */
const isOutlasted = (error: OnejobError): boolean => isEngineAway(error) || error.code === 'E_STATE_FULL';

/** Idempotent. Throws when it should be tried again. */
export type Settle = (job: Pick<Job, 'id' | 'request'>, how: SettleHow) => Promise<void>;

export function createSettle(parts: SettleParts): Settle {
  const { clock, spool, annotate, triesOf, saveTries, timeLimit = 10 * 60_000 } = parts;
  return async ({ id, request }, { open, signal, giveUp }) => {
    if (request.artifacts.length === 0 || spool.hasArtifacts(id)) return;
    const before = triesOf(id);
    const notKept = (why: string) => annotate(id, [`Failed to keep its artifacts: ${why}`]);
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
      if (known !== null && isOutlasted(known)) {
        saveTries(id, before);
        throw error;
      }
      const failed = before.failed + 1;
      saveTries(id, { ...before, failed });
      const isLasting = known !== null && !known.retry;
      if (!isLasting && failed < (known === null ? triesWhenStrange : triesWhenPassing)) throw error;
      notKept(messageOf(error));
    } finally {
      // Stops what still flows.
      over.abort();
    }
  };

  async function keep(id: string, artifacts: readonly string[], open: SettleHow['open'], signal: AbortSignal) {
    const { artifactLimit: limit, readLimit = 100 * 2 ** 30, headsLimit = 256 * 2 ** 20 } = parts;
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
      const collected = await collect(await open(signal, only), to, { matches, limit, readLimit, headsLimit, signal });
      notes.push(...collected.notes);
      const missing = wanted.filter((one) => !one.found).map((one) => one.pattern);
      if (missing.length > 0) {
        const why = collected.cutShort ? 'Not all files were searched, and none of those searched matched' : 'No file matched';
        notes.push(`${why} the artifacts ${missing.join(', ')}.`);
      }
      return !collected.isEmpty;
    });
    return notes;
  }
}

const tarBlock = 512;

interface CollectOptions {
  /** Called once for every path. A pattern that matches a directory means everything in it. */
  readonly matches: (path: string) => boolean;
  readonly limit: number;
  /** Bytes that are read, wanted or not. */
  readonly readLimit: number;
  /** Bytes of what says the name of an entry, and where it leads. */
  readonly headsLimit: number;
  readonly signal: AbortSignal;
}

interface Collected {
  readonly isEmpty: boolean;
  /** Sentences about what was left out. */
  readonly notes: readonly string[];
  /** Whether not all was read. */
  readonly cutShort: boolean;
}

/**
 * Picks artifacts out of a workspace: reads the tar stream `from` to its end or the limit, and writes what matches as a tar to
 * `to`. Memory does not grow, and reading is bounded: a sparse file of terabytes takes no room on the job's disk.
 */
async function collect(from: Readable, to: Writable, options: CollectOptions): Promise<Collected> {
  const { signal } = options;
  const chosen = pack();
  const written = pipeline(chosen, to, { signal });
  // Awaited below; until then a failure must not count as unhandled.
  written.catch(() => {});
  const entries = extract();
  const read = pipeline(from, entries, { signal });
  read.catch(() => {});
  try {
    const collected = await choose(entries, chosen, options);
    if (collected.cutShort) from.destroy();
    else await read;
    chosen.finalize();
    await written;
    return collected;
  } catch (error) {
    from.destroy();
    entries.destroy();
    chosen.destroy();
    await Promise.allSettled([read, written]);
    signal.throwIfAborted();
    throw error;
  }
}

/** Bytes of names that are kept in memory. */
const namesLimit = 32 * 2 ** 20;

async function choose(entries: Extract, chosen: Pack, options: CollectOptions): Promise<Collected> {
  const { matches, limit, readLimit, headsLimit } = options;
  /** Hashes of paths: those of some hundred thousand files at once would fill the memory. */
  const taken = new Set<number>();
  const [over, many, strange] = [new Some(), new Some(), new Some()];
  const [cut, unread, foreign] = [new Some(), new Some(), new Some()];
  let [entriesKept, bytes, names, heads, come] = [0, 0, 0, 0, 0];
  for await (const entry of entries) {
    const { header } = entry;
    come += tarBlock + (header.size ?? 0);
    const path = relative(header.name);
    const type = header.type ?? 'file';
    const isWanted = path !== null && matches(path);
    // The header tells the size before anything is read.
    if (!(come <= readLimit)) {
      unread.add(path ?? header.name);
      break;
    }
    if (!isWanted) {
      entry.resume();
      continue;
    }
    const size = header.size ?? 0;
    names += path.length;
    heads += headSize(path, header.linkname ?? '');
    // Several names that are not UTF-8 would be one, and would replace each other.
    if (`${path}${header.linkname ?? ''}`.includes('\ufffd')) foreign.add(path);
    else if (names > namesLimit || heads > headsLimit) many.add(path);
    else if (bytes + size > limit) over.add(path);
    else if (type === 'directory') {
      entriesKept += 1;
      chosen.entry(headerFor(header, path, 'directory'));
    } else if (type === 'file' || type === 'contiguous-file') {
      bytes += size;
      entriesKept += 1;
      taken.add(hashOf(path));
      await pipeline(entry, chosen.entry(headerFor(header, path, 'file')));
      continue;
    } else if (type === 'symlink') {
      entriesKept += 1;
      chosen.entry(headerFor(header, path, 'symlink'));
    } else if (type === 'link') {
      const target = relative(header.linkname ?? '');
      if (target !== null && taken.has(hashOf(target))) {
        entriesKept += 1;
        chosen.entry({ ...headerFor(header, path, 'link'), linkname: target });
      } else cut.add(`${path} (of ${header.linkname})`);
    } else strange.add(path);
    entry.resume();
  }
  const notes = [
    over.note(`because a job may keep ${inGiB(limit)} at most`),
    many.note(`because the names of a job's artifacts may take ${inGiB(headsLimit)} at most`),
    strange.note('because they are neither files nor links'),
    cut.note('because they are hard links to files that no pattern matches'),
    foreign.note('because their names are not UTF-8'),
    unread.note(`with everything after it in the workspace, because onejob reads ${inGiB(readLimit)} at most`),
  ];
  return { isEmpty: entriesKept === 0, notes: notes.filter((note) => note !== null), cutShort: unread.count > 0 };
}

/** 48 bits. Where two are the same, a hard link may lead to a file that was left out, and is refused where it is unpacked. */
function hashOf(path: string): number {
  return hash('sha1', path, 'buffer').readUIntBE(0, 6);
}

/** Bytes of the header in the tar. Long names, and those that are not ASCII, are in one more with its own content. */
function headSize(path: string, linkname: string): number {
  const long = Math.max(path.length, linkname.length) > 100 || /[^\x20-\x7e]/.test(path + linkname);
  const content = Buffer.byteLength(path) + Buffer.byteLength(linkname) + 64;
  return long ? tarBlock * (2 + Math.ceil(content / tarBlock)) : tarBlock;
}

function headerFor({ mode, mtime, linkname, size }: Header, name: string, type: 'file' | 'symlink' | 'link' | 'directory') {
  const head = { name, type, mode, ...timeOf(Math.floor((mtime?.getTime() ?? 0) / 1000)) };
  return type === 'file' ? { ...head, size } : { ...head, linkname, size: 0 };
}

/** null for the workspace itself, and for names outside it. */
function relative(name: string): string | null {
  if (name.startsWith('/')) return null;
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  return parts.length === 0 || parts.includes('..') ? null : parts.join('/');
}

/** The first few names, for a note. */
class Some {
  readonly #first: string[] = [];
  count = 0;

  add(path: string): void {
    this.count += 1;
    if (this.#first.length < 3) this.#first.push(path.slice(0, 200));
  }

  note(why: string): string | null {
    if (this.count === 0) return null;
    const more = this.count - this.#first.length;
    return `Left out of the artifacts, ${why}: ${this.#first.join(', ')}${more > 0 ? ` and ${more} more` : ''}.`;
  }
}

function inGiB(bytes: number): string {
  return `${bytes / 2 ** 30} GiB`;
}
