import { expect, test } from 'vitest';
import { isGiven } from './unfaithful.ts';

const given = Buffer.concat([Buffer.from('run\0--\0e-'), Buffer.from([0xe9]), Buffer.from('\0the \ufffd itself\0last-\ufffd')]);
const ask = (text: string) => isGiven(text, 'cmdline', () => given);

test('a text with bytes that are not UTF-8 is another than the one that was given', () => {
  expect(['plain', 'the \ufffd itself', 'last-\ufffd', 'e-\ufffd', 'itself\ufffd'].map(ask)).toEqual([
    true,
    true,
    true,
    false,
    false,
  ]);
});

test('without /proc nothing is refused', () => {
  const read = () => {
    throw new Error('ENOENT');
  };
  expect(isGiven('e-\ufffd', 'environ', read)).toBe(true);
});
