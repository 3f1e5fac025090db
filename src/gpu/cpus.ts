/** Which CPUs sit next to a device: those of the NUMA node that its PCI bus belongs to. Asked of the kernel, never of a driver. */
import { join } from 'node:path';
import { readText } from './pci.ts';

/**
 * CPUs near all of these cards together, as the kernel lists them (`0-15,32-47`); null where there are no cards, or one of them
 * does not say. `sys`: `/sys`.
 */
export async function cpusNear(pciIds: readonly (string | null)[], sys = '/sys'): Promise<string | null> {
  const near = new Set<number>();
  for (const pciId of new Set(pciIds)) {
    // A host with one node, or none that is known, lists all its CPUs there, which is right as well.
    const text = pciId === null ? null : await readText(join(sys, 'bus/pci/devices', pciId, 'local_cpulist'));
    const cpus = text === null ? null : parseCpuList(text);
    if (cpus === null) return null;
    for (const cpu of cpus) near.add(cpu);
  }
  return near.size === 0 ? null : formatCpuList([...near]);
}

/** More than any kernel is built for (CONFIG_NR_CPUS of x86 is 8192 at most). */
const mostCpus = 65_536;

/** `0-3,8` as numbers; null when it is no such list, or an empty one. */
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
