import fc from 'fast-check';
import { expect, it } from 'vitest';
import { fileNameOf, textOfFileName } from './file-name.ts';

it('any text becomes one name of a file, and short texts come back', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 400 }), (text) => {
      const name = fileNameOf(text);
      expect(name).toMatch(/^[\w%!~*'()-][\w.%!~*'()-]{0,254}$/);
      if (!name.includes('%~')) expect(textOfFileName(name)).toBe(text.toWellFormed());
    }),
  );
});

it.each([
  ['', '%'],
  ['.', '%2E'],
  ['..', '%2E.'],
  ['.trash', '%2Etrash'],
  ['a/../../b', 'a%2F..%2F..%2Fb'],
  ['ä\n', '%C3%A4%0A'],
])('%j', (text, name) => {
  expect(fileNameOf(text)).toBe(name);
  expect(textOfFileName(name)).toBe(text);
});

it('long texts with the same beginning differ', () => {
  const [one, other] = ['a', 'b'].map((end) => fileNameOf(`${'x/'.repeat(200)}${end}`));
  expect(one).not.toBe(other);
  expect(textOfFileName(one ?? '')).toMatch(/^(x\/)+x?…$/);
});
