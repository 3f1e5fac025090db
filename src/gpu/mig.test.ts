import { expect, test } from 'vitest';
import { parseProfile, sameProfile, satisfiesProfile } from './mig.ts';

test.each([
  ['1g.10gb', { computeSlices: null, slices: 1, memory: 10, attributes: '' }],
  ['7g.80gb', { computeSlices: null, slices: 7, memory: 80, attributes: '' }],
  ['1g.10gb+me', { computeSlices: null, slices: 1, memory: 10, attributes: '+me' }],
  ['1g.24gb+me.all', { computeSlices: null, slices: 1, memory: 24, attributes: '+me.all' }],
  ['1g.24gb-me', { computeSlices: null, slices: 1, memory: 24, attributes: '-me' }],
  ['1c.3g.71gb', { computeSlices: 1, slices: 3, memory: 71, attributes: '' }],
  ['1G.5GB', { computeSlices: null, slices: 1, memory: 5, attributes: '' }],
  ['1g', null],
  ['', null],
  ['1g.10gbx', null],
])('%s', (name, profile) => {
  expect(parseProfile(name)).toEqual(profile);
});

test.each([
  ['3g.39gb', '3g.40gb', true],
  ['3g.40gb', '4g.40gb', false],
  ['1g.5gb', '1g.6gb', false],
  ['1g.5gb', '1g.10gb', false],
  ['1g.10gb', '1g.12gb', false],
  ['2g.10gb', '2g.12gb', false],
  ['7g.141gb', '7g.144gb', true],
  ['3g.71gb', '1c.3g.71gb', false],
  ['1g.10gb', '1g.10gb+me', false],
  ['1g.10gb', 'nonsense', false],
])('%s and %s are the same: %s', (a, b, same) => {
  expect(sameProfile(a, b)).toBe(same);
  expect(sameProfile(b, a)).toBe(same);
});

test('additional attributes do not matter, requested ones must be there', () => {
  expect(satisfiesProfile('1g.10gb+me', '1g.10gb')).toBe(true);
  expect(satisfiesProfile('1g.10gb', '1g.10gb+me')).toBe(false);
  expect(satisfiesProfile('1g.10gb+me', '1g.10gb+ME')).toBe(true);
});
