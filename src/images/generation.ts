/** Which CUDA a GPU can be used with, by its generation: one that is not in the tables is unknown, never "the newest". */
import type { Device } from '../gpu/inventory.ts';
import type { Generation, Tables } from './tables.ts';
import { compareVersions, newest, oldest } from './version.ts';

export interface CudaRange {
  /** Such as `Volta`. */
  readonly generation: string;
  readonly first: string;
  /** null: the newest CUDA still has it. */
  readonly last: string | null;
  /** Last branch of the driver that drives it; null for the newest. */
  readonly lastDriver: number | null;
  /** `l4t`: the GPU of a Jetson before Thor, which takes no image for servers. */
  readonly platform: 'l4t' | null;
  readonly verified: boolean;
}

/** By compute capability; where that is not known by architecture, and then what holds for all GPUs of that name. */
export function cudaRange(device: Pick<Device, 'computeCapability' | 'architecture'>, tables: Tables): CudaRange | null {
  const { computeCapability, architecture } = device;
  if (computeCapability !== null) {
    const row = tables.generations.find((each) => each.compute.includes(computeCapability));
    return row === undefined ? null : common([row]);
  }
  // "Ada Lovelace" is called "Ada" as well.
  const [name] = architecture?.toLowerCase().split(/\s+/) ?? [];
  const rows = tables.generations.filter((each) => each.name.toLowerCase() === name && each.platform === undefined);
  return rows.length === 0 ? null : common(rows);
}

function common(rows: readonly Generation[]): CudaRange {
  const [row] = rows;
  const drivers = rows.map((each) => each.lastDriver).filter((each) => each !== null);
  return {
    generation: row?.name ?? '',
    first: newest(rows.map((each) => each.first)) ?? '0',
    last: oldest(rows.map((each) => each.last).filter((each) => each !== null)),
    lastDriver: drivers.length === 0 ? null : Math.min(...drivers),
    platform: row?.platform ?? null,
    verified: rows.every((each) => each.verified),
  };
}

export function inRange(cuda: string, { first, last }: Pick<CudaRange, 'first' | 'last'>): boolean {
  return compareVersions(cuda, first) >= 0 && (last === null || compareVersions(cuda, last) <= 0);
}

/** `CUDA 9.0 to 12.9`, `CUDA 12.8 and newer`. */
export function rangeWords({ first, last }: Pick<CudaRange, 'first' | 'last'>): string {
  return last === null ? `CUDA ${first} and newer` : `CUDA ${first} to ${last}`;
}
