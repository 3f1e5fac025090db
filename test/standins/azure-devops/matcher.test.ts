import { expect, test } from 'vitest';
import { compareVersions, meets, parseDemand } from './matcher.ts';

const capabilities = new Map([
  ['cuda', '12.4'],
  ['agent.version', '5.278.0'],
  ['gpu.model', 'NVIDIA A100'],
  ['quoted', '"x"'],
]);

test.each([
  ['cuda', true],
  ['CUDA', true],
  ['rocm', false],
  ['gpu.model -equals nvidia a100', true],
  ['gpu.model -equals NVIDIA', false],
  ['Agent.Version -gtVersion 2.182.1', true],
  ['Agent.Version -gtVersion 5.278.0', true],
  ['Agent.Version -gtVersion 5.278.1', false],
  ['Agent.Version -gtVersion 5.279', false],
  // Quotes are part of the value, which people find out the hard way.
  ['quoted -equals x', false],
  ['quoted -equals "x"', true],
  ['cuda -contains 12', false],
  ['two words', false],
  ['', false],
])('demand "%s" is met: %s', (demand, met) => {
  expect(meets(capabilities, [demand])).toBe(met);
});

test('all demands must be met, and no demand is met by everybody', () => {
  expect(meets(capabilities, ['cuda', 'rocm'])).toBe(false);
  expect(meets(new Map(), [])).toBe(true);
});

test('a value keeps what follows the operator, spaces too', () => {
  expect(parseDemand('a -equals b c -d')).toEqual({ kind: 'equals', name: 'a', value: 'b c -d' });
});

test.each([
  ['2.10', '2.9', 1],
  ['2.9', '2.9.0', 0],
  ['1.0.1', '1.1', -1],
])('version %s against %s', (a, b, sign) => {
  expect(Math.sign(compareVersions(a, b))).toBe(sign);
});
