/** What one output of nvidia-smi gave, before anything is concluded from it: texts as printed, and whether it was whole. */
import type { Facts, GpuField, MigField, ProcessField } from './fields.ts';
import type { Trouble } from './values.ts';

export interface Reading {
  /** As printed, or null. */
  readonly driver: string | null;
  readonly cuda: string | null;
  /** How many GPUs the driver said it has; null where the output does not say. */
  readonly attached: number | null;
  readonly gpus: readonly GpuReading[];
  /** Whether the output has all that it should: nothing cut, nothing out of place. */
  readonly whole: boolean;
  /** What stands around the answer: complaints, mostly. */
  readonly rest: string;
}

export interface GpuReading {
  readonly facts: Facts<GpuField>;
  readonly instances: readonly MigReading[];
  /** null where the output does not tell about processes. */
  readonly processes: readonly ProcessReading[] | null;
  /** What the card said instead of a value. */
  readonly trouble: Trouble | null;
  /** Whether its state was asked for and read to the end; what only has its name or some columns says nothing of health. */
  readonly depth: 'state' | 'cut' | 'columns' | 'name';
}

export type MigReading = Facts<MigField>;
export type ProcessReading = Facts<ProcessField>;

export const nothingRead: Reading = { driver: null, cuda: null, attached: null, gpus: [], whole: false, rest: '' };

/** `facts` filled up with what `more` knows and they do not. */
export function fillUp<F extends string>(facts: Facts<F>, more: Facts<F>, isSaid: (text: string) => boolean): Facts<F> {
  const filled: { [K in F]?: string } = { ...facts };
  for (const [key, value] of Object.entries<string | undefined>(more) as [F, string | undefined][]) {
    const has = filled[key];
    if (value !== undefined && (has === undefined || (!isSaid(has) && isSaid(value)))) filled[key] = value;
  }
  return filled;
}
