/**
 * Output that was written for a terminal, as a file wants it: without colours, titles and notes to whatever draws it, and with the
 * line ends of a file. Works on bytes, piece by piece, however sequences are cut.
 */

/** Escape sequences by ECMA-48: strings up to their end, CSI, and all others. */
const strings = '\\u001b[\\]_PX^][^\\u0007\\u001b]*(?:\\u0007|\\u001b\\\\)';
const csi = '\\u001b\\[[0-?]*[ -/]*[@-~]';
const others = '\\u001b[ -/]*[0-OQ-WYZ\\\\`-~]';
// A run of returns is taken whole, whatever follows: a search that begins anew at each of them takes the square of their number.
const taken = new RegExp(`${strings}|${csi}|${others}|\\r+\\n?`, 'g');
/** What may go on in the next piece. No longer than that: an escape that never ends must not hold output back for ever. */
const begun = '(?:[\\]_PX^][^\\u0007\\u001b]{0,1024}\\u001b?|\\[[0-?]{0,64}[ -/]{0,8}|[ -/]{0,8})';
const open = new RegExp(`\\u001b${begun}$`);
/** Returns that wait for what follows them: those of a line end, and of nobody who prints nothing else. */
const heldReturns = 1_024;

/** The same as text, also by their one-byte forms (C1). */
const stringEnd = '(?:\\u0007|\\u001b\\\\|\\u009c)';
// No other string begins in it: where many begin and none ends, each would be looked through to the end of the text.
const inString = '[^\\u0007\\u001b\\u0090\\u0098\\u009c-\\u009f]';
const stringBegin = '(?:\\u001b[\\]_PX^]|[\\u0090\\u0098\\u009d-\\u009f])';
const csiBegin = '(?:\\u001b\\[|\\u009b)';
const foreign = new RegExp(`${stringBegin}${inString}*${stringEnd}|${csiBegin}[0-?]*[ -/]*[@-~]|${others}`, 'g');
const sgr = '\\u001b\\[[0-9;:]*m';
const color = new RegExp(`^${sgr}$`);
/** What is left of them, and all else that moves the cursor but to the next line, the next tab stop or the begin of its line. */
const controls = new RegExp(
  `[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001a\\u001c-\\u001f\\u007f-\\u009f]|\\u001b(?!${sgr.slice(6)})`,
  'g',
);
const begunAnywhere = new RegExp(
  `(?:${stringBegin}${inString}{0,1024}\\u001b?|${csiBegin}[0-?]{0,64}[ -/]{0,8}|\\u001b[ -/]{0,8})$`,
);

/**
 * Somebody else's output for one's own terminal: text and colours (SGR), and nothing by which a terminal could be told to answer, to
 * take over the clipboard, or to show what was not printed. Bytes that are not UTF-8 become U+FFFD.
 */
export function createColorsOnly(): Plain {
  const decoder = new TextDecoder();
  let held = '';
  const clean = (text: string): Buffer =>
    Buffer.from(text.replace(foreign, (found) => (color.test(found) ? found : '')).replace(controls, ''));
  return {
    take(bytes) {
      const text = held + decoder.decode(bytes, { stream: true });
      const cut = begunAnywhere.exec(text)?.index ?? text.length;
      held = text.slice(cut);
      return clean(text.slice(0, cut));
    },
    rest() {
      const text = held + decoder.decode();
      held = '';
      return clean(text);
    },
  };
}

export interface Plain {
  take(bytes: Uint8Array): Buffer;
  /** What was held back for the next piece, of which there is none. */
  rest(): Buffer;
}

export function createPlain(): Plain {
  let held = '';
  return {
    take(bytes) {
      const text = held + Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1');
      const cut = open.exec(text)?.index ?? beforeReturns(text);
      held = text.slice(cut);
      return Buffer.from(text.slice(0, cut).replace(taken, withoutReturns), 'latin1');
    },
    rest() {
      const bytes = Buffer.from(held, 'latin1');
      held = '';
      return bytes;
    },
  };
}

/** Where the returns begin that the text ends in, or the last of them where they are too many. */
function beforeReturns(text: string): number {
  let at = text.length;
  while (at > 0 && text.length - at < heldReturns && text[at - 1] === '\r') at -= 1;
  return at;
}

/** What stays of a sequence, or of returns and what follows them. */
function withoutReturns(found: string): string {
  if (!found.startsWith('\r')) return '';
  return found.endsWith('\n') ? '\n' : found;
}
