import fc from 'fast-check';
import picomatch from 'picomatch';
import { describe, expect, it } from 'vitest';
import { glob, globProblem } from './glob.ts';

const oracle = (pattern: string) => picomatch(pattern, { dot: true, nonegate: true, strictSlashes: true });

const letter = fc.constantFrom('a', 'b', '-', '.');
const word = fc.string({ unit: letter, minLength: 1, maxLength: 4 }).filter((text) => !/^\.+$/.test(text));
const path = fc.array(word, { minLength: 1, maxLength: 5 }).map((parts) => parts.join('/'));
const piece = fc.oneof(word, fc.constantFrom('*', '?', '[ab]', '[^a]', '[a-b]', '{a,b}', '{a,-b,}', '{a,{b,-}}'));
const part = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.array(piece, { minLength: 1, maxLength: 4 }).map((pieces) => pieces.join('').replace(/\*{2,}/g, '*')),
  },
  { weight: 1, arbitrary: fc.constant('**') },
);
const pattern = fc
  .array(part, { minLength: 1, maxLength: 5 })
  .map((parts) => parts.join('/'))
  // Here picomatch reads one text in two ways, or another one than shells do.
  .filter((text) => !/\*\*\/\*\*|[*?][*?]|\.[*?[{]|[*?\]}]\.|[*?](\{a,-b,\})+[*?]/.test(text));

it('matches what picomatch matches', () => {
  fc.assert(
    fc.property(pattern, path, (pattern, path) => {
      expect([pattern, path, glob(pattern)(path)]).toEqual([pattern, path, oracle(pattern)(path)]);
    }),
    { numRuns: 3_000 },
  );
});

it('matches every text that was made from the pattern', () => {
  const made = fc.array(
    fc.oneof(
      word.map((text) => [text, text] as const),
      word.map((text) => ['*', text] as const),
    ),
    {
      minLength: 1,
      maxLength: 20,
    },
  );
  fc.assert(
    fc.property(made, (pieces) => {
      const pattern = pieces.map(([wanted]) => wanted).join('');
      expect(glob(pattern)(pieces.map(([, text]) => text).join(''))).toBe(true);
    }),
  );
});

it.each([
  ['a**b', 'axxb', true],
  ['a**b', 'ax/xb', false],
  ['**/a/**/b', 'a/b', true],
  ['**/a/**/b', 'x/a/y/a/z/b', true],
  ['a/**', 'a', false],
  ['a/**', 'a/b/c', true],
  ['a/*', 'a/', false],
  ['*', '', false],
  ['a//b', 'a//b', true],
  ['a//b', 'a/b', false],
  ['?', '😀', true],
  ['\\*', '*', true],
  ['\\*', 'a', false],
  ['[]]', ']', true],
  ['[\\]a]', ']', true],
  ['[a', '[a', true],
  ['[^a]', 'b', true],
  ['[!a]*', 'a', false],
  ['[!a]*', 'ba', true],
  ['[!-]', '-', false],
  ['{a}', '{a}', true],
  ['{a', '{a', true],
  ['\\{a,b\\}', '{a,b}', true],
  ['x{,.gz}', 'x', true],
  // As in a shell, braces come first: this is `**` and `*a*`.
  ['*{,a}*', 'a/b', true],
  ['report (1).txt', 'report (1).txt', true],
])('%s on %j: %s', (pattern, text, fitting) => {
  expect(glob(pattern)(text)).toBe(fitting);
});

describe('a pattern and a name that somebody chose', () => {
  const dashes = '-'.repeat(249);
  // What a regular expression needs from seconds to hours for takes a part of a millisecond: no more than this many steps.
  it.each([
    ['dist/*-*-*-*-*.whl', `dist/${dashes}x`],
    ['feature-*-*-*-*', `feature${'-'.repeat(1_000)}/x`],
    ['build/*_*_*_*.tar.gz', `build/${'_'.repeat(249)}x`],
    ['**/a/**/b/**/*.log', 'a/b/'.repeat(1_000).concat('x')],
    [`${'*a'.repeat(400)}b`, 'a'.repeat(4_000)],
    [`${'**/a/'.repeat(200)}b`, 'a/'.repeat(2_000).concat('c')],
    ['{*a,*b,*c,*d}'.repeat(5), 'a'.repeat(4_000)],
  ])('takes bounded work: %s', (pattern, text) => {
    const began = process.cpuUsage();
    expect(glob(pattern)(text)).toBe(false);
    const { user } = process.cpuUsage(began);
    expect(user / 1_000).toBeLessThan(2_000);
  });

  it('is not matched if it is longer than a path can be', () => {
    expect(glob('**')('a'.repeat(4_096))).toBe(true);
    expect(glob('**')('a'.repeat(4_097))).toBe(false);
  });
});

it('scans a pattern a bounded number of times, whatever its braces', () => {
  const began = process.cpuUsage();
  for (const text of [
    '{'.repeat(962) + '{,}'.repeat(20),
    '{'.repeat(44) + '{,}'.repeat(20),
    `{a,${'{'.repeat(63)}${'x'.repeat(950)}}`,
  ]) {
    for (let n = 0; n < 100; n += 1) globProblem(text);
    for (let n = 0; n < 100; n += 1) glob(text);
  }
  expect(process.cpuUsage(began).user / 1_000).toBeLessThan(3_000);
});

it.each([
  ['a'.repeat(1_025), 'it has more than 1024 letters'],
  ['{a,b}'.repeat(40), 'its braces stand for more than 4096 letters'],
  [`${'{'.repeat(64)}`, null],
  ['{'.repeat(65), 'it has more than 64 opening braces'],
  [`${'\\{'.repeat(65)}{a,b}`, null],
  [`{${'a,'.repeat(500)}${'{'.repeat(20)}`, null],
  ['!(a)', 'patterns such as !(a) or +(a) are not known'],
  ['x+(a|b)', 'patterns such as !(a) or +(a) are not known'],
  ['{1..3}', 'ranges such as {1..3} are not known; write {1,2,3}'],
  ['a (1).txt', null],
  ['\\!\\(a\\)', null],
  ['{../a,b}', null],
  ['dist/*-*-*-*-*.whl', null],
])('%s is refused or not: %s', (pattern, problem) => {
  expect(globProblem(pattern)).toBe(problem);
});
