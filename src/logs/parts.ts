/**
 * The files of one log. `AGENT.log` has the beginning of the output and is written once. What comes over its share is in `AGENT.log.a`
 * and `.b` in turn: when both are full the older one is deleted, and what must stay of it is written to `AGENT.log.kept`. All but
 * the first begin with a `position` record, so they can be put in order, and say what is missing between them.
 */
import { closeSync, openSync, readFileSync, readSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { start as origin } from '../runtimes/position.ts';
import type { LogPosition } from '../runtimes/runtime.ts';
import { type Counts, isNone } from './gap.ts';
import { decodeHead, encodeHead, encodePosition, headSize, positionAfter, positionSize, type RecordHead } from './record.ts';

/** Bytes of `.a` and of `.b` at most. */
const largestPart = 16 * 2 ** 20;

export interface Part {
  readonly path: string;
  readonly start: LogPosition;
}

export interface Shares {
  readonly first: number;
  /** Of `.a` and of `.b`. */
  readonly part: number;
}

/** How a limit is shared out: what is printed below it is kept whole, of more the beginning and at least a quarter, or 16 MiB, of the end. */
export function sharesOf(limit: number): Shares {
  const part = Math.min(largestPart, Math.ceil(limit / 4));
  return { first: Math.max(0, limit - 2 * part), part };
}

const later = (path: string) => [`${path}.a`, `${path}.b`] as const;

/** Where each part but the first begins, in order. Writes nothing. */
export function partsOf(path: string): { readonly parts: readonly Part[]; readonly kept: string; readonly broken: string[] } {
  const parts: Part[] = [];
  const broken: string[] = [];
  for (const part of later(path)) {
    const start = positionAt(part);
    if (start === 'broken') broken.push(part);
    else if (start !== null) parts.push({ path: part, start });
  }
  return { parts: parts.sort((a, b) => total(a.start) - total(b.start)), kept: `${path}.kept`, broken };
}

/** The path of the part to begin after these. */
export function nextPart(path: string, parts: readonly Part[]): string {
  const [a, b] = later(path);
  return parts.at(-1)?.path === a ? b : a;
}

/** All files of a log. */
export function filesOf(path: string): string[] {
  return [path, ...later(path), `${path}.kept`, `${path}.kept.new`];
}

/**
 * Takes over what must stay of a part that is about to be deleted: of each stream its last `wanted` bytes, fewer if there are not so
 * many. Doing it again for a part that was taken over changes nothing.
 */
export function takeOver(kept: string, part: Part, end: Counts, wanted: Counts): void {
  if (isNone(wanted)) {
    rmSync(kept, { force: true });
    return;
  }
  if (hasTakenOver(kept, end)) return;
  const old = readOr(kept);
  const left = { ...wanted };
  const taken: Buffer[] = [];
  let isWhole = { stdout: true, stderr: true };
  for (const bytes of [readFileSync(part.path), ...(old === null ? [] : [old])]) {
    const last = lastRecords(bytes);
    for (const { type, body } of last.records.reverse()) {
      const more = body.subarray(Math.max(0, body.length - (isWhole[type] ? left[type] : 0)));
      if (more.length === 0) continue;
      left[type] -= more.length;
      taken.unshift(encodeHead({ type, time: 0n, atTime: 0, dropped: 0, length: more.length }), more);
    }
    isWhole = { stdout: isWhole.stdout && last.isWhole.stdout, stderr: isWhole.stderr && last.isWhole.stderr };
  }
  const start = { stdout: end.stdout - wanted.stdout + left.stdout, stderr: end.stderr - wanted.stderr + left.stderr };
  writeFileSync(`${kept}.new`, Buffer.concat([encodePosition({ ...origin, ...start }), ...taken]), { mode: 0o600 });
  renameSync(`${kept}.new`, kept);
}

/** Whether `kept` goes up to there. */
export function hasTakenOver(kept: string, end: Counts): boolean {
  const bytes = readOr(kept);
  if (bytes === null) return false;
  const has = endOf(bytes);
  return has.stdout >= end.stdout && has.stderr >= end.stderr;
}

interface Output {
  readonly type: 'stdout' | 'stderr';
  readonly body: Buffer;
}

/** The output of each stream after its last hole in a file; `isWhole`: there is none. */
function lastRecords(bytes: Buffer) {
  let records: Output[] = [];
  const isWhole = { stdout: true, stderr: true };
  let position = origin;
  for (const { head, body, at } of recordsOf(bytes)) {
    const before = position;
    position = positionAfter(before, head, body, 0);
    if (head.type === 'stdout' || head.type === 'stderr') records.push({ type: head.type, body });
    if (head.type !== 'position' || at === 0) continue;
    for (const stream of ['stdout', 'stderr'] as const) {
      if (position[stream] === before[stream]) continue;
      isWhole[stream] = false;
      records = records.filter(({ type }) => type !== stream);
    }
  }
  return { records, isWhole };
}

function endOf(bytes: Buffer): Counts {
  let position = origin;
  for (const { head, body } of recordsOf(bytes)) position = positionAfter(position, head, body, 0);
  return position;
}

function* recordsOf(bytes: Buffer): Generator<{ readonly head: RecordHead; readonly body: Buffer; readonly at: number }> {
  for (let at = 0; ; ) {
    const head = decodeHead(bytes, at);
    const next = at + headSize + (head?.length ?? 0);
    if (head === null || next > bytes.length) return;
    yield { head, body: bytes.subarray(at + headSize, next), at };
    at = next;
  }
}

/** What a part's first record says; null when there is no such part. */
function positionAt(path: string): LogPosition | 'broken' | null {
  const bytes = Buffer.alloc(headSize + positionSize);
  let file: number;
  try {
    file = openSync(path, 'r');
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ENOENT') return null;
    throw error;
  }
  try {
    const length = readSync(file, bytes, 0, bytes.length, 0);
    const head = decodeHead(bytes, 0);
    if (length < bytes.length || head?.type !== 'position') return 'broken';
    return positionAfter(origin, head, bytes, headSize);
  } finally {
    closeSync(file);
  }
}

function readOr(path: string): Buffer | null {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ENOENT') return null;
    throw error;
  }
}

function total({ stdout, stderr }: Counts): number {
  return stdout + stderr;
}
