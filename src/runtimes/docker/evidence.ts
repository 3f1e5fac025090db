/**
 * Whether a container holds exactly the leased devices. The environment and device nodes of its first process decide, never the
 * request that an Engine echoes. Pure; `devices.ts` inspects the container.
 */

import type { LeasedDevice, SandboxSpec } from '../../ports/runtime.ts';
import { capsOf, type MigMinors, noDevices, nodesOf } from '../devices.ts';

/** A character device in the container. */
export interface DeviceNode {
  /** Below /dev: `nvidia0`, `dri/renderD128`, `nvidia-caps/nvidia-cap21`. */
  readonly name: string;
  readonly major: number;
  readonly minor: number;
}

export interface Evidence {
  /** Every value of NVIDIA_VISIBLE_DEVICES in the environment of the first process. */
  readonly visible: readonly string[];
  readonly nodes: readonly DeviceNode[];
}

/** What has to be known of the host to tell which card a node belongs to. */
export interface HostDevices {
  /** null if MIG instances have no nodes, or they cannot be read. */
  readonly migMinors: MigMinors | null;
  /** PCI address → names of the card's graphics nodes below /dev, such as `dri/card1` and `dri/renderD128`. */
  readonly drm: ReadonlyMap<string, readonly string[]>;
}

/** How the container differs from its lease, in words for a person; empty if it does not. */
export function judgeEvidence({ devices, recipe }: Pick<SandboxSpec, 'devices' | 'recipe'>, evidence: Evidence, host: HostDevices) {
  const nodes = evidence.nodes.flatMap((node) => {
    const what = meaning(node);
    return what === null ? [] : [{ ...node, what }];
  });
  const has = new Set(nodes.map(({ what }) => what));
  const missing = nodesOf(devices, host.migMinors).needed.filter((name) => !has.has(name));
  // The owner may mount nodes below /dev. A mount gives no right to open them.
  const mounted = ({ name }: DeviceNode) => recipe.mounts.some(({ container }) => `/dev/${name}/`.startsWith(`${container}/`));
  const foreign = nodes.filter((node) => !isAllowed(node.what, devices, host) && !mounted(node));
  const cards = foreign.filter(({ what }) => isCard(what));
  // A card with an unknown number may still have a node.
  const nameless = new Set(nvidiaOf(devices).flatMap(({ minor, parent, uuid }) => (minor === null ? (parent ?? uuid) : []))).size;
  const strange = cards.length > nameless ? foreign : foreign.filter(({ what }) => !isCard(what));
  return [
    ...visibleTrouble(devices, evidence.visible),
    ...missing.map((name) => `/dev/${name} is missing`),
    // A privileged container sees every node of the host.
    ...(recipe.unsafe.privileged ? [] : strange.map(({ name }) => `/dev/${name} is not its own`)),
  ];
}

/** Linux' major numbers of NVIDIA's cards and of graphics cards (Documentation/admin-guide/devices.txt). */
const majors = { nvidia: 195, drm: 226 } as const;

/**
 * What a node is. The device number decides if its meaning is fixed, since a node can have any name: `nvidia0`, `dri/renderD128`,
 * `kfd`, …; `nvidia` for everything else of NVIDIA's driver. null for a node that leases do not cover.
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
    // Useless without instances. If the numbers of some are unknown, none can be called foreign.
    return caps.length === 0 || caps.includes(null);
  }
  // NVIDIA's tools add the graphics nodes of a card to it.
  return /^nvidia(ctl)?$/.test(what) || nvidia.some(({ pciId }) => pciId !== null && host.drm.get(pciId)?.includes(what));
}

/** `void` is accepted: a CDI specification sets it, so that nothing else adds devices. */
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
