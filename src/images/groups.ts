/** Devices that are alike, so that eight equal cards are one step of an explanation. */
import type { Device } from '../gpu/inventory.ts';
import { type CudaRange, cudaRange } from './generation.ts';
import type { Tables } from './tables.ts';

export interface Group {
  readonly model: string;
  readonly compute: string | null;
  /** null: nobody knows which CUDA they can be used with. */
  readonly range: CudaRange | null;
  /** UUIDs of the GPUs, and of the instances among the devices. */
  readonly gpus: ReadonlySet<string>;
  readonly instances: number;
}

export function groupsOf(devices: readonly Device[], tables: Tables): Group[] {
  const groups = Map.groupBy(devices, ({ model, computeCapability, architecture }) =>
    JSON.stringify([model, computeCapability, architecture]),
  );
  return [...groups.values()].flatMap((alike) => {
    const [first] = alike;
    if (first === undefined) return [];
    return {
      model: first.model,
      compute: first.computeCapability,
      range: cudaRange(first, tables),
      gpus: new Set(alike.map((each) => each.parent ?? each.uuid)),
      instances: alike.filter((each) => each.kind === 'mig').length,
    };
  });
}

/** `2 × NVIDIA A100-SXM4-40GB (7 MIG instances), compute 8.0`. */
export function groupWords({ model, compute, gpus, instances }: Group): string {
  const count = gpus.size > 1 ? `${gpus.size} × ` : '';
  const mig = instances === 0 ? '' : ` (${instances} MIG ${instances === 1 ? 'instance' : 'instances'})`;
  return `${count}${model}${mig}, ${compute === null ? 'compute capability unknown' : `compute ${compute}`}`;
}
