/** What an image is chosen for: the kind of host, its devices, and the config of the image. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Inventory } from '../gpu/inventory.ts';

export type Arch = 'amd64' | 'arm64';
export type Platform = 'sbsa' | 'l4t' | null;
export type Flavour = 'base' | 'runtime' | 'devel';

export interface ImageRequest {
  readonly arch: Arch;
  /** Source of `arch`, for the explanation. */
  readonly archFrom?: string;
  readonly platform: Platform;
  readonly inventory: Inventory;
  /** UUIDs of the agent's devices; empty for an agent without devices. Missing: all NVIDIA devices of the host. */
  readonly devices?: readonly string[];
  readonly flavour: Flavour;
  /** As in the image's tag, such as `ubuntu22.04`; null for the best one. */
  readonly distribution: string | null;
}

export const pinIt = 'Pin an image: set "image" of the pool to its name.';

/** First release of Linux for Tegra whose Jetsons (Thor) can use images for servers: that of JetPack 7. */
const firstServerRelease = 38;

/** `nodeArch` from Node; null if no image is published for it. */
export function archOf(nodeArch: string): Arch | null {
  if (nodeArch === 'x64') return 'amd64';
  return nodeArch === 'arm64' ? 'arm64' : null;
}

/** `release`: text of `/etc/nv_tegra_release`; `model`: of `/proc/device-tree/model`. null where there is no such file. */
export function platformOf(arch: Arch, release: string | null, model: string | null): Platform {
  if (arch === 'amd64') return null;
  const [, number = '0'] = /\bR(\d+)/.exec(release ?? '') ?? [];
  if (release !== null) return Number(number) >= firstServerRelease ? 'sbsa' : 'l4t';
  return /\bjetson\b/i.test(model ?? '') && !/\bthor\b/i.test(model ?? '') ? 'l4t' : 'sbsa';
}

/** The platform of this host. `root`: where its file system begins. */
export async function readPlatform(arch: Arch, root = '/'): Promise<Platform> {
  const text = (path: string) => readFile(join(root, path), 'utf8').catch(() => null);
  return platformOf(arch, await text('etc/nv_tegra_release'), await text('proc/device-tree/model'));
}

/** The kind of host of a recording, which recordings do not contain: some GPUs exist only with Arm CPUs. */
type RecordedHost = Required<Pick<ImageRequest, 'arch' | 'archFrom' | 'platform'>>;
export function recordedHost({ devices, findings }: Pick<Inventory, 'devices' | 'findings'>): RecordedHost {
  // A Jetson's tool lists its GPU as "Orin (nvgpu)", often without a UUID: then only a finding has the name.
  const jetson = /\bnvgpu\b/i;
  if (devices.some(({ model }) => jetson.test(model)) || findings.some(({ message }) => jetson.test(message)))
    return { arch: 'arm64', archFrom: 'nvgpu, the driver of a Jetson', platform: 'l4t' };
  const arm = devices.find(({ vendor, model }) => vendor === 'nvidia' && /\b(?:G[BH]\d{2,3}|T4G|Thor)\b/i.test(model));
  if (arm !== undefined) return { arch: 'arm64', archFrom: `${arm.model}, which exists only with Arm CPUs`, platform: 'sbsa' };
  const archFrom = 'a guess, because no recording contains it; if it is wrong, use --arch arm64';
  return { arch: 'amd64', archFrom, platform: null };
}
