/** A part of a log: its last lines or words, or what a reader does not have yet. */
import { stripVTControlCharacters } from 'node:util';
import type { LogPiece } from '../api/manager.ts';
import { beyond, type Counts, gapPiece, isNone, none, plus, sizeOf } from './gap.ts';

/** Memory for the last lines of one reader, bytes: output may have no newlines. Each piece counts for its overhead, too. */
const [tailSize, pieceOverhead] = [4 << 20, 256];

/** The last existing lines, of 4 MiB at most, and with `follow` what comes then. */
export async function* lastLines(
  read: (follow: boolean) => AsyncIterable<LogPiece>,
  lines: number,
  follow: boolean,
): AsyncGenerator<LogPiece> {
  let told: Counts = none;
  let last: { piece: LogPiece; ends: number }[] = [];
  // Where the kept ones begin; removing each from the front would move thousands.
  let begin = 0;
  // The newline at the very end ends a line and begins none.
  let [ends, isOpen, size] = [0, false, 0];
  for await (const piece of read(false)) {
    told = plus(told, sizeOf(piece));
    const one = { piece, ends: count(piece.bytes) };
    last.push(one);
    ends += one.ends;
    size += weightOf(piece);
    isOpen = piece.bytes.at(-1) !== newline;
    const most = lines + (isOpen ? 0 : 1);
    for (let first = last[begin]; first !== undefined; first = last[begin]) {
      if (ends - first.ends < most && (size <= tailSize || first === one)) break;
      ends -= first.ends;
      size -= weightOf(first.piece);
      begin += 1;
    }
    if (begin * 2 > last.length) [last, begin] = [last.slice(begin), 0];
  }
  last = last.slice(begin);
  const surplus = ends + (isOpen ? 1 : 0) - lines;
  const shown = last.flatMap(({ piece }, index): LogPiece[] => {
    if (index > 0 || surplus <= 0) return [piece];
    return piece.stream === 'note' ? [] : [{ ...piece, bytes: afterLines(piece.bytes, surplus) }];
  });
  // A client that reconnects counts from the start.
  const kept = shown.reduce((sum, piece) => plus(sum, sizeOf(piece)), none);
  yield gapPiece({ missing: beyond(told, kept), after: none, asked: true });
  yield* shown;
  if (follow) yield* skip(read(true), told);
}

function weightOf({ bytes }: LogPiece): number {
  return bytes.length + pieceOverhead;
}

const newline = 10;

function count(bytes: Uint8Array): number {
  let found = 0;
  for (let at = bytes.indexOf(newline); at !== -1; at = bytes.indexOf(newline, at + 1)) found += 1;
  return found;
}

/** What follows so many lines. */
function afterLines(bytes: Uint8Array, lines: number): Uint8Array {
  let at = 0;
  for (let left = lines; left > 0; left -= 1) {
    const end = bytes.indexOf(newline, at);
    if (end === -1) return new Uint8Array(0);
    at = end + 1;
  }
  return bytes.subarray(at);
}

/** Skips the first bytes of each stream, and the notes in between. */
export async function* skip(pieces: AsyncIterable<LogPiece>, { stdout, stderr }: Counts): AsyncGenerator<LogPiece> {
  let left: Counts = { stdout, stderr };
  for await (const piece of pieces) {
    if (isNone(left)) yield piece;
    else if (piece.gap !== undefined) {
      const { missing, after } = piece.gap;
      const known = beyond(left, beyond(left, missing));
      left = beyond(left, missing);
      const rest = beyond(missing, known);
      if (!isNone(rest)) yield gapPiece({ missing: rest, after: plus(after, known) });
    } else if (piece.stream !== 'note') {
      const { stream, bytes } = piece;
      const part = bytes.subarray(left[stream]);
      left = { ...left, [stream]: Math.max(0, left[stream] - bytes.length) };
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
  const said = stripVTControlCharacters(end.toString('utf8'))
    .replaceAll(/[^\P{Cc}\n]/gu, '')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  return said.slice(-wordLines).join('\n').slice(-wordLength);
}
