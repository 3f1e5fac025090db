/**
 * Types of machines as the config writes them: `g2-standard-4`, whose GPU is built in, or `n1-standard-4/nvidia-tesla-t4:2`, to which
 * GPUs are attached.
 */
import { CloudError, type Price } from '../../ports/cloud.ts';

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

/**
 * The day of the list prices, in USD per hour, without discounts, for estimates: those of us-central1, rounded. Google's own price list
 * needs an API key, so nothing here is asked for. Other regions cost up to a third more; Spot varies by the day.
 */
const asOf = '2026-11-01';

/** Machines, those with GPUs built in included. */
const machines: Readonly<Record<string, number>> = {
  'g2-standard-4': 0.71,
  'g2-standard-8': 0.85,
  'g2-standard-12': 1.0,
  'g2-standard-16': 1.15,
  'g2-standard-24': 2.0,
  'g2-standard-32': 1.73,
  'g2-standard-48': 4.0,
  'g2-standard-96': 8.01,
  'a2-highgpu-1g': 3.67,
  'a2-highgpu-2g': 7.35,
  'a2-highgpu-4g': 14.69,
  'a2-highgpu-8g': 29.39,
  'a2-megagpu-16g': 55.74,
  'a2-ultragpu-1g': 5.07,
  'a2-ultragpu-2g': 10.14,
  'a2-ultragpu-4g': 20.28,
  'a2-ultragpu-8g': 40.55,
  'a3-highgpu-1g': 11.06,
  'a3-highgpu-2g': 22.12,
  'a3-highgpu-4g': 44.25,
  'a3-highgpu-8g': 88.49,
  'a3-megagpu-8g': 93.4,
};

/** Per vCPU of a series to which GPUs are attached. */
const perCpu: Readonly<Record<string, number>> = { 'n1-standard': 0.0475, 'n1-highmem': 0.0592, 'n1-highcpu': 0.0354 };
/** Per GPU. */
const gpus: Readonly<Record<string, number>> = { 'nvidia-tesla-t4': 0.35, 'nvidia-tesla-t4-vws': 0.55 };
/** What Spot costs of the list price; Google promises at most 0.4 for GPUs. */
const spotShare = 0.4;

/** Without disk (about 0.14 USD a day for 50 GB) and address (0.005 USD per hour). null: unknown. */
export function gcpPrice(type: string, isSpot: boolean): Price | null {
  const parsed = parseType(type);
  const full = parsed === null ? null : fullPrice(parsed);
  return full === null ? null : { perHour: Math.round(full * (isSpot ? spotShare : 1) * 10_000) / 10_000, asOf };
}

function fullPrice({ machine, attached }: MachineType): number | null {
  const [, line = '', cpus = ''] = /^(n1-[a-z]+)-(\d+)$/.exec(machine) ?? [];
  const base = machines[machine] ?? (perCpu[line] === undefined ? null : perCpu[line] * Number(cpus));
  if (base === null || attached === null) return base;
  const each = gpus[attached.type];
  return each === undefined ? null : base + each * attached.count;
}
