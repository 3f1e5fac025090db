/** What is known of NVIDIA GPUs without nvidia-smi: the driver's files under `/proc`, its branch, and a listing of the PCI bus. */
import { builtInTables } from '../../images/tables.ts';
import { normalPci } from '../pci.ts';
import { type GpuReading, newBlock } from './reading.ts';
import { driverVersion } from './values.ts';

/** `/proc/driver/nvidia/version`: `NVRM version: NVIDIA UNIX … Kernel Module [for x86_64]  550.54.14  …`. */
export function readProcVersion(text: string): string | null {
  const line = /^NVRM version:(.{0,400})$/m.exec(text)?.[1] ?? '';
  return driverVersion(/\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})(?=\s|$)/.exec(line)?.[1]);
}

/**
 * The newest CUDA that this driver can certainly run, for tools that do not say it: before 410, or without libcuda. A branch that
 * the tables lack can do what the one below it can; null below the first.
 */
export function cudaOfDriver(driver: string | null): string | null {
  const branch = driver === null ? 0 : Number.parseInt(driver, 10);
  return builtInTables.branches.findLast((row) => branch >= row.driver)?.cuda ?? null;
}

/** Whether `/proc/driver/nvidia/gpus/<PCI address>/information` is in the text. */
export function looksLikeProcGpu(text: string): boolean {
  return /^GPU UUID:/m.test(text) && /^Bus Location:/m.test(text);
}

/**
 * Its GPUs, one for each `Model:`, without those that the owner keeps from the driver. The UUID reads `GPU-????????-…` until a
 * card was used for the first time.
 */
export function readProcGpus(text: string): GpuReading[] {
  const blocks: Map<string, string>[] = [];
  for (const line of text.split('\n')) {
    const at = line.indexOf(':');
    const label = line.slice(0, Math.max(0, at)).trim().toLowerCase();
    if (label === 'model' || blocks.length === 0) blocks.push(new Map());
    blocks.at(-1)?.set(label, line.slice(at + 1).trim());
  }
  return blocks
    .filter((block) => block.has('bus location') && !/^yes$/i.test(block.get('gpu excluded') ?? ''))
    .map((block) => ({ ...newBlock(factsOf(block)), depth: 'name' }));
}

function factsOf(block: ReadonlyMap<string, string>): GpuReading['facts'] {
  const labels = { model: 'model', uuid: 'gpu uuid', pciId: 'bus location', minor: 'device minor' };
  return Object.fromEntries(
    Object.entries(labels).flatMap(([field, label]) => {
      const value = block.get(label);
      return value === undefined ? [] : [[field, value]];
    }),
  );
}

/** Display controllers and accelerators in a listing of `lspci`, with or without `-nn` and `-D`. */
const display =
  /^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?:VGA compatible controller|3D controller|Display controller)(?: \[03[0-9a-f]{2}\])?: (.{0,200})$/i;

/** Whether `lspci` was recorded. */
export function looksLikeLspci(text: string): boolean {
  return /^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][\w/ -]{2,60}(?: \[[0-9a-f]{4}\])?: /m.test(text);
}

/** PCI addresses of the NVIDIA GPUs in it. */
export function readLspci(text: string): string[] {
  return text.split('\n').flatMap((line) => {
    const [, address, name] = display.exec(line.trim()) ?? [];
    const pciId = address === undefined || name === undefined || !/nvidia|\[10de:/i.test(name) ? null : normalPci(address);
    return pciId === null ? [] : [pciId];
  });
}
