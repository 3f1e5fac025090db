import { describe, expect, test } from 'vitest';
import { at, countOf, jsonIn, mebibytes, readNumber, textOf } from './fields.ts';

test.each(['N/A', 'n/a', '', ' ', 'None', 'unknown', 'Not Supported', '-', null, undefined, {}, [], Number.NaN])(
  '%j says nothing',
  (value) => {
    expect([textOf(value), readNumber(value), countOf(value)]).toEqual([null, null, null]);
  },
);

test('numbers may be texts; negative and too large ones are not accepted', () => {
  expect([readNumber('31.0'), readNumber(31), countOf(' 4 '), countOf('31.5')]).toEqual([31, 31, 4, null]);
  expect([readNumber('-1'), readNumber('1e9'), readNumber('99999999999999999999'), readNumber('12 MB')]).toEqual([
    null,
    null,
    null,
    null,
  ]);
});

test.each([
  ['34342961152', 'B', 32_752],
  ['65520 MB', 'B', 65_520],
  [{ value: 196592, unit: 'MB' }, 'B', 196_592],
  [{ value: 'N/A', unit: 'MB' }, 'B', null],
  ['32768.00 MiB', 'B', 32_768],
  ['16 GB', 'MB', 16_384],
  ['12 parsecs', 'MB', null],
  ['-5', 'B', null],
  [0, 'B', 0],
])('%j, in %s unless it says more, is %s MiB', (value, unit, mib) => {
  expect(mebibytes(value, unit)).toBe(mib);
});

test('a path through objects ends where a key is missing', () => {
  expect(at({ a: { b: 1 } }, 'a', 'b')).toBe(1);
  expect([at({ a: 1 }, 'a', 'b'), at(null, 'a'), at({}, 'constructor'), at([1], '0')]).toEqual([
    undefined,
    undefined,
    undefined,
    undefined,
  ]);
});

describe('JSON in a text', () => {
  test.each([
    ['{"a": 1}', [{ a: 1 }], false],
    ['WARNING: [gpu] is low {power}\n\n{"a": "}]"}\n[{"b": 2}]\ndone', [{ a: '}]' }, [{ b: 2 }]], false],
    ['[INFO] starting\n{\n  "a": {"b": [1, 2]}\n}', [{ a: { b: [1, 2] } }], false],
    ['[]', [[]], false],
    ['{\n  "a": 1,\n', [], true],
    ['{"a": 1}\n{"b": ', [{ a: 1 }], true],
    ['{"a": oops}\n{"b": 2}', [{ b: 2 }], true],
    ['no json at all', [], false],
    ['', [], false],
  ])('%j', (text, values, torn) => {
    expect(jsonIn(text)).toEqual({ values, torn });
  });

  test('a text of nothing but brackets is read in proportion to its length', () => {
    expect(jsonIn('{"a":\n'.repeat(200_000))).toEqual({ values: [], torn: true });
    expect(jsonIn(`{${' \n'.repeat(500_000)}`)).toEqual({ values: [], torn: true });
    expect(jsonIn('[{"\n{}]\n'.repeat(100_000)).values).toEqual([]);
  });
});
