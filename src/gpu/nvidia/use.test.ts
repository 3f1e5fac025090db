import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { readUse, useQuery } from './use.ts';

const folder = join(import.meta.dirname, '../../../test/fixtures/gpu/nvidia-smi');
const fields = (useQuery[0] ?? '').replace('--query-gpu=', '').split(',');

/** What `useQuery` would have printed when a real tool printed more columns, with a header and units. */
function recorded(file: string): string {
  const [header = '', ...rows] = readFileSync(join(folder, 'csv', file), 'utf8')
    .trim()
    .split('\n');
  const names = header.split(', ').map((name) => name.replace(/ \[.*\]$/, ''));
  const cut = (row: string): string => {
    const values = row.split(', ');
    return fields.map((field) => (values[names.indexOf(field)] ?? '').replace(/ (?:MiB|%|W)$/, '')).join(', ');
  };
  return `${rows.map(cut).join('\n')}\n`;
}

const used = (file: string) => [...readUse(recorded(file)).values()];

describe('what real tools printed', () => {
  test('two busy cards', () => {
    expect(used('two-gpus.units.csv')).toEqual([
      { memoryUsedMiB: 754, utilization: 100, temperature: 71, powerW: 217.24 },
      { memoryUsedMiB: 641, utilization: 100, temperature: 71, powerW: 208.3 },
    ]);
  });

  test('a card in MIG mode reports memory and power, and no utilisation', () => {
    const mig = { memoryUsedMiB: 11_125, utilization: null, temperature: 53, powerW: 433.78 };
    expect(used('r590-h100-mig.query-gpu.load.csv')).toEqual([mig]);
  });

  test('an idle card of the newest driver', () => {
    const idle = { memoryUsedMiB: 211, utilization: 0, temperature: 33, powerW: 39.17 };
    expect(used('r610-rtx2080super.query-gpu.idle.csv')).toEqual([idle]);
  });
});

test('every field is one that the oldest and the newest recorded driver know', () => {
  for (const file of ['old-help-query-gpu.txt', 'r610-rtx2080super.help-query-gpu.txt']) {
    const help = readFileSync(join(folder, 'help', file), 'utf8');
    for (const field of fields) expect(help).toContain(`"${field}"`);
  }
});

test('a value that is missing is unknown, never zero', () => {
  const line = 'GPU-5eed0000-0000-4000-8000-000000000000, [N/A], [Unknown Error], [GPU is lost], [Not Supported]';
  expect([...readUse(line).values()]).toEqual([{ memoryUsedMiB: null, utilization: null, temperature: null, powerW: null }]);
});

test.each([
  ['an error instead of lines', readFileSync(join(folder, 'errors/invalid-field.txt'), 'utf8')],
  ['a line that was cut', 'GPU-5eed0000-0000-4000-8000-000000000000, 12, 3'],
  ['a card without a UUID', '[N/A], 1, 2, 3, 4'],
  ['more columns than asked for', 'GPU-5eed0000-0000-4000-8000-000000000000, 1, 2, 3, 4, 5'],
  ['nothing', ''],
])('%s says nothing about any card', (_, text) => {
  expect(readUse(text).size).toBe(0);
});

test('a value outside of what a card can have was misread', () => {
  const line = 'GPU-5eed0000-0000-4000-8000-000000000000, 99999999999, 101, 4000, 1e9';
  expect([...readUse(line).values()]).toEqual([{ memoryUsedMiB: null, utilization: null, temperature: null, powerW: null }]);
});
