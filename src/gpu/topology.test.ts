import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { place } from '../core/place.ts';
import type { Device } from './inventory.ts';
import { cpusNear, formatCpuList, parseCpuList, parseLinks, readTopology } from './topology.ts';

// As `nvidia-smi topo -m` of driver 535 writes it: tabs, an empty first cell, escapes around the heads.
const table = `\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tSYS\tNV4\tPXB\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tNODE\tSYS\tPXB\t0-31\t0\t\tN/A
GPU2\tSYS\tNODE\t X \tPHB\tSYS\t32-63\t1\t\tN/A
GPU3\tNV4\tSYS\tPHB\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
`;

const gpu = (index: number, pciId: string | null): Device => ({ vendor: 'nvidia', index, pciId }) as unknown as Device;

test('links are read from the matrix, and from nothing else', () => {
  expect([...parseLinks(table)].sort()).toEqual([
    ['0 1', 4],
    ['0 3', 4],
  ]);
  expect([...parseLinks('NVIDIA-SMI has failed')]).toEqual([]);
  expect([...parseLinks('')]).toEqual([]);
});

test('linked is nearer than the same root, that than the same node, and what is not known is apart', async () => {
  using here = scratch();
  const bus = join(here.path, 'bus/pci/devices');
  mkdirSync(bus, { recursive: true });
  const plug = (pciId: string, root: string, node: string): void => {
    const real = join(here.path, 'devices', root, pciId);
    mkdirSync(real, { recursive: true });
    writeFileSync(join(real, 'numa_node'), `${node}\n`);
    symlinkSync(real, join(bus, pciId));
  };
  plug('0000:01:00.0', 'pci0000:00', '0');
  plug('0000:02:00.0', 'pci0000:00', '0');
  plug('0000:41:00.0', 'pci0000:40', '0');
  plug('0000:81:00.0', 'pci0000:80', '-1');
  const [a, b, c, d, e] = ['0000:01:00.0', '0000:02:00.0', '0000:41:00.0', '0000:81:00.0', null].map((id, n) => gpu(n, id));
  if (!a || !b || !c || !d || !e) throw new Error('no cards');
  const near = await readTopology(here.path, [a, b, c, d, e], new Map([['0 3', 4]]));
  expect([near(a, d), near(d, a), near(a, b), near(a, c), near(c, d), near(a, e)]).toEqual([304, 304, 200, 100, 0, 0]);
});

describe('on a recorded host', () => {
  const folder = join(import.meta.dirname, '../../test/fixtures/gpu/nvidia-smi/topo');
  /** What jobs get one after the other, as indexes of cards; nothing is known but NVLink. */
  const placed = async (file: string, ...counts: readonly number[]): Promise<string[]> => {
    const links = parseLinks(readFileSync(join(folder, file), 'utf8'));
    let free = Array.from({ length: file.includes('x8') ? 8 : 4 }, (_, n) => gpu(n, null));
    const near = await readTopology('/nowhere', free, links);
    return counts.map((count) => {
      const set = place(count, free, [], near) ?? [];
      free = free.filter((one) => !set.includes(one));
      return set.map(({ index }) => index).join(' ');
    });
  };

  test('a job gets cards that are all linked, by as many links as there are, and small jobs leave them to large ones', async () => {
    expect(await placed('dgx1-v100-x8.txt', 4, 4)).toEqual(['0 1 2 3', '4 5 6 7']);
    expect(await placed('dgx1-v100-x8.txt', 2, 2, 4)).toEqual(['0 3', '1 2', '4 5 6 7']);
    expect(await placed('dgx1-v100-x8.txt', 1, 1, 2, 4)).toEqual(['0', '3', '1 2', '4 5 6 7']);
    expect(await placed('r460-v100-x4.txt', 2, 2)).toEqual(['0 3', '1 2']);
  });
});

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
