/**
 * Types of machines as the config writes them: `g2-standard-4`, whose GPU is built in, or `n1-standard-4/nvidia-tesla-t4:2`, to which
 * GPUs are attached.
 */

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
const dead: readonly (readonly [RegExp, string])[] = [
  [/^nvidia-tesla-k80$/, 'K80'],
  [/^nvidia-tesla-p4(-vws)?$/, 'P4'],
  [/^nvidia-tesla-p100(-vws)?$/, 'P100'],
  [/^nvidia-tesla-v100$/, 'V100'],
];

/** Series with GPUs built in; all others need something attached. */
const builtIn = /^(a2|a3|a4|a4x|g2|g4)-/;

/** Why a type cannot be used, as a sentence; null: it can. */
export function typeProblem(text: string): string | null {
  const type = parseType(text);
  if (type === null)
    return `${JSON.stringify(text)} is not a type of Compute Engine; write it as g2-standard-4, or with GPUs as n1-standard-4/nvidia-tesla-t4:1.`;
  const { machine, attached } = type;
  const old = dead.find(([name]) => name.test(attached?.type ?? ''));
  if (old !== undefined)
    return `${text} has a ${old[1]}, which is older than Turing: current drivers no longer support it. Use nvidia-tesla-t4 or g2-standard-4.`;
  if (attached !== null && builtIn.test(machine))
    return `${text} attaches ${attached.type} to ${machine}, whose GPUs are built in. Write ${machine}.`;
  if (attached !== null && !machine.startsWith('n1-'))
    return `${text} attaches ${attached.type} to ${machine}, but Compute Engine attaches GPUs to N1 machines only. Write n1-standard-4/${attached.type}.`;
  return null;
}

/** What a series with GPUs built in has: the part of its quota's name, and the number of GPUs of a machine. */
interface BuiltIn {
  readonly gpu: string;
  count(machine: string): number;
}

const trailing = (machine: string): number => Number(/-(\d+)g$/.exec(machine)?.[1] ?? 1);
/** By number of vCPUs. */
const g2: Readonly<Record<string, number>> = { 24: 2, 48: 4, 96: 8 };
const g4: Readonly<Record<string, number>> = { 96: 2, 192: 4, 384: 8 };
const cpus = (machine: string): string => /-(\d+)$/.exec(machine)?.[1] ?? '';

const series: readonly (readonly [RegExp, BuiltIn])[] = [
  [/^g2-/, { gpu: 'NVIDIA_L4', count: (machine) => g2[cpus(machine)] ?? 1 }],
  [/^g4-/, { gpu: 'NVIDIA_RTX_PRO_6000', count: (machine) => g4[cpus(machine)] ?? 1 }],
  [/^a2-ultragpu-/, { gpu: 'NVIDIA_A100_80GB', count: trailing }],
  [/^a2-/, { gpu: 'NVIDIA_A100', count: trailing }],
  [/^a3-ultragpu-/, { gpu: 'NVIDIA_H200', count: trailing }],
  [/^a3-megagpu-/, { gpu: 'NVIDIA_H100_MEGA', count: trailing }],
  [/^a3-/, { gpu: 'NVIDIA_H100', count: trailing }],
  [/^a4-/, { gpu: 'NVIDIA_B200', count: trailing }],
  [/^a4x-/, { gpu: 'NVIDIA_GB200', count: trailing }],
];

/** GPUs of a machine, with the part of their quota's name: `NVIDIA_T4`. null: it has none. */
export function gpusOf({ machine, attached }: MachineType): { readonly gpu: string; readonly count: number } | null {
  if (attached !== null) {
    const name = attached.type.replace('-tesla', '').replaceAll('-', '_').toUpperCase();
    return { gpu: name, count: attached.count };
  }
  const found = series.find(([prefix]) => prefix.test(machine))?.[1];
  return found === undefined ? null : { gpu: found.gpu, count: found.count(machine) };
}

/** Newer series boot from Hyperdisk only. */
export function diskTypeOf({ machine }: MachineType): string {
  return /^(a4|a4x|a3-ultragpu|g4)-/.test(machine) ? 'hyperdisk-balanced' : 'pd-balanced';
}
