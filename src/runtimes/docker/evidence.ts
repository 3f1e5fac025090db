/**
 * Whether a container holds exactly the devices that were leased, judged by what its first process really has: its
 * environment and its device nodes, never by the request that an Engine echoes. Pure; `witness.ts` looks.
 */
import { capsOf, type MigMinors, noDevices, nodesOf } from '../devices.ts';
import type { LeasedDevice, SandboxSpec } from '../runtime.ts';

/** A character device in the container. */
export interface DeviceNode {
  /** Below /dev: `nvidia0`, `dri/renderD128`, `nvidia-caps/nvidia-cap21`. */
  readonly name: string;
  readonly major: number;
  readonly minor: number;
}

export interface Evidence {
  /** Every value of NVIDIA_VISIBLE_DEVICES that the first process was started with. */
  readonly visible: readonly string[];
  readonly nodes: readonly DeviceNode[];
}

/** What of the host is needed to tell whose node is whose. */
export interface HostDevices {
  /** Null where MIG instances have no nodes, or nobody may know. */
  readonly migMinors: MigMinors | null;
  /** PCI address → what graphics drivers call the card below /dev: `dri/card1`, `dri/renderD128`. */
  readonly drm: ReadonlyMap<string, readonly string[]>;
}

/** In what the container differs from its lease, in words for a person; empty when it does not. */
export function judge(
  { devices, recipe }: Pick<SandboxSpec, 'devices' | 'recipe'>,
  evidence: Evidence,
  host: HostDevices,
): readonly string[] {
  const found = evidence.nodes.flatMap((node) => {
    const what = meaning(node);
    return what === null ? [] : [{ ...node, what }];
  });
  const has = new Set(found.map(({ what }) => what));
  const missing = nodesOf(devices, host.migMinors).needed.filter((name) => !has.has(name));
  // What the owner mounts below /dev is the owner's wish, and no right to open it.
  const mounted = ({ name }: DeviceNode) => recipe.mounts.some(({ container }) => `/dev/${name}/`.startsWith(`${container}/`));
  const foreign = found.filter((node) => !isAllowed(node.what, devices, host) && !mounted(node));
  const cards = foreign.filter(({ what }) => isCard(what));
  // A card whose number nobody knows may have a node all the same.
  const nameless = new Set(nvidiaOf(devices).flatMap(({ minor, parent, uuid }) => (minor === null ? (parent ?? uuid) : []))).size;
  const strange = cards.length > nameless ? foreign : foreign.filter(({ what }) => !isCard(what));
  return [
    ...visibleTrouble(devices, evidence.visible),
    ...missing.map((name) => `/dev/${name} is missing`),
    // A privileged container sees every node of the host.
    ...(recipe.unsafe.privileged ? [] : strange.map(({ name }) => `/dev/${name} is not its own`)),
  ];
}

/** Linux' numbers for NVIDIA's cards and for graphics cards (Documentation/admin-guide/devices.txt). */
const majors = { nvidia: 195, drm: 226 } as const;

/**
 * What the node is, by the device's number where its meaning is fixed, since a name can be given to anything: `nvidia0`,
 * `dri/renderD128`, `kfd`, …; `nvidia` for all else that only NVIDIA's driver has. Null for what no lease speaks of.
 */
function meaning({ name, major, minor }: DeviceNode): string | null {
  if (major === majors.nvidia) return minor < 254 ? `nvidia${minor}` : minor === 255 ? 'nvidiactl' : 'nvidia';
  if (major === majors.drm) return minor < 128 ? `dri/card${minor}` : `dri/renderD${minor}`;
  if (/^(nvidia\d+|nvidiactl|nvidia-caps\/nvidia-cap\d+|dri\/(renderD|card)\d+|kfd)$/.test(name)) return name;
  return name.startsWith('nvidia') ? 'nvidia' : null;
}

function isCard(what: string): boolean {
  return /^nvidia\d+$/.test(what);
}

function nvidiaOf(devices: readonly LeasedDevice[]): LeasedDevice[] {
  return devices.filter(({ vendor }) => vendor === 'nvidia');
}

function isAllowed(what: string, devices: readonly LeasedDevice[], host: HostDevices): boolean {
  const nvidia = nvidiaOf(devices);
  if (nodesOf(devices, host.migMinors).needed.includes(what)) return true;
  if (nvidia.length === 0) return false;
  if (what.startsWith('nvidia-caps/')) {
    const caps = nvidia.filter(({ kind }) => kind === 'mig').map((device) => capsOf(device, host.migMinors));
    // Without instances they are of no use, and of those that are not known none can be called foreign.
    return caps.length === 0 || caps.includes(null);
  }
  // NVIDIA's tools bring the graphics nodes of a card along with it.
  return /^nvidia(ctl)?$/.test(what) || nvidia.some(({ pciId }) => pciId !== null && host.drm.get(pciId)?.includes(what));
}

/** `void` proves nothing and breaks nothing: a CDI specification sets it, so that nobody adds devices to its own. */
function visibleTrouble(devices: readonly LeasedDevice[], visible: readonly string[]): string[] {
  const leased = new Set(nvidiaOf(devices).map(({ uuid }) => uuid));
  const isRight = (value: string): boolean => {
    if (value === noDevices) return true;
    const names = new Set(value.split(','));
    return names.size === leased.size && names.isSubsetOf(leased);
  };
  if (visible.length === 0) return ['NVIDIA_VISIBLE_DEVICES is not set'];
  return visible.filter((value) => !isRight(value)).map((value) => `NVIDIA_VISIBLE_DEVICES is ${value === '' ? 'empty' : value}`);
}
