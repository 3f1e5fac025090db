/** What the driver's files under `/proc` tell about NVIDIA GPUs, and what follows from the driver's version. */
import { builtInTables } from '../../images/tables.ts';
import { type GpuReading, newBlock } from './reading.ts';
import { driverVersion } from './values.ts';

/** `/proc/driver/nvidia/version`: `NVRM version: NVIDIA UNIX … Kernel Module [for x86_64]  550.54.14  …`. */
export function readProcVersion(text: string): string | null {
  const line = /^NVRM version:(.{0,400})$/m.exec(text)?.[1] ?? '';
  return driverVersion(/\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})(?=\s|$)/.exec(line)?.[1]);
}

/** The newest CUDA that this driver can certainly run, for tools that do not report it; null below the first branch. */
export function cudaOfDriver(driver: string | null): string | null {
  const branch = driver === null ? 0 : Number.parseInt(driver, 10);
  return builtInTables.branches.findLast((row) => branch >= row.driver)?.cuda ?? null;
}

/**
 * The GPUs in texts of `/proc/driver/nvidia/gpus/<PCI address>/information`, one for each `Model:`, without those that the owner
 * excluded from the driver. The UUID reads `GPU-????????-…` until a card is used for the first time.
 */
export function readProcGpus(text: string): GpuReading[] {
  return text.split(/^(?=Model:)/im).flatMap((block): GpuReading[] => {
    const lines = new Map(
      [...block.matchAll(/^([^:\n]*):(.*)$/gm)].map(([, label = '', value = '']) => [label.trim().toLowerCase(), value.trim()]),
    );
    if (!lines.has('bus location') || /^yes$/i.test(lines.get('gpu excluded') ?? '')) return [];
    const labels = { model: 'model', uuid: 'gpu uuid', pciId: 'bus location', minor: 'device minor' };
    const known = Object.entries(labels).filter(([, label]) => lines.has(label));
    return [{ ...newBlock(Object.fromEntries(known.map(([field, label]) => [field, lines.get(label)]))), depth: 'name' }];
  });
}
