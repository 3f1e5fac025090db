/**
 * List prices in USD per hour, without discounts, for estimates: those of us-central1, rounded. Google's own price list needs an API
 * key, so nothing here is asked for. Other regions cost up to a third more; Spot varies by the day.
 */
import type { Price } from '../cloud.ts';
import { type MachineType, parseType } from './machine-type.ts';

const asOf = '2026-11-01';

/** Machines, those with GPUs built in included. */
const machines: Readonly<Record<string, number>> = {
  ...{ 'g2-standard-4': 0.71, 'g2-standard-8': 0.85, 'g2-standard-12': 1.0, 'g2-standard-16': 1.15, 'g2-standard-24': 2.0 },
  ...{ 'g2-standard-32': 1.73, 'g2-standard-48': 4.0, 'g2-standard-96': 8.01 },
  ...{ 'a2-highgpu-1g': 3.67, 'a2-highgpu-2g': 7.35, 'a2-highgpu-4g': 14.69, 'a2-highgpu-8g': 29.39, 'a2-megagpu-16g': 55.74 },
  ...{ 'a2-ultragpu-1g': 5.07, 'a2-ultragpu-2g': 10.14, 'a2-ultragpu-4g': 20.28, 'a2-ultragpu-8g': 40.55 },
  ...{ 'a3-highgpu-1g': 11.06, 'a3-highgpu-2g': 22.12, 'a3-highgpu-4g': 44.25, 'a3-highgpu-8g': 88.49, 'a3-megagpu-8g': 93.4 },
};

/** Per vCPU of a series to which GPUs are attached. */
const perCpu: Readonly<Record<string, number>> = { 'n1-standard': 0.0475, 'n1-highmem': 0.0592, 'n1-highcpu': 0.0354 };
/** Per GPU. */
const gpus: Readonly<Record<string, number>> = { 'nvidia-tesla-t4': 0.35, 'nvidia-tesla-t4-vws': 0.55 };
/** What Spot costs of the list price; Google promises at most 0.4 for GPUs. */
const spotShare = 0.4;

/** Without disk (about 0.14 USD a day for 50 GB) and address (0.005 USD per hour). null: unknown. */
export function listPrice(type: string, isSpot: boolean): Price | null {
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
