/** Colours as functions, so that a text is the same with and without them. */
export interface Colors {
  bold(text: string): string;
  dim(text: string): string;
  red(text: string): string;
  green(text: string): string;
  yellow(text: string): string;
}

export function createColors(enabled: boolean): Colors {
  const paint = (on: number, off: number) => (text: string) =>
    enabled && text !== '' ? `\u001b[${on}m${text}\u001b[${off}m` : text;
  return {
    bold: paint(1, 22),
    dim: paint(2, 22),
    red: paint(31, 39),
    green: paint(32, 39),
    yellow: paint(33, 39),
  };
}

/** Columns a text takes, colours not counted. */
export function widthOf(text: string): number {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
  return [...text.replace(/\u001b\[[0-9;]*m/g, '')].length;
}

/** Text from elsewhere made fit for one line of a terminal: no control characters that could move the cursor or lie. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
  return text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ');
}

/** The same for text of many lines: their ends, and tabs, stay. */
export function harmless(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
  return text.replace(/\r\n/g, '\n').replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, ' ');
}
