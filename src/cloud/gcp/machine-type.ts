/**
 * Types of machines as the config writes them: `g2-standard-4`, whose GPU is built in, or `n1-standard-4/nvidia-tesla-t4:2`, to which
 * GPUs are attached.
 */
import { CloudError } from '../cloud.ts';

export interface MachineType {
  /** Of the machine, as Compute Engine names it. */
  readonly machine: string;
  /** What is attached to it; null: nothing, or its GPUs are built in. */
  readonly attached: { readonly type: string; readonly count: number } | null;
}

const form = /^([a-z][a-z0-9]*(?:-[a-z0-9]+)+)(?:\/([a-z][a-z0-9-]*[a-z0-9])(?::([1-9]\d?))?)?$/;

/** null: not written as a type is. */
export function parseType(text: string): MachineType | null {
  const [, machine, type, count = '1'] = form.exec(text) ?? [];
  if (machine === undefined) return null;
  return { machine, attached: type === undefined ? null : { type, count: Number(count) } };
}

/** As the config writes it. */
export function typeText({ machine, attached }: MachineType): string {
  if (attached === null) return machine;
  return `${machine}/${attached.type}${attached.count === 1 ? '' : `:${attached.count}`}`;
}

/** GPUs that no driver branch that onejob installs supports any more: older than Turing. */
const dead = /^nvidia-tesla-(k80|p4|p100|v100)(-vws)?$/;

/** Series with GPUs built in; all others need something attached. */
const builtIn = /^(a2|a3|a4|a4x|g2|g4)-/;

/** Why a type cannot be used, as a sentence; null: it can. */
export function typeProblem(text: string): string | null {
  const type = parseType(text);
  if (type === null)
    return `${JSON.stringify(text)} is not a type of Compute Engine; write it as g2-standard-4, or with GPUs as n1-standard-4/nvidia-tesla-t4:1.`;
  const { machine, attached } = type;
  const [, old] = dead.exec(attached?.type ?? '') ?? [];
  if (old !== undefined)
    return `${text} has a ${old.toUpperCase()}, which is older than Turing: current drivers no longer support it. Use nvidia-tesla-t4 or g2-standard-4.`;
  if (attached !== null && builtIn.test(machine))
    return `${text} attaches ${attached.type} to ${machine}, whose GPUs are built in. Write ${machine}.`;
  if (attached !== null && !machine.startsWith('n1-'))
    return `${text} attaches ${attached.type} to ${machine}, but Compute Engine attaches GPUs to N1 machines only. Write n1-standard-4/${attached.type}.`;
  return null;
}

/** In words: `Cannot <doing>: …`. @throws CloudError E_CLOUD_REQUEST if it cannot be used */
export function usableType(text: string, doing: string): MachineType {
  const why = typeProblem(text);
  const type = parseType(text);
  if (why !== null || type === null) throw new CloudError('E_CLOUD_REQUEST', `Cannot ${doing}: ${why}`);
  return type;
}

/** GPUs by number of vCPUs. */
const g2: Readonly<Record<string, number>> = { 24: 2, 48: 4, 96: 8 };
const g4: Readonly<Record<string, number>> = { 96: 2, 192: 4, 384: 8 };

/** Series with GPUs built in: the part of their quota's name, and how many a machine has, unless its name ends in it as `-8g`. */
const series: readonly (readonly [RegExp, gpu: string, byCpus?: Readonly<Record<string, number>>])[] = [
  [/^g2-/, 'NVIDIA_L4', g2],
  [/^g4-/, 'NVIDIA_RTX_PRO_6000', g4],
  [/^a2-ultragpu-/, 'NVIDIA_A100_80GB'],
  [/^a2-/, 'NVIDIA_A100'],
  [/^a3-ultragpu-/, 'NVIDIA_H200'],
  [/^a3-megagpu-/, 'NVIDIA_H100_MEGA'],
  [/^a3-/, 'NVIDIA_H100'],
  [/^a4-/, 'NVIDIA_B200'],
  [/^a4x-/, 'NVIDIA_GB200'],
];

/** GPUs of a machine, with the part of their quota's name: `NVIDIA_T4`. null: it has none. */
export function gpusOf({ machine, attached }: MachineType): { readonly gpu: string; readonly count: number } | null {
  if (attached !== null)
    return { gpu: attached.type.replace('-tesla', '').replaceAll('-', '_').toUpperCase(), count: attached.count };
  const [, gpu, byCpus] = series.find(([prefix]) => prefix.test(machine)) ?? [];
  const [, number = '', isGpus] = /-(\d+)(g?)$/.exec(machine) ?? [];
  return gpu === undefined ? null : { gpu, count: isGpus === 'g' ? Number(number) : (byCpus?.[number] ?? 1) };
}

/** Newer series boot from Hyperdisk only. */
export function diskTypeOf({ machine }: MachineType): string {
  return /^(a4|a4x|a3-ultragpu|g4)-/.test(machine) ? 'hyperdisk-balanced' : 'pd-balanced';
}
