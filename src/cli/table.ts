/** Rows in aligned columns. At a terminal the last column gives way; in a pipe nothing is cut. */
import { widthOf } from './color.ts';

/** `width`: columns of the terminal, null for a pipe. Lines come without their newline. */
export function table(rows: readonly (readonly string[])[], width: number | null, indent = ''): string[] {
  const columns = Math.max(0, ...rows.map((row) => row.length));
  const widths = Array.from({ length: columns }, (_, at) => Math.max(...rows.map((row) => widthOf(row[at] ?? ''))));
  return rows.map((row) => {
    const cells = row.map((cell, at) => (at === row.length - 1 ? cell : cell + ' '.repeat((widths[at] ?? 0) - widthOf(cell))));
    return cut(`${indent}${cells.join('  ')}`.trimEnd(), width);
  });
}

/** Cuts a line to `width` columns; colours stay whole and are ended. */
export function cut(line: string, width: number | null): string {
  if (width === null || widthOf(line) <= width) return line;
  let out = '';
  let left = width - 1;
  let colored = false;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
  for (const [part] of line.matchAll(/\u001b\[[0-9;]*m|./gsu)) {
    if (part.startsWith('\u001b')) {
      out += part;
      colored = true;
    } else if (left > 0) {
      out += part;
      left -= 1;
    } else break;
  }
  return `${out}…${colored ? '\u001b[0m' : ''}`;
}

/** Breaks a text into lines of at most `width` columns at spaces, and inside a word only where it is longer than a line. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    for (const [at, piece] of chop(word, width).entries()) {
      if (line === '') line = piece;
      else if (at === 0 && widthOf(line) + 1 + widthOf(piece) <= width) line += ` ${piece}`;
      else {
        lines.push(line);
        line = piece;
      }
    }
  }
  return [...lines, line];
}

function chop(word: string, width: number): string[] {
  const letters = [...word];
  return Array.from({ length: Math.ceil(letters.length / width) }, (_, at) => letters.slice(at * width, (at + 1) * width).join(''));
}

/** A text after `lead`; at a terminal what does not fit goes on below it, indented as far. */
export function hang(lead: string, text: string, width: number | null): string[] {
  if (width === null) return [lead + text];
  const indent = ' '.repeat(widthOf(lead));
  return wrap(text, Math.max(1, width - indent.length)).map((line, at) => (at === 0 ? lead : indent) + line);
}

/** As `hang`, for sentences: a word that is longer than a line stays whole, so that a path or command can be copied. */
export function flow(lead: string, text: string, width: number | null): string {
  if (width === null || widthOf(lead) + widthOf(text) <= width) return lead + text;
  const lines: string[] = [];
  let line = lead;
  let isEmpty = true;
  for (const word of text.split(' ')) {
    if (isEmpty) line += word;
    else if (widthOf(line) + 1 + widthOf(word) <= width) line += ` ${word}`;
    else {
      lines.push(line);
      line = `  ${word}`;
    }
    isEmpty = false;
  }
  return [...lines, line].join('\n');
}
