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

/** Breaks a text into lines of at most `width` columns at spaces. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && widthOf(line) + 1 + widthOf(word) > width) {
      lines.push(line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line];
}
