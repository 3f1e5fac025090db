/**
 * Terminal output as pieces of text with a look. Only colours and styles (SGR) have an effect; every other escape sequence and
 * control character is dropped, so output cannot do anything to the page.
 */

/** Names of colours are those of the style sheet: `c0` to `c15`. Others are CSS colours. */
export interface Look {
  readonly color: string | null;
  readonly background: string | null;
  readonly bold: boolean;
  readonly dim: boolean;
  readonly italic: boolean;
  readonly underline: boolean;
  readonly inverse: boolean;
}

export interface Piece {
  readonly text: string;
  readonly look: Look;
}

export const usual: Look = {
  color: null,
  background: null,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  inverse: false,
};

// CSI; OSC, DCS, SOS, PM and APC up to their end or the line's; other two-letter escapes. Source: ECMA-48, 5.4 and 8.3.
const sequence =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
  /(?:\u001b\[|\u009b)([0-?]*)[ -/]*([@-~]?)|\u001b[\]PX^_](?:[^\u0007\u001b\u009c]|\u001b(?!\\))*(?:\u0007|\u001b\\|\u009c|$)|\u001b[ -/]*[0-~]?/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
const control = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Each piece is an element of the page, and output may change its colour at every letter. */
const mostPieces = 200;

/** A line as pieces, and the look in which the next one begins. The last of many pieces has the rest of the line. */
export function piecesOf(line: string, start: Look = usual): { readonly pieces: readonly Piece[]; readonly end: Look } {
  const pieces: Piece[] = [];
  let look = start;
  let at = 0;
  let rest = '';
  const add = (raw: string) => {
    const text = raw.replace(control, '');
    if (text === '') return;
    if (pieces.length < mostPieces) pieces.push({ text, look });
    else rest += text;
  };
  for (const found of line.matchAll(sequence)) {
    add(line.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[2] === 'm') look = restyled(look, found[1] ?? '');
  }
  add(line.slice(at));
  const last = rest === '' ? undefined : pieces.pop();
  if (last !== undefined) pieces.push({ ...last, text: last.text + rest });
  return { pieces, end: look };
}

/** The text alone. */
export function textOf(line: string): string {
  return line.replace(sequence, '').replace(control, '');
}

function restyled(before: Look, parameters: string): Look {
  // A colon separates the parts of a colour as a semicolon does.
  const codes = parameters.split(/[;:]/).map(Number);
  let look = before;
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48) {
      const [color, used] = longColor(codes.slice(at + 1));
      at += used;
      if (color !== null) look = { ...look, [code === 38 ? 'color' : 'background']: color };
    } else look = { ...look, ...change(code) };
  }
  return look;
}

function change(code: number): Partial<Look> {
  if (code === 0) return usual;
  if (code === 1) return { bold: true };
  if (code === 2) return { dim: true };
  if (code === 3) return { italic: true };
  if (code === 4) return { underline: true };
  if (code === 7) return { inverse: true };
  if (code === 22) return { bold: false, dim: false };
  if (code === 23) return { italic: false };
  if (code === 24) return { underline: false };
  if (code === 27) return { inverse: false };
  if (code === 39) return { color: null };
  if (code === 49) return { background: null };
  if (code >= 30 && code <= 37) return { color: `c${code - 30}` };
  if (code >= 90 && code <= 97) return { color: `c${code - 82}` };
  if (code >= 40 && code <= 47) return { background: `c${code - 40}` };
  if (code >= 100 && code <= 107) return { background: `c${code - 92}` };
  return {};
}

/** The colour after 38 or 48, and how many numbers it took. */
function longColor([kind, ...numbers]: readonly number[]): [color: string | null, used: number] {
  const byte = (value = 0) => Math.min(255, Math.max(0, Math.trunc(value) || 0));
  if (kind === 2) return [`rgb(${byte(numbers[0])} ${byte(numbers[1])} ${byte(numbers[2])})`, 4];
  if (kind !== 5) return [null, 1];
  const index = byte(numbers[0]);
  if (index < 16) return [`c${index}`, 2];
  if (index > 231) {
    const grey = 8 + 10 * (index - 232);
    return [`rgb(${grey} ${grey} ${grey})`, 2];
  }
  const level = (part: number) => (part === 0 ? 0 : 55 + 40 * part);
  const cube = index - 16;
  return [`rgb(${level(Math.floor(cube / 36))} ${level(Math.floor(cube / 6) % 6)} ${level(cube % 6)})`, 2];
}
