/**
 * What this user has sent of a folder to a daemon, and where the daemon has it: a file in the user's cache folder, which may be lost
 * at any time. An entry is taken as unchanged by the rules of Git's index: its inode, mode, size and both times are the same, and
 * it had been unchanged for a while when it was read, so that no later change can have had the same time.
 */
import { hash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { writeWhole } from '../system/files.ts';
import type { Entry, ListedWorkspace } from './pack.ts';

/** A tar that the daemon keeps: its secret name, and its bytes. */
type Sent = readonly [name: string, size: number];
/** Which of the tars, from which byte and to before which. */
export type Range = readonly [at: number, from: number, to: number];
type Row = readonly [path: string, stamp: string, ...Range];

export interface Memory {
  readonly sent: readonly Sent[];
  readonly rows: readonly Row[];
}

export interface Plan {
  /** Tars that are used again. */
  readonly sent: readonly Sent[];
  /** Where in them entries are, by path. */
  readonly known: ReadonlyMap<string, Range>;
  /** What is to be sent. */
  readonly missing: readonly Entry[];
}

/** What the daemon takes at most; a workspace of more parts is sent whole. */
const [mostTars, mostRanges] = [8, 20_000];
/** ms. Clocks of file systems tick, and that of FAT every two seconds. */
const settled = 2_000;
/** ms after which what is remembered of a folder is dropped. */
const staleAfter = 30 * 86_400_000;

/** What to send of a workspace. A tar of which less than half is still in use is given up, and so are the smallest of many. */
export function planOf(entries: readonly Entry[], { sent, rows }: Memory): Plan {
  const remembered = new Map(rows.map((row) => [row[0], row]));
  const used = sent.map(() => 0);
  const same: Row[] = [];
  for (const { path, stamp } of entries) {
    const row = remembered.get(path);
    if (row === undefined || row[1] !== stamp) continue;
    used[row[2]] = (used[row[2]] ?? 0) + row[4] - row[3];
    same.push(row);
  }
  const worth = sent
    .map((tar, at) => ({ tar, at, used: used[at] ?? 0 }))
    .filter((one) => one.used * 2 >= one.tar[1])
    .sort((a, b) => b.used - a.used)
    .slice(0, mostTars - 1);
  const places = new Map(worth.map(({ at }, place) => [at, place]));
  const known = new Map<string, Range>();
  for (const [path, , at, from, to] of same) {
    const place = places.get(at);
    if (place !== undefined) known.set(path, [place, from, to]);
  }
  return { sent: worth.map(({ tar }) => tar), known, missing: entries.filter(({ path }) => !known.has(path)) };
}

/** What is remembered once everything is there, and the ranges that are the workspace; null if those are too many. */
export function rememberedOf({ entries, at }: ListedWorkspace, sent: Memory['sent'], known: Plan['known']) {
  const rows: Row[] = [];
  const ranges: [number, number, number][] = [];
  for (const { path, stamp, changed } of entries) {
    const range = known.get(path);
    if (range === undefined) continue;
    // Git calls such an entry racily clean.
    rows.push([path, changed < at - settled ? stamp : '', ...range]);
    const last = ranges.at(-1);
    if (last !== undefined && last[0] === range[0] && last[2] === range[1]) last[2] = range[2];
    else ranges.push([...range]);
  }
  const [, size = 0] = sent[0] ?? [];
  ranges.push([0, size - endMark, size]);
  return ranges.length > mostRanges ? null : { memory: { sent, rows }, ranges };
}

/** Bytes at the end of every tar. */
const endMark = 1024;

/** The file for a folder. `daemon`: what tells daemons apart. */
export function memoryFile(cacheHome: string, daemon: string, top: string): string {
  return join(cacheHome, 'onejob', 'sent', hash('sha256', JSON.stringify([1, daemon, top])));
}

/** Nothing if there is none, or it is not as it was written. */
export function readMemory(file: string): Memory {
  const [sum, text = ''] = attempt(() => readFileSync(file, 'utf8').split('\n', 2)) ?? [];
  return sum === hash('sha256', text) ? (JSON.parse(text) as Memory) : { sent: [], rows: [] };
}

/** Also drops what was not written for long. `now`: ms since the epoch. Failures do no harm. */
export function writeMemory(file: string, memory: Memory, now: number): void {
  attempt(() => {
    const folder = dirname(file);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const text = JSON.stringify(memory);
    writeWhole(file, `${hash('sha256', text)}\n${text}`, { over: true, mode: 0o600 });
    // Root may write to a home whose user has put a link to another folder here.
    const own = readdirSync(folder).filter((name) => /^[0-9a-f]{64}(\.\d+\.new)?$/.test(name));
    for (const path of own.map((name) => join(folder, name)))
      if (statSync(path).mtimeMs < now - staleAfter) rmSync(path, { force: true });
  });
}
