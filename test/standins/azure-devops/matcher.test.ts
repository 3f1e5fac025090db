import { expect, test } from 'vitest';
import { meets } from './matcher.ts';

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
