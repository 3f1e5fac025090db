/** MIG instances and their profiles. Drivers name the same slice differently (3g.39gb, 3g.40gb: NVIDIA/mig-parted#31). */
import type { Device, GpuProcess } from './inventory.ts';

interface MigProfile {
  /** Compute slices of the compute instance, where it is only a part of its GPU instance (`1c.3g.71gb`); null for all. */
  readonly computeSlices: number | null;
  /** Slices of the GPU instance. */
  readonly slices: number;
  /** GB, as in the name, which rounds it. */
  readonly memory: number;
  /** `+me`, `+gfx`, `-me`, …; empty for none. */
  readonly attributes: string;
}

/** Whether it is a GPU whose instances are given to jobs. */
export function isInMigMode({ mig }: Pick<Device, 'mig'>): boolean {
  return mig !== null && 'mode' in mig && mig.mode === 'enabled';
}

/** The profile of a MIG instance; null where it is unknown, and for a GPU. */
export function profileOf({ mig }: Pick<Device, 'mig'>): string | null {
  return mig !== null && 'profile' in mig ? mig.profile : null;
}

/** null when it is not a profile. */
export function parseProfile(name: string): MigProfile | null {
  const found = /^(?:(\d{1,2})c\.)?(\d{1,2})g\.(\d{1,4})gb([+-][a-z0-9.+-]+)?$/i.exec(name.trim());
  if (found === null) return null;
  const [, compute, slices, memory, attributes = ''] = found;
  return {
    computeSlices: compute === undefined ? null : Number(compute),
    slices: Number(slices),
    memory: Number(memory),
    attributes: attributes.toLowerCase(),
  };
}

/** Whether two names mean the same slice, with the same attributes. False when either is not a profile. */
export function sameProfile(a: string, b: string): boolean {
  const [one, other] = [parseProfile(a), parseProfile(b)];
  return one !== null && other !== null && sameSlice(one, other) && one.attributes === other.attributes;
}

/** Whether a device of this profile matches `asked`, which leaves the attributes open if it has none. */
export function satisfiesProfile(profile: string, asked: string): boolean {
  const [has, wants] = [parseProfile(profile), parseProfile(asked)];
  if (has === null || wants === null || !sameSlice(has, wants)) return false;
  return wants.attributes === '' || wants.attributes === has.attributes;
}

function sameSlice(a: MigProfile, b: MigProfile): boolean {
  const most = Math.max(a.memory, b.memory);
  // Names of one slice differ by rounding, by one at most; 1g.5gb and 1g.6gb are slices of different cards.
  const apart = most < 10 ? 0 : Math.max(1, most / 20);
  return a.slices === b.slices && a.computeSlices === b.computeSlices && Math.abs(a.memory - b.memory) <= apart;
}

/** Numbers of the driver; null where the compute instance is unknown. */
interface MigPlace {
  readonly gpuInstance: number;
  readonly computeInstance: number | null;
}

/** Whether a process may be on an instance. A compute process without a known instance may be on each; displays are on none. */
export function mayBeOn(process: GpuProcess, { gpuInstance, computeInstance }: MigPlace): boolean {
  if (process.gpuInstance === null) return process.type !== 'G';
  if (process.gpuInstance !== gpuInstance) return false;
  return computeInstance === null || process.computeInstance === null || process.computeInstance === computeInstance;
}
