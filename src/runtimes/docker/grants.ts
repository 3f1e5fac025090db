/**
 * How to ask an Engine for devices: always by name, never by count, which would give everybody the first ones. The way depends on
 * what the Engine reports. Pure; evidence shows whether the Engine complied.
 */

import { compareVersions, leadingVersion } from '../../base/version.ts';
import type { DriverCapability, GrantWay, LeasedDevice } from '../../ports/runtime.ts';
import { gateNodes, noDevices, visibleDevices } from '../devices.ts';
import type { EngineVersion, InfoAnswer } from '../engine/probe.ts';

/** Ways to NVIDIA's devices: a device request to Docker's own driver, a CDI name, or the runtime `nvidia`. */
export type GrantMethod = Exclude<GrantWay, 'auto'>;

export type GrantChoice =
  /** `why` completes "…, because". */
  { readonly way: GrantMethod; readonly why: string } | { readonly way: null; readonly why: string; readonly hint: string };

/** What decides about the way, in addition to the Engine. */
export interface GrantWish {
  readonly setting: GrantWay;
  /** NVIDIA devices in a lease; empty: any. */
  readonly uuids: readonly string[];
  /** Ways that the Engine refused although it reported none of that. */
  readonly refused: ReadonlySet<GrantMethod>;
}

export const anyGrant: GrantWish = { setting: 'auto', uuids: [], refused: new Set() };

/** Chooses the way for NVIDIA's devices. Others are passed as nodes, which every Engine can do. */
export function chooseGrant(info: InfoAnswer, version: EngineVersion, wish: GrantWish): GrantChoice {
  if (version.podman) return onPodman(version.Version, wish.setting);
  const cdi = byCdi(info, version, wish);
  const offers: Readonly<Record<GrantMethod, GrantChoice>> = {
    cdi,
    request: { way: 'request', why: cdi.way === null ? cdi.why : 'it needs no CDI' },
    runtime: byRuntime(info),
  };
  if (wish.setting !== 'auto') {
    const offer = offers[wish.setting];
    return offer.way === null ? offer : { way: offer.way, why: `"grant: ${wish.setting}" requests it` };
  }
  // CDI first, because `systemctl daemon-reload` takes away what a hook has granted.
  const open = (['cdi', 'request', 'runtime'] as const).filter((way) => offers[way].way !== null);
  return offers[open.find((way) => !wish.refused.has(way)) ?? open[0] ?? 'request'];
}

/** Measured: Podman 4.3 accepts a request and grants nothing, and accepts no CDI name as a device; 5.4 accepts the request. */
function onPodman(version: string, setting: GrantWay): GrantChoice {
  const hint = 'Use Docker Engine, or Podman 5.4 or newer, for pools with NVIDIA devices.';
  if (!isAtLeast(version, '5.4')) {
    return { way: null, why: `Podman ${version} accepts requests for devices through this socket, but grants none`, hint };
  }
  if (setting === 'auto' || setting === 'cdi') return { way: 'cdi', why: 'Podman supports no other way' };
  return { way: null, why: `Podman grants devices only through CDI, but "grant: ${setting}" requests another way`, hint };
}

function isAtLeast(version: string, least: string): boolean {
  return compareVersions(leadingVersion(version) ?? '', least) >= 0;
}

const cdiKind = 'nvidia.com/gpu=';

function byCdi(info: InfoAnswer, version: EngineVersion, { setting, uuids }: GrantWish): GrantChoice {
  const none = (why: string, hint: string): GrantChoice => ({ way: null, why, hint });
  const specify = 'Type "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml" on its host, or remove "grant".';
  const folders = info.CDISpecDirs ?? [];
  if (folders.length === 0) {
    const hint = 'Docker Engine 25 and later support CDI, with { "features": { "cdi": true } } in /etc/docker/daemon.json.';
    return none('this Engine has CDI turned off or does not support it', hint);
  }
  // Engine 28.2 lists the names, or omits the key if there are none. Earlier ones report CDI only if somebody turned it on.
  if (!isAtLeast(version.ApiVersion, '1.50')) return { way: 'cdi', why: `CDI is turned on (${folders.join(', ')})` };
  const names = (info.DiscoveredDevices ?? []).map(({ ID }) => ID);
  const missing = uuids.find((uuid) => !names.includes(cdiKind + uuid));
  if (missing !== undefined && setting === 'auto') return none(`its CDI specifications do not name ${missing}`, specify);
  if (!names.some((name) => name.startsWith(`${cdiKind}GPU-`) || name.startsWith(`${cdiKind}MIG-`))) {
    return none('its CDI specifications name no NVIDIA device by UUID', specify);
  }
  return { way: 'cdi', why: 'the Engine lists their CDI names' };
}

function byRuntime(info: InfoAnswer): GrantChoice {
  const hint = 'Type "sudo nvidia-ctk runtime configure --runtime=docker" and restart Docker.';
  if (!Object.hasOwn(info.Runtimes ?? {}, 'nvidia')) return { way: null, why: 'the Engine has no runtime "nvidia"', hint };
  return { way: 'runtime', why: 'the Engine supports no other way, and has the runtime "nvidia"' };
}

/** The parts of a container that depend on its devices. */
export interface Grant {
  /** Parts of the Engine's `HostConfig`. */
  readonly host: {
    readonly Runtime?: string;
    readonly DeviceRequests?: readonly { Driver: string; DeviceIDs: readonly string[]; Capabilities?: readonly string[][] }[];
    readonly Devices?: readonly { PathOnHost: string; PathInContainer: string; CgroupPermissions: string }[];
    readonly GroupAdd?: readonly string[];
  };
  /** Variables that the owner's override. */
  readonly defaults: Readonly<Record<string, string>>;
  /** Variables that override all others. */
  readonly env: Readonly<Record<string, string>>;
  /** Nodes that the gate opens before it runs a script. */
  readonly gate: readonly string[];
  /** Limit on open files if the owner sets none; null for the Engine's default. */
  readonly openFiles: number | null;
}

/** For sandboxes without devices. Images made for GPUs would otherwise ask for all of them. */
export const noGrant: Grant = { host: {}, defaults: {}, env: { NVIDIA_VISIBLE_DEVICES: noDevices }, gate: [], openFiles: null };

export interface GrantParts {
  /** For NVIDIA devices; null if none is leased. */
  readonly way: GrantMethod | null;
  readonly capabilities: readonly DriverCapability[];
  /** Group ids of AMD's and Intel's nodes on the host. Names would mean something else in each image. */
  readonly groups: readonly number[];
  readonly openFiles: number | null;
}

export function grantOf(devices: readonly LeasedDevice[], { way, capabilities, groups, openFiles }: GrantParts): Grant {
  if (devices.length === 0) return noGrant;
  const uuids = devices.filter(({ vendor }) => vendor === 'nvidia').map(({ uuid }) => uuid);
  const nodes = passedNodes(devices);
  const words = ['compute', 'utility', ...capabilities];
  return {
    host: {
      ...(uuids.length > 0 && way !== null && asked(way, uuids, words)),
      ...(nodes.length > 0 && {
        Devices: nodes.map((path) => ({ PathOnHost: path, PathInContainer: path, CgroupPermissions: 'rw' })),
        GroupAdd: groups.map(String),
      }),
    },
    defaults: uuids.length > 0 && way === 'runtime' ? { NVIDIA_DRIVER_CAPABILITIES: words.join(',') } : {},
    env: visibleDevices(devices, true),
    gate: gateNodes(devices),
    openFiles,
  };
}

/** Nodes of the host that are passed one by one: exactly those of the leased cards. */
export function passedNodes(devices: readonly LeasedDevice[]): string[] {
  return gateNodes(devices.filter(({ vendor }) => vendor !== 'nvidia'));
}

function asked(way: GrantMethod, uuids: readonly string[], words: readonly string[]): Grant['host'] {
  switch (way) {
    case 'request':
      return { DeviceRequests: [{ Driver: 'nvidia', DeviceIDs: [...uuids], Capabilities: [['gpu', ...words]] }] };
    case 'cdi':
      return { DeviceRequests: [{ Driver: 'cdi', DeviceIDs: uuids.map((uuid) => cdiKind + uuid) }] };
    case 'runtime':
      return { Runtime: 'nvidia' };
  }
}
