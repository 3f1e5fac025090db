import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { readUse, useQuery } from './use.ts';

const folder = join(import.meta.dirname, '../../../test/fixtures/gpu/nvidia-smi');
const fields = (useQuery[0] ?? '').replace('--query-gpu=', '').split(',');

/** Newer names of what the query asks for by names that every driver knows. */
const asked: Readonly<Record<string, string>> = {
  'clocks.current.sm': 'clocks.sm',
  'clocks.current.memory': 'clocks.mem',
  'clocks_event_reasons.active': 'clocks_throttle_reasons.active',
};

/** What `useQuery` would have printed when a real tool printed more columns, with a header and units. */
function recorded(file: string): string {
  const [header = '', ...rows] = readFileSync(join(folder, 'csv', file), 'utf8')
    .trim()
    .split('\n');
  const names = header.split(', ').map((name) => asked[name.replace(/ \[.*\]$/, '')] ?? name.replace(/ \[.*\]$/, ''));
  const cut = (row: string): string => {
    const values = row.split(', ');
    return fields.map((field) => (values[names.indexOf(field)] ?? '').replace(/ (?:MiB|%|W|MHz)$/, '')).join(', ');
  };
  return `${rows.map(cut).join('\n')}\n`;
}

const used = (file: string) => [...readUse(recorded(file)).values()];

describe('what real tools printed', () => {
  test('two busy cards', () => {
    expect(used('two-gpus.units.csv')).toEqual([
      {
        memoryUsedMiB: 754,
        utilization: 100,
        temperature: 71,
        powerW: 217.24,
        smClockMHz: 1949,
        memoryClockMHz: null,
        throttled: null,
      },
      {
        memoryUsedMiB: 641,
        utilization: 100,
        temperature: 71,
        powerW: 208.3,
        smClockMHz: 2025,
        memoryClockMHz: null,
        throttled: null,
      },
    ]);
  });

  test('a card in MIG mode reports memory and power, and no utilisation', () => {
    const mig = { memoryUsedMiB: 11_125, utilization: null, temperature: 53, powerW: 433.78 };
    const clocks = { smClockMHz: 1980, memoryClockMHz: 2619, throttled: [] };
    expect(used('r590-h100-mig.query-gpu.load.csv')).toEqual([{ ...mig, ...clocks }]);
  });

  test('an idle card of the newest driver', () => {
    const idle = { memoryUsedMiB: 211, utilization: 0, temperature: 33, powerW: 39.17 };
    const clocks = { smClockMHz: 765, memoryClockMHz: 810, throttled: [] };
    expect(used('r610-rtx2080super.query-gpu.idle.csv')).toEqual([{ ...idle, ...clocks }]);
  });

  test('a card at its power cap says so', () => {
    expect(used('r595-rtx2080super.query-gpu.idle.csv')).toMatchObject([
      { temperature: 40, smClockMHz: 765, throttled: ['power cap'] },
    ]);
  });
});

test('every field is one that the oldest and the newest recorded driver know', () => {
  for (const file of ['old-help-query-gpu.txt', 'r610-rtx2080super.help-query-gpu.txt']) {
    const help = readFileSync(join(folder, 'help', file), 'utf8');
    for (const field of fields) expect(help).toContain(`"${field}"`);
  }
});

const unknown = {
  memoryUsedMiB: null,
  utilization: null,
  temperature: null,
  powerW: null,
  smClockMHz: null,
  memoryClockMHz: null,
  throttled: null,
};

test('a value that is missing is unknown, never zero', () => {
  const line =
    'GPU-5eed0000-0000-4000-8000-000000000000, [N/A], [Unknown Error], [GPU is lost], [Not Supported], [N/A], [N/A], [Not Supported]';
  expect([...readUse(line).values()]).toEqual([unknown]);
});

test.each([
  ['an error instead of lines', readFileSync(join(folder, 'errors/invalid-field.txt'), 'utf8')],
  ['a line that was cut', 'GPU-5eed0000-0000-4000-8000-000000000000, 12, 3'],
  ['a card without a UUID', '[N/A], 1, 2, 3, 4, 5, 6, 0x0'],
  ['more columns than asked for', 'GPU-5eed0000-0000-4000-8000-000000000000, 1, 2, 3, 4, 5, 6, 0x0, 8'],
  ['nothing', ''],
])('%s says nothing about any card', (_, text) => {
  expect(readUse(text).size).toBe(0);
});

test('a value outside of what a card can have was misread', () => {
  const line = 'GPU-5eed0000-0000-4000-8000-000000000000, 99999999999, 101, 4000, 1e9, 4000000, -1, 4';
  expect([...readUse(line).values()]).toEqual([unknown]);
});

test.each([
  ['0x0000000000000001', []],
  ['0x0000000000000102', []],
  ['0x0000000000000048', ['thermal']],
  ['0x0000000000000060', ['thermal']],
  ['0x0000000000000008', ['hardware slowdown']],
  ['0x000000000000008C', ['power cap', 'power brake']],
  ['0x4', ['power cap']],
])('the reasons %s', (mask, throttled) => {
  const [use] = readUse(`GPU-5eed0000-0000-4000-8000-000000000000, 1, 2, 3, 4, 5, 6, ${mask}`).values();
  expect(use?.throttled).toEqual(throttled);
});
