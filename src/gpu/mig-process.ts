/** Which processes of a GPU may be on one of its MIG instances. Pure. */
import type { GpuProcess } from './inventory.ts';

/** As the driver numbers it; null where the compute instance is not known. */
export interface MigPlace {
  readonly gpuInstance: number;
  readonly computeInstance: number | null;
}

/**
 * Whether a process may be on an instance. One that computes and of which no instance is said may be on each: free is only
 * what nobody can be on. Displays run on none.
 */
export function mayBeOn(process: GpuProcess, { gpuInstance, computeInstance }: MigPlace): boolean {
  if (process.gpuInstance === null) return process.type !== 'G';
  if (process.gpuInstance !== gpuInstance) return false;
  return computeInstance === null || process.computeInstance === null || process.computeInstance === computeInstance;
}
