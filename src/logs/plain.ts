/**
 * Terminal output for a file: without colours, titles and messages to the terminal, and with the line ends of a file. Works on
 * bytes in pieces, wherever sequences are cut.
 */

/** Escape sequences of ECMA-48: strings up to their end, CSI, and all others. */
const strings = '\\u001b[\\]_PX^][^\\u0007\\u001b]*(?:\\u0007|\\u001b\\\\)';
const csi = '\\u001b\\[[0-?]*[ -/]*[@-~]';
const others = '\\u001b[ -/]*[0-OQ-WYZ\\\\`-~]';
// A run of returns is matched as a whole: starting a search at each of them would take quadratic time.
const taken = new RegExp(`${strings}|${csi}|${others}|\\r+\\n?`, 'g');
/** A sequence that may continue in the next piece. Its length is limited: an endless escape must not hold output back forever. */
const begun = '(?:[\\]_PX^][^\\u0007\\u001b]{0,1024}\\u001b?|\\[[0-?]{0,64}[ -/]{0,8}|[ -/]{0,8})';
const open = new RegExp(`\\u001b${begun}$`);
/** Returns that wait for the next character, since they may belong to a line end. */
const heldReturns = 1_024;

/** The same as text, with the one-byte forms (C1). */
const stringEnd = '(?:\\u0007|\\u001b\\\\|\\u009c)';
// No other string begins inside one. Otherwise many unterminated strings would each be searched to the end of the text.
const inString = '[^\\u0007\\u001b\\u0090\\u0098\\u009c-\\u009f]';
const stringBegin = '(?:\\u001b[\\]_PX^]|[\\u0090\\u0098\\u009d-\\u009f])';
const csiBegin = '(?:\\u001b\\[|\\u009b)';
const foreign = new RegExp(`${stringBegin}${inString}*${stringEnd}|${csiBegin}[0-?]*[ -/]*[@-~]|${others}`, 'g');
const sgr = '\\u001b\\[[0-9;:]*m';
const color = new RegExp(`^${sgr}$`);
/**
 * The rest of such sequences, and everything else that moves the cursor except to the next line, the next tab stop or the
 * beginning of its line.
 */
const controls = new RegExp(
  `[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001a\\u001c-\\u001f\\u007f-\\u009f]|\\u001b(?!${sgr.slice(6)})`,
  'g',
);
const begunAnywhere = new RegExp(
  `(?:${stringBegin}${inString}{0,1024}\\u001b?|${csiBegin}[0-?]{0,64}[ -/]{0,8}|\\u001b[ -/]{0,8})$`,
);

/** Cleans one stream. */
export interface Plain {
  take(bytes: Uint8Array): Buffer;
  /** What was held back for a next piece, at the end. */
  rest(): Buffer;
}

/**
 * Foreign output for one's own terminal: text and colours (SGR), and nothing that could make a terminal answer, change the
 * clipboard, or show what was not printed. Bytes that are not UTF-8 become U+FFFD.
 */
export function createColorsOnly(): Plain {
  const decoder = new TextDecoder();
  const clean = (text: string): Buffer =>
    Buffer.from(text.replace(foreign, (sequence) => (color.test(sequence) ? sequence : '')).replace(controls, ''));
  const cutAt = (text: string): number => begunAnywhere.exec(text)?.index ?? text.length;
  return inPieces((bytes) => decoder.decode(bytes, { stream: bytes !== undefined }), cutAt, clean, clean);
}

export function createPlain(): Plain {
  const decode = (bytes: Uint8Array = new Uint8Array(0)): string =>
    Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1');
  const cutAt = (text: string): number => open.exec(text)?.index ?? beforeReturns(text);
  const encode = (text: string): Buffer => Buffer.from(text, 'latin1');
  return inPieces(decode, cutAt, (text) => encode(text.replace(taken, withoutReturns)), encode);
}

/** Cleans text up to `cutAt`, and holds back the rest, where a sequence may have begun. */
function inPieces(
  decode: (bytes?: Uint8Array) => string,
  cutAt: (text: string) => number,
  clean: (text: string) => Buffer,
  cleanEnd: (text: string) => Buffer,
): Plain {
  let pending = '';
  return {
    take(bytes) {
      const text = pending + decode(bytes);
      const cut = cutAt(text);
      pending = text.slice(cut);
      return clean(text.slice(0, cut));
    },
    rest() {
      const text = pending + decode();
      pending = '';
      return cleanEnd(text);
    },
  };
}

/** Where the returns at the end of the text begin, or the last of them if there are too many. */
function beforeReturns(text: string): number {
  let at = text.length;
  while (at > 0 && text.length - at < heldReturns && text[at - 1] === '\r') at -= 1;
  return at;
}

/** What remains of a sequence, or of returns and the next character. */
function withoutReturns(sequence: string): string {
  if (!sequence.startsWith('\r')) return '';
  return sequence.endsWith('\n') ? '\n' : sequence;
}
