/**
 * What a lease means inside of a sandbox: the variables that name the devices, and the nodes below /dev that are them. Runtimes
 * meet here, so that a job finds the same on each. Variables hide devices from well-behaved programs and hold
 * nobody back; what keeps a job from a device is that its node is not there, or may not be opened.
 */

import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { LeasedDevice } from './runtime.ts';

/** What NVIDIA's container tools take for "none at all", also where an image asks for all. */
export const noDevices = 'void';

type Variables = Readonly<Record<string, string>>;

/**
 * The variables of a sandbox with these devices, in the order of the lease. They win over anybody's else. `alone`: no other
 * device can be reached, so what vendors only know by number is counted from 0 (`ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`);
 * else it has the host's numbers, and a sandbox without devices is shown none.
 */
export function visibleDevices(devices: readonly LeasedDevice[], alone: boolean): Variables {
  const of = (vendor: LeasedDevice['vendor']) => devices.filter((device) => device.vendor === vendor);
  const [nvidia, amd, intel] = [of('nvidia'), of('amd'), of('intel')];
  const uuids = nvidia.map(({ uuid }) => uuid).join(',');
  // ROCm knows cards by `GPU-` and 16 hexadecimal digits, too.
  const rocm = ({ uuid, index }: LeasedDevice) => (/^GPU-[0-9a-f]{16}$/i.test(uuid) ? uuid : String(index ?? ''));
  const numbers = (some: readonly LeasedDevice[], name: (device: LeasedDevice) => string) =>
    some.map((device, at) => (alone ? String(at) : name(device))).join(',');
  return {
    NVIDIA_VISIBLE_DEVICES: uuids || noDevices,
    // CUDA counts the fastest card first unless it is told otherwise; nvidia-smi and people count by PCI address.
    ...(nvidia.length > 0 && { CUDA_VISIBLE_DEVICES: uuids, CUDA_DEVICE_ORDER: 'PCI_BUS_ID' }),
    ...(nvidia.length === 0 && !alone && { CUDA_VISIBLE_DEVICES: '' }),
    ...((amd.length > 0 || !alone) && { ROCR_VISIBLE_DEVICES: numbers(amd, rocm) }),
    ...(intel.length > 0 && { ZE_AFFINITY_MASK: numbers(intel, ({ index }) => String(index ?? '')) }),
  };
}

/** Nodes of a lease, as names below /dev, none twice. */
export interface LeaseNodes {
  /** Without these its devices do not work. */
  readonly needed: readonly string[];
  /** Made by the driver when something asks for them first, or only on some hosts. */
  readonly useful: readonly string[];
}

/** `minors` are the capabilities of MIG instances (`parseMigMinors`); null where there are none or nobody knows. */
export function nodesOf(devices: readonly LeasedDevice[], minors: MigMinors | null): LeaseNodes {
  const gate = gateNodes(devices).map((path) => path.slice('/dev/'.length));
  const caps = devices.flatMap((device) => capsOf(device, minors) ?? []).map((minor) => `nvidia-caps/nvidia-cap${minor}`);
  const isNvidia = gate.includes('nvidiactl');
  return {
    needed: [...new Set([...gate, ...caps])],
    useful: isNvidia ? ['nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'] : [],
  };
}

/**
 * What the gate opens before it runs a script: a sandbox that lost the right to its devices notices it there. A card whose
 * number nobody knows (Jetson, WSL 2) has no such node.
 */
export function gateNodes(devices: readonly LeasedDevice[]): string[] {
  const nodes = devices.flatMap(({ vendor, minor }) => {
    if (minor === null) return [];
    if (vendor === 'nvidia') return ['/dev/nvidiactl', `/dev/nvidia${minor}`];
    return [...(vendor === 'amd' ? ['/dev/kfd'] : []), `/dev/dri/renderD${minor}`];
  });
  return [...new Set(nodes)];
}

/** `gpu0/gi3` and `gpu0/gi3/ci0` → N of `/dev/nvidia-caps/nvidia-capN`. */
export type MigMinors = ReadonlyMap<string, number>;

export const migMinorsFile = '/proc/driver/nvidia-caps/mig-minors';

/** The lines of `migMinorsFile`, such as `gpu0/gi3/ci0/access 31` (NVIDIA's MIG guide, "Device nodes and capabilities"). */
export function parseMigMinors(text: string): MigMinors {
  const found = [...text.matchAll(/^(gpu\d+\/gi\d+(?:\/ci\d+)?)\/access (\d+)$/gm)];
  return new Map(found.map(([, name = '', minor]) => [name, Number(minor)]));
}

/** Null where the driver has no nodes for MIG instances: none leased, or an old driver with files in /proc alone. */
export function readMigMinors(deviceDir: string): MigMinors | null {
  try {
    statSync(join(deviceDir, 'nvidia-caps'));
    return parseMigMinors(readFileSync(migMinorsFile, 'utf8'));
  } catch {
    return null;
  }
}

/** The two capabilities of a MIG instance; null where they are not known, none for a whole card. */
export function capsOf({ kind, minor, mig }: LeasedDevice, minors: MigMinors | null): number[] | null {
  if (kind === 'gpu') return [];
  if (mig === null || !('profile' in mig)) return null;
  const gpu = `gpu${minor}/gi${mig.gpuInstance}`;
  const [whole, part] = [minors?.get(gpu), minors?.get(`${gpu}/ci${mig.computeInstance}`)];
  return whole === undefined || part === undefined ? null : [whole, part];
}

/** NVIDIA's tools map memory for each file that they might open: 24 s instead of 2 s at 10^9 (nvidia-container-toolkit#1053). */
const most = 65_536;

/** A limit that tools of GPUs bear, and no more than this process may allow itself: more takes a right that few have. */
export function openFilesForDevices(): number {
  try {
    const hard = /^Max open files\s+\S+\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
    return Math.min(most, Number(hard ?? most));
  } catch {
    return most;
  }
}
