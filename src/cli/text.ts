/** Text for terminals and pipes: colours, tables, lines that fit, times and sizes for people. */

type Paint = (text: string) => string;

/** Colours as functions, which change nothing when they are disabled. */
export type Colors = Readonly<Record<'bold' | 'dim' | 'red' | 'green' | 'yellow', Paint>>;

export function createColors(enabled: boolean): Colors {
  const paint =
    (on: number, off: number): Paint =>
    (text) =>
      enabled && text !== '' ? `\u001b[${on}m${text}\u001b[${off}m` : text;
  return { bold: paint(1, 22), dim: paint(2, 22), red: paint(31, 39), green: paint(32, 39), yellow: paint(33, 39) };
}

/** Columns a text takes, colours not counted. */
export function widthOf(text: string): number {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
  return [...text.replace(/\u001b\[[0-9;]*m/g, '')].length;
}

/** They hide text, or turn its direction: one name would look like another. As the dashboard has it. */
const deceiving = /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\u{e0000}-\u{e007f}]/gu;

/** Those of them that turn it; the others have a use in text of several lines, as in an emoji. */
const turning = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Foreign text made safe for one line of a terminal: without control characters, and with signs that nobody sees as \ufffd. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
  return text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').replace(deceiving, '\ufffd');
}

/** The same for text of several lines: newlines and tabs stay. */
export function harmless(text: string): string {
  return (
    text
      .replace(/\r\n/g, '\n')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
      .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, ' ')
      .replace(turning, '\ufffd')
  );
}

// Those of `createColors` and `cut`, and no others: a sequence may also hide text, or move the cursor.
// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const ownLook = /(\u001b\[(?:0|1|2|22|31|32|33|39)m)/;

/** Text that may have our colours and foreign names in it, with nothing else that a terminal obeys. `clean`: makes the rest safe. */
export function colored(text: string, clean: (text: string) => string = printable): string {
  return text
    .split(ownLook)
    .map((part, at) => (at % 2 === 1 ? part : clean(part)))
    .join('');
}

/** Columns and rows of a terminal. One that was given no size, as by `script` without a terminal, says 0. */
export function terminalSize({ columns, rows }: { readonly columns?: number | undefined; readonly rows?: number | undefined }) {
  return { columns: columns || 80, rows: rows || 24 };
}

/** Rows in aligned columns, as lines. Cells may be foreign. `width`: columns of the terminal, where long lines are cut; null for a pipe. */
export function table(given: readonly (readonly string[])[], width: number | null, indent = ''): string[] {
  const rows = given.map((row) => row.map((cell) => colored(cell)));
  const columns = Math.max(0, ...rows.map((row) => row.length));
  const widths = Array.from({ length: columns }, (_, at) => Math.max(...rows.map((row) => widthOf(row[at] ?? ''))));
  return rows.map((row) => {
    const cells = row.map((cell, at) => (at === row.length - 1 ? cell : cell + ' '.repeat((widths[at] ?? 0) - widthOf(cell))));
    return cut(`${indent}${cells.join('  ')}`.trimEnd(), width);
  });
}

/** Rows of a table, one or more, as cells by the titles of their columns; all have the same. */
export function titledTable(
  rows: readonly Readonly<Record<string, string>>[],
  { colors, width }: { readonly colors: Colors; readonly width: number | null },
): string[] {
  const [head = '', ...lines] = table([Object.keys(rows[0] ?? {}), ...rows.map((row) => Object.values(row))], width);
  return [colors.dim(head), ...lines];
}

/** Cuts a line to `width` columns; colours are ended. */
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

/** Text that replaces the previous page without flicker: home, then each line cleared to its end, then everything below. */
export function redrawn(lines: readonly string[]): string {
  return `\u001b[H${lines.map((each) => `${each}\u001b[K`).join('\n')}\u001b[J`;
}

/** Breaks a text into lines of at most `width` columns at spaces, and inside a word only where it is longer than a line. */
export function wrap(text: string, width: number): string[] {
  return fill(chopped(text, width), '', '', width);
}

/** The words of a text; those longer than a line in pieces. */
function chopped(text: string, width: number): string[] {
  return text.split(' ').flatMap((word) => {
    const letters = [...word];
    return Array.from({ length: Math.ceil(letters.length / width) }, (_, at) =>
      letters.slice(at * width, (at + 1) * width).join(''),
    );
  });
}

/** Words in lines, the first after `lead`, the others after `indent`. */
function fill([first = '', ...words]: readonly string[], lead: string, indent: string, width: number): string[] {
  const lines: string[] = [];
  let line = lead + first;
  for (const word of words) {
    if (widthOf(line) + 1 + widthOf(word) <= width) line += ` ${word}`;
    else {
      lines.push(line);
      line = indent + word;
    }
  }
  return [...lines, line];
}

/** A text after `lead`; at a terminal it continues on lines that are indented as far. */
export function hang(lead: string, text: string, width: number | null): string[] {
  if (width === null) return [lead + text];
  const indent = ' '.repeat(widthOf(lead));
  const room = Math.max(1, width - indent.length);
  return fill(chopped(text, room), lead, indent, indent.length + room);
}

/** As `hang`, for sentences: a word longer than a line stays whole, so that a path or command can be copied. */
export function flow(lead: string, text: string, width: number | null): string {
  if (width === null || widthOf(lead) + widthOf(text) <= width) return lead + text;
  return fill(text.split(' '), lead, '  ', width).join('\n');
}

/** Rounded, unlike those of the config: `4s`, `2m 05s`, `3h 07m`, `2d 4h`. */
export function formatAge(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const two = (count: number) => String(count).padStart(2, '0');
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)}h ${two(Math.floor(seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86_400)}d ${Math.floor(seconds / 3_600) % 24}h`;
}

/** `1 card`, `2 cards`. */
export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}
