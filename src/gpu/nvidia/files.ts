/** What is known of NVIDIA GPUs without nvidia-smi: the driver's files under `/proc`, and its branch. */
import { builtInTables } from '../../images/tables.ts';
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

/**
 * `/proc/driver/nvidia/gpus/<PCI address>/information`: its GPUs, one for each `Model:`, without those that the owner keeps from the driver. The UUID reads `GPU-????????-…` until a
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
