/**
 * AMD's cards as the kernel's compute driver (KFD) shows them in /sys: all that is needed to grant one, without any tool. It
 * reads only files whose text the kernel has at hand, none that wakes a card. The layout is that of Linux 5 and 6,
 * drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_process.c.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { countOf, type Fields, field, kind, mebibytes, readFields } from '../fields.ts';
import { computing, type GpuProcess } from '../inventory.ts';
import { normalPci, readText } from '../pci.ts';
import { type AmdCard, type AmdReading, modelName, readingOf, uniqueIdOf } from './reading.ts';

/** Types of a card's own memory, visible to the CPU or not. */
const ownMemory = ['1', '2'];

/** All compute cards below `sys` (`/sys`); null where the driver is not loaded. `proc` is `/proc`. */
export async function readKfd(sys: string, proc: string): Promise<AmdReading | null> {
  const kfd = join(sys, 'class/kfd/kfd');
  const nodes = await readdir(join(kfd, 'topology/nodes')).catch(() => null);
  if (nodes === null) return null;
  const processes = await readProcesses(join(kfd, 'proc'), proc);
  const read = (node: string) => readNode(join(kfd, 'topology/nodes', node), join(sys, 'bus/pci/devices'), processes);
  const cards = await Promise.all(nodes.map(read));
  const driver = await readText(join(sys, 'module/amdgpu/version'));
  const gpus = cards.filter((card) => card !== null);
  return readingOf('sysfs', driver, gpus);
}

type Processes = ReadonlyMap<string, readonly GpuProcess[]>;

const nodeFields = {
  uniqueId: field((digits) => uniqueIdOf(hex(digits)), 'unique_id'),
  model: field(modelName, 'product_name', 'name'),
  chip: field(kind.text, 'device'),
  gfx: field(targetOf, 'gfx_target_version'),
  memoryMiB: field(kind.mib('B'), 'mem_info_vram_total'),
  memoryUsedMiB: field(kind.mib('B'), 'mem_info_vram_used'),
  minor: field((value) => countOf(value) || null, 'drm_render_minor'),
};

/** Files of its PCI card. */
const ofCard = ['product_name', 'mem_info_vram_total', 'mem_info_vram_used', 'device'];

async function readNode(node: string, devices: string, processes: Processes | null): Promise<Partial<AmdCard> | null> {
  const properties = await readProperties(join(node, 'properties'));
  // Every CPU socket is a node too; only a GPU has vector units.
  if (properties === null || (countOf(properties.simd_count) ?? 0) === 0) return null;
  const gpu = await readText(join(node, 'gpu_id'));
  const pciId = addressOf(countOf(properties.domain) ?? 0, countOf(properties.location_id));
  const texts = await Promise.all(ofCard.map(async (file) => [file, await readText(join(devices, pciId ?? 'none', file))]));
  const name = await readText(join(node, 'name'));
  const output: Fields = { ...properties, ...Object.fromEntries(texts), name: name === null ? null : `AMD ${name}` };
  const fields = readFields(nodeFields, output);
  return {
    ...fields,
    pciId,
    memoryMiB: (await readMemory(join(node, 'mem_banks'))) ?? fields.memoryMiB,
    processes: processes === null || gpu === null ? null : (processes.get(gpu) ?? []),
    live: output.mem_info_vram_used !== null,
    withCpu: (countOf(properties.cpu_cores_count) ?? 0) > 0,
  };
}

async function readProperties(file: string): Promise<Readonly<Record<string, string>> | null> {
  const text = await readText(file);
  if (text === null) return null;
  return Object.fromEntries([...text.matchAll(/^(\w+) (\d+)$/gm)].map(([, name = '', value = '']) => [name, value]));
}

async function readMemory(folder: string): Promise<number | null> {
  const names = await readdir(folder).catch((): string[] => []);
  const banks = await Promise.all(names.map((name) => readProperties(join(folder, name, 'properties'))));
  const own = banks.filter((bank) => ownMemory.includes(bank?.heap_type ?? ''));
  const sizes = own.flatMap((bank) => mebibytes(bank?.size_in_bytes, 'B') ?? []);
  return sizes.length === 0 ? null : sizes.reduce((sum, size) => sum + size, 0);
}

/** Bus in the upper byte, then five bits of device and three of function. */
function addressOf(domain: number, location: number | null): string | null {
  if (location === null) return null;
  const [bus, device, fn] = [(location >> 8) & 0xff, (location >> 3) & 0x1f, location & 7];
  return normalPci(`${domain.toString(16)}:${bus.toString(16)}:${device.toString(16)}.${fn}`);
}

/** Too large for a number, so as text. */
function hex(digits: unknown): string | null {
  return typeof digits !== 'string' ? null : BigInt(digits).toString(16).padStart(16, '0');
}

/** 90402 is gfx942, 90010 is gfx90a: major, minor and stepping have two digits each, the last two become hexadecimal. */
function targetOf(value: unknown): string | null {
  const version = countOf(value);
  if (version === null || version === 0) return null;
  const [major, minor, stepping] = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100];
  return `gfx${major}${minor.toString(16)}${stepping.toString(16)}`;
}

/** Processes with memory or queues, by KFD's number of the GPU; null where the driver does not show its processes. */
async function readProcesses(folder: string, proc: string): Promise<Processes | null> {
  const pids = await readdir(folder).catch(() => null);
  if (pids === null) return null;
  const using: { readonly gpu: string; readonly process: GpuProcess }[] = [];
  for (const pid of pids.filter((name) => /^\d+$/.test(name))) {
    const files = await readdir(join(folder, pid)).catch((): string[] => []);
    const queues = await readdir(join(folder, pid, 'queues')).catch((): string[] => []);
    const busy = await Promise.all(queues.map((queue) => readText(join(folder, pid, 'queues', queue, 'gpuid'))));
    const name = await readText(join(proc, pid, 'comm'));
    for (const file of files) {
      const gpu = /^vram_(\d+)$/.exec(file)?.[1];
      if (gpu === undefined) continue;
      const bytes = countOf(await readText(join(folder, pid, file)));
      // A process that opens the driver has an entry for every card, even for cards that it never uses.
      if (bytes === 0 && !busy.includes(gpu)) continue;
      using.push({ gpu, process: computing(Number(pid), name, mebibytes(bytes, 'B')) });
    }
  }
  return new Map([...Map.groupBy(using, ({ gpu }) => gpu)].map(([gpu, all]) => [gpu, all.map(({ process }) => process)]));
}
