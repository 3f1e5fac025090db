/**
 * How much of NVIDIA's cards is in use: one cheap call for all of them. The fields exist in every driver from 390 to 610, since an
 * unknown one makes the whole call fail. The call does not list MIG instances, and a card in MIG mode reports no utilisation.
 */
import { countOf, mebibytes } from '../fields.ts';
import { gpuUuid, nvidiaText } from './values.ts';

/** What is in use of one device now. null: unknown, which never means zero. */
export interface DeviceUse {
  readonly memoryUsedMiB: number | null;
  /** Percent of the time during which a kernel ran, over the last second at most. */
  readonly utilization: number | null;
  /** °C */
  readonly temperature: number | null;
  /** W, of the whole board. */
  readonly powerW: number | null;
  readonly smClockMHz: number | null;
  readonly memoryClockMHz: number | null;
  /** What slows its clocks down; empty: nothing does. */
  readonly throttled: readonly ThrottleReason[] | null;
}

export const throttleReasons = ['power cap', 'hardware slowdown', 'sync boost', 'thermal', 'power brake'] as const;
export type ThrottleReason = (typeof throttleReasons)[number];

/**
 * Bits of `nvmlClocksEventReason…` in nvml.h. The others slow nothing down: an idle card, and clocks that somebody has chosen. The
 * hardware's slowdown (8) is set together with its reason, if it has one of these.
 */
const bits: readonly (readonly [bit: number, reason: ThrottleReason])[] = [
  [0x04, 'power cap'],
  [0x08, 'hardware slowdown'],
  [0x10, 'sync boost'],
  [0x20, 'thermal'],
  [0x40, 'thermal'],
  [0x80, 'power brake'],
];

/** Arguments of `nvidia-smi`. */
export const useQuery: readonly string[] = [
  '--query-gpu=uuid,memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks.mem,clocks_throttle_reasons.active',
  '--format=csv,noheader,nounits',
];

/** Highest values that are not misread: °C, W, MHz. */
const [hottest, strongest, fastest] = [200, 10_000, 100_000];

/** The answer to `useQuery`, by UUID. Never throws; a line that is not understood is left out. */
export function readUse(text: string): ReadonlyMap<string, DeviceUse> {
  const uses = new Map<string, DeviceUse>();
  for (const line of text.split('\n')) {
    const [name, memory = '', utilization = '', temperature = '', power = '', sm = '', mem = '', reasons, ...more] = line
      .split(',')
      .map((value) => value.trim());
    const uuid = gpuUuid(name);
    if (uuid === null || reasons === undefined || more.length > 0) continue;
    uses.set(uuid, {
      memoryUsedMiB: mebibytes(nvidiaText(memory)),
      utilization: countOf(utilization, 100),
      temperature: countOf(temperature, hottest),
      powerW: watts(power),
      smClockMHz: countOf(sm, fastest),
      memoryClockMHz: countOf(mem, fastest),
      throttled: throttledBy(reasons),
    });
  }
  return uses;
}

function watts(text: string): number | null {
  const number = /^\d{1,6}(\.\d{1,3})?$/.test(text) ? Number(text) : Number.POSITIVE_INFINITY;
  return number <= strongest ? number : null;
}

function throttledBy(text: string): readonly ThrottleReason[] | null {
  if (!/^0x[0-9a-f]{1,16}$/i.test(text)) return null;
  // The upper half has no reason that is known.
  const mask = Number.parseInt(text.slice(-8).replace(/^.*x/i, ''), 16);
  const found = new Set(bits.flatMap(([bit, reason]) => ((mask & bit) === 0 ? [] : [reason])));
  if (found.has('thermal') || found.has('power brake')) found.delete('hardware slowdown');
  return [...found];
}
