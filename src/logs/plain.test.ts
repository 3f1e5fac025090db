import { stripVTControlCharacters } from 'node:util';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createColorsOnly, createPlain } from './plain.ts';

function plain(...pieces: (string | Uint8Array)[]): string {
  const one = createPlain();
  return Buffer.concat([...pieces.map((piece) => one.take(Buffer.from(piece as string))), one.rest()]).toString();
}

test.each([
  ['\u001b[90m$\u001b[0m make\r\n', '$ make\n'],
  ['\u001b[38;5;48mINFO \u001b[0mready', 'INFO ready'],
  ['\u001b_bk;t=1700000000000\u0007+++ Running\r\n', '+++ Running\n'],
  ["\u001b]1338;url='https://x.example/a.png'\u0007after", 'after'],
  ['\u001b]0;a title\u001b\\after', 'after'],
  ['\u001b(Bkept', 'kept'],
  ['half 10%\rhalf 20%\r\n', 'half 10%\rhalf 20%\n'],
  ['three\r\r\n', 'three\n'],
  ['plain – ü\n', 'plain – ü\n'],
])('%j becomes %j, wherever it is cut', (text, wanted) => {
  expect(plain(text)).toBe(wanted);
  const bytes = Buffer.from(text);
  for (let at = 0; at <= bytes.length; at += 1) expect(plain(bytes.subarray(0, at), bytes.subarray(at))).toBe(wanted);
});

test('an escape that never ends holds nothing back for long, and none at the end', () => {
  const one = createPlain();
  expect(one.take(Buffer.from(`\u001b_${'x'.repeat(5_000)}`)).length).toBe(5_002);
  expect(plain('\u001b[3')).toBe('\u001b[3');
});

test('text without an escape or a carriage return stays unchanged, byte for byte', () => {
  const bytes = fc.uint8Array({ maxLength: 200 }).map((each) => each.filter((byte) => byte !== 0x1b && byte !== 0x0d));
  fc.assert(
    fc.property(fc.array(bytes, { maxLength: 5 }), (pieces) => {
      const one = createPlain();
      const out = Buffer.concat([...pieces.map((piece) => one.take(piece)), one.rest()]);
      expect(out.equals(Buffer.concat(pieces))).toBe(true);
    }),
  );
});

/** Those that a terminal may be given. */
const colors = new RegExp(`${String.fromCharCode(27)}\\[[0-9;:]*m`, 'g');

function colorsOnly(...pieces: (string | Uint8Array)[]): string {
  const one = createColorsOnly();
  return Buffer.concat([...pieces.map((piece) => one.take(Buffer.from(piece as string))), one.rest()]).toString();
}

test.each([
  ['\u001b[1;31mred\u001b[0m\r\n\tgrün', '\u001b[1;31mred\u001b[0m\r\n\tgrün'],
  ['\u001b[38:2::1:2:3mhue\u001b[m', '\u001b[38:2::1:2:3mhue\u001b[m'],
  ['a\u001b]0;title\u0007b', 'ab'],
  ['a\u001b]52;c;ZXZpbA==\u001b\\b', 'ab'],
  ['a\u001b[6nb\u001b[2J\u001b[3;4Hc', 'abc'],
  ['a\u001bcb\u001b(0c\u001b[?1049hd', 'abcd'],
  ['a\u009b6nb\u009d0;x\u009cc', 'abc'],
  ['a\bb\u0000\u0007\u000ec', 'abc'],
  ['a\u001bP$q"p\u001b\\b', 'ab'],
])('%j becomes %j for a terminal, wherever it is cut', (text, wanted) => {
  expect(colorsOnly(text)).toBe(wanted);
  const bytes = Buffer.from(text);
  for (let at = 0; at <= bytes.length; at += 1) expect(colorsOnly(bytes.subarray(0, at), bytes.subarray(at))).toBe(wanted);
});

test('a terminal never gets an escape other than colours, and little is held back', () => {
  const odd = fc.constantFrom(
    '\u001b',
    '[',
    ']',
    '6',
    'n',
    'm',
    ';',
    '\u009b',
    '\u009d',
    '\u0007',
    '\\',
    'P',
    'x',
    '\n',
    '\u001b[31m',
    'ü',
  );
  fc.assert(
    fc.property(
      fc.array(
        fc.array(odd).map((each) => each.join('')),
        { maxLength: 5 },
      ),
      (pieces) => {
        const given = colorsOnly(...pieces).replaceAll(colors, '');
        expect(stripVTControlCharacters(given)).toBe(given);
        expect(given).not.toMatch(/[^\P{Cc}\n\r\t]/u);
      },
    ),
    { numRuns: 2_000 },
  );
  const one = createColorsOnly();
  expect(one.take(Buffer.from(`\u001b]${'x'.repeat(5_000)}`)).toString()).toBe(`]${'x'.repeat(5_000)}`);
});

describe('output that somebody chose', () => {
  const size = 2 ** 18;
  const ways = { plain: createPlain, 'for a terminal': createColorsOnly };
  const bad = ['\r', '\u009d', '\u009b', '\u009b0', '\u001b]', '\u001b[', '\u001b_x\r', '\u0090\u009e', '\u001b]\r\r', '\r\u009d'];
  test.each(Object.entries(ways).flatMap(([name, way]) => bad.map((text) => [name, text, way] as const)))(
    // A search that begins anew at each letter needs minutes for it.
    'takes work that grows no faster than its length, %s: %j',
    (_, text, way) => {
      const began = process.cpuUsage();
      const one = way();
      const bytes = Buffer.from(text.repeat(size / text.length) + 'x'.repeat(2_000));
      const given = one.take(bytes).length + one.rest().length;
      expect(given).toBeLessThanOrEqual(bytes.length);
      expect(process.cpuUsage(began).user / 1_000).toBeLessThan(2_000);
    },
  );

  test.each([
    ['plain', '\r', createPlain],
    ['plain', '\u001b]', createPlain],
    ['for a terminal', '\u009d', createColorsOnly],
    ['for a terminal', '\u001b]', createColorsOnly],
  ] as const)('holds back little, %s: %j', (_, text, way) => {
    const one = way();
    for (let n = 0; n < 64; n += 1) one.take(Buffer.from(text.repeat(512)));
    expect(one.rest().length).toBeLessThanOrEqual(1_100);
  });
});

test('returns before a line end disappear, and others stay, however many', () => {
  expect(plain(`a${'\r'.repeat(900)}`, '\nb')).toBe('a\nb');
  const many = `a${'\r'.repeat(50_000)}`;
  expect(plain(`${many}\nb`)).toBe('a\nb');
  expect(plain(many, 'b')).toBe(`${many}b`);
});
