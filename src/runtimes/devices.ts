/**
 * What a lease means inside a sandbox: the variables that name the devices, and their nodes below /dev. All runtimes use this, so
 * a job finds the same everywhere. Variables only guide well-behaved programs. A job cannot use a device because its node is
 * missing, or may not be opened.
 */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../base/errors.ts';
import type { LeasedDevice } from '../ports/runtime.ts';

/** NVIDIA's container tools read this as "no devices at all", even if the image asks for all. */
export const noDevices = 'void';

/**
 * The variables of a sandbox with these devices, in the order of the lease. They override all others. `alone`: no other device
 * can be reached, so devices that vendors know only by number are counted from 0 (`ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`).
 * Otherwise they have the host's numbers, and a sandbox without devices is shown none.
 */
export function visibleDevices(devices: readonly LeasedDevice[], alone: boolean): Readonly<Record<string, string>> {
  const of = (vendor: LeasedDevice['vendor']) => devices.filter((device) => device.vendor === vendor);
  const [nvidia, amd, intel] = [of('nvidia'), of('amd'), of('intel')];
  const uuids = nvidia.map(({ uuid }) => uuid).join(',');
  // ROCm knows cards by `GPU-` and 16 hexadecimal digits, too.
  const rocm = ({ uuid, index }: LeasedDevice) => (/^GPU-[0-9a-f]{16}$/i.test(uuid) ? uuid : String(index ?? ''));
  const numbers = (some: readonly LeasedDevice[], name: (device: LeasedDevice) => string) =>
    some.map((device, at) => (alone ? String(at) : name(device))).join(',');
  return {
    NVIDIA_VISIBLE_DEVICES: uuids || noDevices,
    // By default CUDA counts the fastest card first; nvidia-smi and people count by PCI address.
    ...(nvidia.length > 0 && { CUDA_VISIBLE_DEVICES: uuids, CUDA_DEVICE_ORDER: 'PCI_BUS_ID' }),
    ...(nvidia.length === 0 && !alone && { CUDA_VISIBLE_DEVICES: '' }),
    ...((amd.length > 0 || !alone) && { ROCR_VISIBLE_DEVICES: numbers(amd, rocm) }),
    ...(intel.length > 0 && { ZE_AFFINITY_MASK: numbers(intel, ({ index }) => String(index ?? '')) }),
  };
}

/**
 * Nodes of a lease, as names below /dev, without duplicates. `needed` by its devices; the driver creates `useful` ones on first
 * use, or only on some hosts. `minors`: the capabilities of MIG instances (`parseMigMinors`); null: none, or unknown.
 */
export function nodesOf(devices: readonly LeasedDevice[], minors: MigMinors | null) {
  const gate = gateNodes(devices).map((path) => path.slice('/dev/'.length));
  const caps = devices.flatMap((device) => capsOf(device, minors) ?? []).map((minor) => `nvidia-caps/nvidia-cap${minor}`);
  const isNvidia = gate.includes('nvidiactl');
  return {
    needed: [...new Set([...gate, ...caps])],
    useful: isNvidia ? ['nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'] : [],
  };
}

/**
 * Nodes that the gate opens before it runs a script. A sandbox that lost the right to its devices notices it there. A card with
 * an unknown number (Jetson, WSL 2) has no such node.
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

const migMinorsFile = '/proc/driver/nvidia-caps/mig-minors';

/** Parses `migMinorsFile`, with lines such as `gpu0/gi3/ci0/access 31` (NVIDIA's MIG guide, "Device nodes and capabilities"). */
export function parseMigMinors(text: string): MigMinors {
  const entries = [...text.matchAll(/^(gpu\d+\/gi\d+(?:\/ci\d+)?)\/access (\d+)$/gm)];
  return new Map(entries.map(([, name = '', minor]) => [name, Number(minor)]));
}

/** null if the driver has no nodes for MIG instances: there are none, or it is old and has only files in /proc. */
export function readMigMinors(deviceDir: string): MigMinors | null {
  return attempt(() => {
    statSync(join(deviceDir, 'nvidia-caps'));
    return parseMigMinors(readFileSync(migMinorsFile, 'utf8'));
  });
}

/** The two capabilities of a MIG instance; null if they are unknown, empty for a whole card. */
export function capsOf({ kind, minor, mig }: LeasedDevice, minors: MigMinors | null): number[] | null {
  if (kind === 'gpu') return [];
  if (mig === null || !('profile' in mig)) return null;
  const gpu = `gpu${minor}/gi${mig.gpuInstance}`;
  const [whole, part] = [minors?.get(gpu), minors?.get(`${gpu}/ci${mig.computeInstance}`)];
  return whole === undefined || part === undefined ? null : [whole, part];
}

/** NVIDIA's tools map memory for each possible open file: for 10^9 in 24 s instead of 2 s (nvidia-container-toolkit#1053). */
const most = 65_536;

/** A limit that GPU tools tolerate, and at most this process' own hard limit: raising that takes a right that few have. */
export function openFilesForDevices(): number {
  const limits = attempt(() => readFileSync('/proc/self/limits', 'utf8')) ?? '';
  return Math.min(most, Number(/^Max open files\s+\S+\s+(\d+)/m.exec(limits)?.[1] ?? most));
}
