/** A part of a log: its last lines or words, or what a reader does not have yet. */
import { stripVTControlCharacters } from 'node:util';
import { beyond, type Counts, gapPiece, gapSize, isNone, none, plus } from '../contract/gap.ts';
import type { LogPiece } from '../contract/manager.ts';

/** Most bytes of the last lines: output may have no newlines. Each piece counts for its overhead, too. */
const [tailSize, pieceOverhead] = [4 << 20, 256];

/**
 * The last existing lines, of 4 MiB at most, and with `follow` what comes then. `read` is called twice: to find where they begin,
 * and to pass them on from there. Held meanwhile, they would cost megabytes for each reader, as long as it reads. Both must begin
 * alike: what the first one counts is taken out of the second.
 */
export async function* lastLines(
  read: (follow: boolean) => AsyncIterable<LogPiece>,
  lines: number,
  follow: boolean,
): AsyncGenerator<LogPiece> {
  const { before, notes, surplus } = await beginOfLast(read(false), lines);
  let [unwanted, left, cut] = [notes, surplus, none];
  // A client that reconnects counts from the start.
  const leftOut = (): LogPiece => gapPiece({ missing: plus(before, cut), after: none, asked: true });
  if (left === 0) yield leftOut();
  for await (const piece of skip(read(follow), before)) {
    const isNote = piece.stream === 'note';
    // Notes that are not before it were lost with what is missing.
    if (!isNone(gapSize(piece))) unwanted = 0;
    if (isNote && unwanted > 0) {
      unwanted -= 1;
      continue;
    }
    if (left === 0) {
      yield piece;
      continue;
    }
    const { rest, ended } = isNote ? { rest: piece.bytes, ended: left } : afterLines(piece.bytes, left);
    left -= ended;
    if (piece.stream !== 'note') cut = plus(cut, { ...none, [piece.stream]: piece.bytes.length - rest.length });
    if (left > 0) continue;
    yield leftOut();
    if (rest.length > 0) yield { ...piece, bytes: rest };
  }
  if (left > 0) yield leftOut();
}

/** Where the last lines begin: after so many bytes, then so many notes, then so many line ends. */
interface Begin {
  readonly before: Counts;
  readonly notes: number;
  readonly surplus: number;
}

async function beginOfLast(pieces: AsyncIterable<LogPiece>, lines: number): Promise<Begin> {
  let [before, notes] = [none, 0];
  let last: { size: Counts; isNote: boolean; ends: number; weight: number }[] = [];
  // Where the kept ones begin; removing each from the front would move thousands.
  let begin = 0;
  // The newline at the very end ends a line and begins none.
  let [ends, isOpen, weight] = [0, false, 0];
  const drop = (first: (typeof last)[number]): void => {
    ends -= first.ends;
    weight -= first.weight;
    // Bytes tell where a note is, but not from its neighbours.
    if (!isNone(first.size)) [before, notes] = [plus(before, first.size), 0];
    else if (first.isNote) notes += 1;
    begin += 1;
  };
  for await (const piece of pieces) {
    const { stream, bytes } = piece;
    if (bytes.length === 0) continue;
    const weighed = { size: gapSize(piece), isNote: stream === 'note', ends: linesIn(bytes), weight: bytes.length + pieceOverhead };
    last.push(weighed);
    ends += weighed.ends;
    weight += weighed.weight;
    isOpen = bytes.at(-1) !== newline;
    const most = lines + (isOpen ? 0 : 1);
    for (let first = last[begin]; first !== undefined; first = last[begin]) {
      if (ends - first.ends < most && (weight <= tailSize || first === weighed)) break;
      drop(first);
    }
    if (begin * 2 > last.length) [last, begin] = [last.slice(begin), 0];
  }
  const surplus = Math.max(0, ends + (isOpen ? 1 : 0) - lines);
  const first = last[begin];
  // The surplus is in the first one: all others together have no more than the lines. Of a note there are no parts.
  if (surplus === 0 || first?.isNote !== true) return { before, notes, surplus: first === undefined ? 0 : surplus };
  drop(first);
  return { before, notes, surplus: 0 };
}

const newline = 10;

export function linesIn(bytes: Uint8Array): number {
  let lines = 0;
  for (let at = bytes.indexOf(newline); at !== -1; at = bytes.indexOf(newline, at + 1)) lines += 1;
  return lines;
}

/** What follows so many line ends, and how many there were. */
function afterLines(bytes: Uint8Array, lines: number): { rest: Uint8Array; ended: number } {
  let at = 0;
  for (let ended = 0; ended < lines; ended += 1) {
    const end = bytes.indexOf(newline, at);
    if (end === -1) return { rest: new Uint8Array(0), ended };
    at = end + 1;
  }
  return { rest: bytes.subarray(at), ended: lines };
}

/**
 * Skips the first bytes of each stream, and the notes in between. They may be more than come, such as words of an agent that are
 * shown only until its job begins; notes after anything new are new, too.
 */
export async function* skip(pieces: AsyncIterable<LogPiece>, { stdout, stderr }: Counts): AsyncGenerator<LogPiece> {
  let left: Counts = { stdout, stderr };
  let isNew = false;
  for await (const piece of pieces) {
    if (isNone(left) || (isNew && piece.stream === 'note' && piece.gap === undefined)) yield piece;
    else if (piece.gap !== undefined) {
      const { missing, after, holes } = piece.gap;
      const known = beyond(left, beyond(left, missing));
      left = beyond(left, missing);
      const rest = beyond(missing, known);
      isNew ||= !isNone(rest);
      if (!isNone(rest) || (isNew && holes === 'here')) yield gapPiece({ ...piece.gap, missing: rest, after: plus(after, known) });
    } else if (piece.stream !== 'note') {
      const { stream, bytes } = piece;
      const part = bytes.subarray(left[stream]);
      left = { ...left, [stream]: Math.max(0, left[stream] - bytes.length) };
      isNew ||= part.length > 0;
      if (part.length > 0) yield { ...piece, bytes: part };
    }
  }
}

/** How many lines and characters `outputTail` returns at most. */
const [wordLines, wordLength] = [6, 1_000];

/** The end of an agent's output, for a message that says why the agent failed: at most six lines without colours. */
export async function outputTail(pieces: AsyncIterable<LogPiece>): Promise<string> {
  let end = Buffer.alloc(0);
  for await (const { stream, bytes } of pieces) {
    if (stream !== 'note') end = Buffer.concat([end, bytes]).subarray(-4 * wordLength);
  }
  const lines = stripVTControlCharacters(end.toString('utf8'))
    .replaceAll(/[^\P{Cc}\n]/gu, '')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  return lines.slice(-wordLines).join('\n').slice(-wordLength);
}
