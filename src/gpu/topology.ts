/**
 * Which GPUs are close to each other, so that an agent gets GPUs that communicate fast: linked by NVLink, below the same PCIe root,
 * or at the same NUMA node. And which CPUs are close to a GPU. It asks the kernel, never a driver; unknown counts as apart.
 */
import { realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import type { Device } from './inventory.ts';
import { readText } from './pci.ts';

/** How close two devices are: more is better, 0 where unknown. Symmetric. */
export type Near = (a: Device, b: Device) => number;

const [sameNode, sameRoot, linked] = [100, 200, 300];

/** `links`: pairs of indexes that NVLink connects, with how many links (`parseLinks`). Reads sysfs once per card. */
export async function readTopology(sys: string, devices: readonly Device[], links: ReadonlyMap<string, number>): Promise<Near> {
  const places = new Map<string, Place>();
  for (const { pciId } of devices) if (pciId !== null && !places.has(pciId)) places.set(pciId, await placeOf(sys, pciId));
  return (a, b) => {
    const isNvidia = a.vendor === 'nvidia' && b.vendor === 'nvidia';
    const count = isNvidia && a.index !== null && b.index !== null ? links.get(linkOf(a.index, b.index)) : undefined;
    if (count !== undefined) return linked + count;
    const [one, other] = [places.get(a.pciId ?? ''), places.get(b.pciId ?? '')];
    if (one === undefined || other === undefined) return 0;
    if (one.root !== null && one.root === other.root) return sameRoot;
    return one.node !== null && one.node === other.node ? sameNode : 0;
  };
}

/** The PCIe root and the NUMA node of a card. */
interface Place {
  readonly root: string | null;
  readonly node: string | null;
}

async function placeOf(sys: string, pciId: string): Promise<Place> {
  const card = join(sys, 'bus/pci/devices', pciId);
  const path = await realpath(card).catch(() => '');
  const node = (await readText(join(card, 'numa_node')))?.trim() ?? null;
  // `…/devices/pci0000:17/0000:17:00.0/…`; the kernel writes -1 for "not known".
  return { root: /\/(pci[0-9a-f]+:[0-9a-f]+)\//.exec(path)?.[1] ?? null, node: node === null || node === '-1' ? null : node };
}

/** Pairs that NVLink connects, in a table of `nvidia-smi topo -m`: `NV4` in a GPU's row and column means four links. */
export function parseLinks(text: string): Map<string, number> {
  const links = new Map<string, number>();
  let columns: (number | null)[] | null = null;
  for (const line of text.split('\n')) {
    const cells = Array.from(stripVTControlCharacters(line).split('\t'), (cell) => cell.trim());
    const numbers = cells.map(numberOf);
    const row = numbers[0] ?? null;
    if (row === null) {
      if (numbers.some((number) => number !== null)) columns = numbers;
      continue;
    }
    cells.forEach((cell, at) => {
      const other = columns?.[at] ?? null;
      const count = /^NV(\d+)$/.exec(cell)?.[1];
      if (other !== null && count !== undefined) links.set(linkOf(row, other), Number(count));
    });
  }
  return links;
}

function numberOf(cell: string): number | null {
  const number = /^GPU(\d+)$/.exec(cell)?.[1];
  return number === undefined ? null : Number(number);
}

function linkOf(a: number, b: number): string {
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

/** CPUs near all these cards (`0-15,32-47`); null without cards, or if the kernel does not know one's. `sys`: `/sys`. */
export async function cpusNear(pciIds: readonly (string | null)[], sys = '/sys'): Promise<string | null> {
  const near = new Set<number>();
  for (const pciId of new Set(pciIds)) {
    // A host with one node, or none that is known, lists all its CPUs there, which is correct as well.
    const text = pciId === null ? null : await readText(join(sys, 'bus/pci/devices', pciId, 'local_cpulist'));
    const cpus = text === null ? null : parseCpuList(text);
    if (cpus === null) return null;
    for (const cpu of cpus) near.add(cpu);
  }
  return near.size === 0 ? null : formatCpuList([...near]);
}

/** More than any kernel is built for (CONFIG_NR_CPUS of x86 is 8192 at most). */
const mostCpus = 65_536;

/** `0-3,8` as numbers; null for an empty or invalid list. */
export function parseCpuList(text: string): number[] | null {
  const cpus: number[] = [];
  for (const part of text.trim().split(',')) {
    const [, first, last = first] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part) ?? [];
    const [from, to] = [Number(first), Number(last)];
    if (first === undefined || from > to || to >= mostCpus) return null;
    for (let cpu = from; cpu <= to; cpu++) cpus.push(cpu);
  }
  return cpus;
}

/** The shortest list of these CPUs. */
export function formatCpuList(cpus: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const cpu of [...new Set(cpus)].sort((a, b) => a - b)) {
    const run = runs.at(-1);
    if (run !== undefined && run[1] === cpu - 1) run[1] = cpu;
    else runs.push([cpu, cpu]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
}
