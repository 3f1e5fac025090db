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
}

/** Arguments of `nvidia-smi`. */
export const useQuery: readonly string[] = [
  '--query-gpu=uuid,memory.used,utilization.gpu,temperature.gpu,power.draw',
  '--format=csv,noheader,nounits',
];

/** Highest values that are not misread: °C, W. */
const [hottest, strongest] = [200, 10_000];

/** The answer to `useQuery`, by UUID. Never throws; a line that is not understood is left out. */
export function readUse(text: string): ReadonlyMap<string, DeviceUse> {
  const uses = new Map<string, DeviceUse>();
  for (const line of text.split('\n')) {
    const [name, memory = '', utilization = '', temperature = '', power, ...more] = line.split(',').map((value) => value.trim());
    const uuid = gpuUuid(name);
    if (uuid === null || power === undefined || more.length > 0) continue;
    uses.set(uuid, {
      memoryUsedMiB: mebibytes(nvidiaText(memory)),
      utilization: countOf(utilization, 100),
      temperature: countOf(temperature, hottest),
      powerW: watts(power),
    });
  }
  return uses;
}

function watts(text: string): number | null {
  const number = /^\d{1,6}(\.\d{1,3})?$/.test(text) ? Number(text) : Number.POSITIVE_INFINITY;
  return number <= strongest ? number : null;
}
