/** Every type of runtime under `runtimes` of the config. A new type is a folder here, and a line in this file. */
import type { RuntimeType } from '../config/runtime-type.ts';
import { kubernetes } from './kubernetes/type.ts';
import { slurm } from './slurm/type.ts';

export const runtimeTypes: readonly RuntimeType[] = [kubernetes as unknown as RuntimeType, slurm as unknown as RuntimeType];
