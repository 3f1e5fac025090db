/**
 * Output that was written for a terminal, as a file wants it: without colours, titles and notes to whatever draws it, and with the
 * line ends of a file. Works on bytes, piece by piece, however sequences are cut.
 */

/** Escape sequences by ECMA-48: strings up to their end, CSI, and all others. */
const strings = '\\u001b[\\]_PX^][^\\u0007\\u001b]*(?:\\u0007|\\u001b\\\\)';
const csi = '\\u001b\\[[0-?]*[ -/]*[@-~]';
const others = '\\u001b[ -/]*[0-OQ-WYZ\\\\`-~]';
const taken = new RegExp(`${strings}|${csi}|${others}|\\r+(?=\\n)`, 'g');
/** What may go on in the next piece. No longer than that: an escape that never ends must not hold output back for ever. */
const begun = '(?:[\\]_PX^][^\\u0007\\u001b]{0,1024}\\u001b?|\\[[0-?]{0,64}[ -/]{0,8}|[ -/]{0,8})';
const open = new RegExp(`(?:\\u001b${begun}|\\r+)$`);

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
      const cut = open.exec(text)?.index ?? text.length;
      held = text.slice(cut);
      return Buffer.from(text.slice(0, cut).replace(taken, ''), 'latin1');
    },
    rest() {
      const bytes = Buffer.from(held, 'latin1');
      held = '';
      return bytes;
    },
  };
}
