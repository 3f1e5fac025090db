import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatDuration, formatShare, formatSize, parseDuration, parseShare, parseSize } from './units.ts';

const value = (parsed: { ok: boolean; value?: number }) => (parsed.ok ? parsed.value : null);

describe('durations', () => {
  it.each([
    ['500ms', 500],
    ['10s', 10_000],
    ['10m', 600_000],
    ['1h30m', 5_400_000],
    ['12h', 43_200_000],
    ['7d', 604_800_000],
    ['1.5h', 5_400_000],
    ['0s', 0],
    ['1 h', 3_600_000],
  ])('%s', (text, ms) => expect(value(parseDuration(text))).toBe(ms));

  it.each(['10', '', 'h', '10 minutes', '-5m', '1e3s', '10M', '5m10', '99999999999999d', '0x10s', 'Infinitys'])(
    '%s is invalid',
    (text) => expect(parseDuration(text).ok).toBe(false),
  );

  it('comes back as it was written', () => {
    fc.assert(fc.property(fc.integer({ min: 0, max: 10 ** 11 }), (ms) => value(parseDuration(formatDuration(ms))) === ms));
  });
});

describe('sizes', () => {
  it.each([
    ['24GiB', 24 * 2 ** 30],
    ['512MiB', 2 ** 29],
    ['64 KiB', 65_536],
    ['1.5GiB', 1.5 * 2 ** 30],
    ['10MB', 10_000_000],
    ['0B', 0],
    ['1TiB', 2 ** 40],
  ])('%s', (text, bytes) => expect(value(parseSize(text))).toBe(bytes));

  it.each(['24', '24G', '24g', '24gib', 'GiB', '-1GiB', '1e9B', '99999999TiB', ''])('%s is invalid', (text) =>
    expect(parseSize(text).ok).toBe(false),
  );

  it.each([
    ['24G', '"24GiB"'],
    ['512m', '"512MiB"'],
    ['24gib', '"24GiB"'],
    ['8', '"8MiB"'],
  ])('%s is answered with %s', (text, hint) => expect(parseSize(text)).toMatchObject({ why: expect.stringContaining(hint) }));

  it('comes back as it was written', () => {
    fc.assert(fc.property(fc.integer({ min: 0, max: 2 ** 50 }), (bytes) => value(parseSize(formatSize(bytes))) === bytes));
  });
});

it('shares', () => {
  expect(value(parseShare('10%'))).toBe(0.1);
  expect(value(parseShare('100%'))).toBe(1);
  expect(value(parseShare('2.5 %'))).toBe(0.025);
  for (const text of ['10', '101%', '-1%', '0.1', '%']) expect(parseShare(text).ok).toBe(false);
  expect(formatShare(0.07)).toBe('7%');
});
