import { expect, test } from 'vitest';
import { piecesOf, textOf, usual } from './ansi.ts';

const esc = '\u001b';
const looks = (line: string) =>
  piecesOf(line).pieces.map(({ text, look }) => [
    text,
    Object.fromEntries(Object.entries(look).filter(([, value]) => value !== null && value !== false)),
  ]);

test('colours and styles', () => {
  expect(looks(`a${esc}[31mred${esc}[1;4mmore${esc}[0m.`)).toEqual([
    ['a', {}],
    ['red', { color: 'c1' }],
    ['more', { color: 'c1', bold: true, underline: true }],
    ['.', {}],
  ]);
  expect(looks(`${esc}[92;44mx${esc}[39;49;7my${esc}[27mz${esc}[m!`)).toEqual([
    ['x', { color: 'c10', background: 'c4' }],
    ['y', { inverse: true }],
    ['z', {}],
    ['!', {}],
  ]);
});

test('colours of 256 and of 24 bits, in both notations', () => {
  expect(looks(`${esc}[38;5;9ma${esc}[38;5;196mb${esc}[48;5;250mc`)).toEqual([
    ['a', { color: 'c9' }],
    ['b', { color: 'rgb(255 0 0)' }],
    ['c', { color: 'rgb(255 0 0)', background: 'rgb(188 188 188)' }],
  ]);
  expect(looks(`${esc}[38;2;1;2;999;1mx`)).toEqual([['x', { color: 'rgb(1 2 255)', bold: true }]]);
  expect(looks(`${esc}[38:5:1mx`)).toEqual([['x', { color: 'c1' }]]);
});

test('a look continues in the next line', () => {
  const { end } = piecesOf(`${esc}[33mbegins`);
  expect(piecesOf('continues', end).pieces).toEqual([{ text: 'continues', look: { ...usual, color: 'c3' } }]);
});

test.each([
  ['a cursor that moves', `a${esc}[2J${esc}[10;3Hb${esc}[K`, 'ab'],
  ['a title of the window', `a${esc}]0;evil\u0007b`, 'ab'],
  ['a link', `${esc}]8;;javascript:alert(1)${esc}\\text${esc}]8;;${esc}\\`, 'text'],
  ['a device string without an end', `a${esc}Pq#0`, 'a'],
  ['a sequence that is cut', `a${esc}[3`, 'a'],
  ['a lone escape', `a${esc}`, 'a'],
  ['control characters of C1', 'a\u009b31mb\u0085c', 'abc'],
  ['bells and backspaces', 'a\u0007\u0008b', 'ab'],
  ['characters that turn the direction', 'a\u202eb\u2066c', 'abc'],
  ['HTML, which is text like any other', '<img src=x onerror=alert(1)>', '<img src=x onerror=alert(1)>'],
  ['a tab, which stays', 'a\tb', 'a\tb'],
])('%s', (_, line, text) => {
  expect(textOf(line)).toBe(text);
  expect(
    piecesOf(line)
      .pieces.map((piece) => piece.text)
      .join(''),
  ).toBe(text);
});

test('a line has no more than 200 pieces, and all of its text', () => {
  const line = Array.from({ length: 10_000 }, (_, n) => `${esc}[${31 + (n % 2)}mx`).join('');
  const { pieces, end } = piecesOf(line);
  expect(pieces).toHaveLength(200);
  expect(pieces.map(({ text }) => text).join('')).toBe('x'.repeat(10_000));
  expect(end).toMatchObject({ color: 'c2' });
});
