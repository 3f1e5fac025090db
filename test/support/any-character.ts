/**
 * Any character, for strings of properties: `fc.string({ unit: anyCharacter })`. It draws what `unit: 'binary'` draws, which keeps
 * a table of all million characters to read one back; this computes it, and saves each worker a second.
 */
import fc from 'fast-check';

/** Halves of pairs are none: they come in between. */
const firstHalf = 0xd800;
const halves = 0x800;

export const anyCharacter: fc.Arbitrary<string> = fc.nat(0x10ffff - halves).map(
  (index) => String.fromCodePoint(index < firstHalf ? index : index + halves),
  (character) => {
    const code = typeof character === 'string' ? character.codePointAt(0) : undefined;
    if (code === undefined || String.fromCodePoint(code) !== character || (code >= firstHalf && code < firstHalf + halves))
      throw new Error('not one character');
    return code < firstHalf ? code : code - halves;
  },
);
