import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { emptyHost, plugIn } from '../../test/support/fake-tools/fake-tools.ts';
import { comparePci, hasComputeCards, normalPci, readPci } from './pci.ts';

const dir = eachScratch();
let sys: string;

beforeEach(() => {
  sys = emptyHost(dir.path).sys;
});

test.each([
  ['0000:01:00.0', '0000:01:00.0'],
  ['00000000:01:00.0', '0000:01:00.0'],
  ['03F8CFDD:00:00.0', '3f8cfdd:00:00.0'],
  ['0000:1E:00.0', '0000:1e:00.0'],
  ['06:00.0', '0000:06:00.0'],
  ['0000:9b:00', '0000:9b:00.0'],
  [' 0008:01:00.0 ', '0008:01:00.0'],
])('the address %s is %s', (text, normal) => {
  expect(normalPci(text)).toBe(normal);
});

test.each(['', 'N/A', '[N/A]', '0000:01:00.8', '0000:01', 'GPU-1', '0x1e'])('%j is not an address', (text) => {
  expect(normalPci(text)).toBeNull();
});

test('addresses are ordered as numbers, and who has none comes last', () => {
  const all = ['3f8cfdd:00:00.0', null, '0000:85:00.0', '0008:01:00.0', '0000:9:00.0', '0000:26:00.1', '0000:26:00.0'];
  expect(all.toSorted(comparePci)).toEqual([
    '0000:9:00.0',
    '0000:26:00.0',
    '0000:26:00.1',
    '0000:85:00.0',
    '0008:01:00.0',
    '3f8cfdd:00:00.0',
    null,
  ]);
});

test('GPUs of the three vendors are found, in order; what else their cards bring is not', async () => {
  plugIn(sys, '0000:65:00.0', { vendor: '0x1002', class: '0x120000', chip: '0x74a1', driver: 'amdgpu', render: 129 });
  plugIn(sys, '0000:01:00.0', { vendor: '0x10de', chip: '0x20b2', driver: 'nvidia' });
  plugIn(sys, '0000:01:00.1', { vendor: '0x10de', class: '0x040300' });
  plugIn(sys, '0005:00:00.0', { vendor: '0x10de', class: '0x068000' });
  plugIn(sys, '0008:00:00.0', { vendor: '0x10de', class: '0x060400' });
  plugIn(sys, '0000:4d:00.0', { vendor: '0x8086', class: '0x038000', chip: '0x56c0' });
  expect(await readPci(sys)).toEqual([
    { vendor: 'nvidia', pciId: '0000:01:00.0', isDisplay: false, chip: '0x20b2', driver: 'nvidia', renderMinor: null },
    { vendor: 'intel', pciId: '0000:4d:00.0', isDisplay: false, chip: '0x56c0', driver: null, renderMinor: null },
    { vendor: 'amd', pciId: '0000:65:00.0', isDisplay: false, chip: '0x74a1', driver: 'amdgpu', renderMinor: 129 },
  ]);
});

test('a host without a list of PCI devices says nothing, which is not the same as none', async () => {
  expect(await readPci(sys)).toEqual([]);
  rmSync(join(sys, 'bus'), { recursive: true });
  expect(await readPci(sys)).toBeNull();
});

test.each<[string, Parameters<typeof plugIn>[2], boolean]>([
  ["a card with NVIDIA's driver", { vendor: '0x10de', driver: 'nvidia' }, true],
  ['one with the free driver', { vendor: '0x10de', driver: 'nouveau' }, false],
  ['one that a virtual machine has', { vendor: '0x10de', driver: 'vfio-pci' }, false],
  ['an accelerator of AMD', { vendor: '0x1002', class: '0x120000', driver: 'amdgpu' }, true],
  ['the display of a processor of AMD', { vendor: '0x1002', class: '0x030000', driver: 'amdgpu' }, false],
  ['the display of a processor of Intel', { vendor: '0x8086', class: '0x030000', driver: 'i915' }, false],
  ['a card of Intel without a driver', { vendor: '0x8086', class: '0x038000' }, false],
])('%s: jobs could use it: %s', async (_, card, expected) => {
  plugIn(sys, '0000:01:00.0', card);
  expect(await hasComputeCards(sys)).toBe(expected);
});

test('jobs can use nothing of a host without a list', async () => {
  rmSync(join(sys, 'bus'), { recursive: true });
  expect(await hasComputeCards(sys)).toBe(false);
});
