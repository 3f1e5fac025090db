import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { cpusNear, formatCpuList, parseCpuList } from './cpus.ts';

describe('CPUs near cards', () => {
  const host = (lists: Readonly<Record<string, string>>) => {
    const dir = scratch();
    for (const [pciId, list] of Object.entries(lists)) {
      mkdirSync(join(dir.path, 'bus/pci/devices', pciId), { recursive: true });
      writeFileSync(join(dir.path, 'bus/pci/devices', pciId, 'local_cpulist'), `${list}\n`);
    }
    return dir;
  };

  test('are those of their NUMA nodes, each once', async () => {
    using sys = host({ '0000:01:00.0': '0-3,8-11', '0000:02:00.0': '0-3,8-11', '0000:81:00.0': '4-7,12' });
    expect(await cpusNear(['0000:01:00.0'], sys.path)).toBe('0-3,8-11');
    expect(await cpusNear(['0000:01:00.0', '0000:02:00.0', '0000:01:00.0'], sys.path)).toBe('0-3,8-11');
    expect(await cpusNear(['0000:01:00.0', '0000:81:00.0'], sys.path)).toBe('0-12');
  });

  test('are not known where one of the cards does not say, and then nothing is guessed', async () => {
    using sys = host({ '0000:01:00.0': '0-3', '0000:02:00.0': '', '0000:03:00.0': 'none', '0000:04:00.0': '3-1' });
    for (const others of [['0000:02:00.0'], ['0000:03:00.0'], ['0000:04:00.0'], ['0000:09:00.0'], [null]]) {
      expect(await cpusNear(['0000:01:00.0', ...others], sys.path)).toBeNull();
    }
    expect(await cpusNear([], sys.path)).toBeNull();
    expect(await cpusNear(['0000:01:00.0'], '/nowhere')).toBeNull();
  });
});

test('lists of CPUs are read as the kernel writes them, and never without end', () => {
  expect(parseCpuList('0-2,5\n')).toEqual([0, 1, 2, 5]);
  for (const odd of ['', '1-', '-1', 'a', '1,,2', '0-99999', '0-4294967295', '2-1']) expect(parseCpuList(odd)).toBeNull();
  expect(formatCpuList([5, 1, 0, 2, 2, 7, 8])).toBe('0-2,5,7-8');
});
