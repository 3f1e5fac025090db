/** What an image is chosen for: the kind of host, its devices, and what config says of the image. */

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Inventory } from '../gpu/inventory.ts';

export type Arch = 'amd64' | 'arm64';
export type Platform = 'sbsa' | 'l4t' | null;
export type Flavour = 'base' | 'runtime' | 'devel';

export interface ImageRequest {
  readonly arch: Arch;
  /** Where `arch` comes from, for the explanation. */
  readonly archFrom?: string;
  /** What kind of Arm host it is: a server, or a Jetson with Linux for Tegra. */
  readonly platform: Platform;
  readonly inventory: Inventory;
  /** UUIDs of what the agent will have; none for an agent without a device. Left out: whatever NVIDIA devices are there. */
  readonly devices?: readonly string[];
  readonly flavour: Flavour;
  /** As in the image's tag, such as `ubuntu22.04`; null for the best one there is. */
  readonly distribution: string | null;
  /** Name of the image, with `{cuda}`, `{flavour}`, `{distribution}`, `{arch}`. */
  readonly template: string;
}

/** What always helps where no image can be chosen. */
export const pinIt = 'Pin an image: set "image" of the pool to its name.';

/** Where the type of the CI service has none of its own. */
export const defaultTemplate = 'nvidia/cuda:{cuda}-{flavour}-{distribution}';

/** The image's name, or what the template asks for that there is not. `cuda` is a point release, such as `12.9.1`. */
export function fillTemplate(
  template: string,
  values: Readonly<Record<'cuda' | 'flavour' | 'distribution' | 'arch', string>>,
): { readonly image: string } | { readonly unknown: string } {
  const known = new Map<string, string>(Object.entries(values));
  const unknown = [...template.matchAll(/\{([^}]*)\}/g)].find(([, name = '']) => !known.has(name))?.[0];
  if (unknown !== undefined) return { unknown };
  return { image: template.replaceAll(/\{([^}]*)\}/g, (whole, name: string) => known.get(name) ?? whole) };
}

/** First release of Linux for Tegra whose Jetsons (Thor) take the images of servers; it is that of JetPack 7. */
const firstServerRelease = 38;

/** `nodeArch` as Node says it; null for one that no image is published for. */
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
  const [release, model] = await Promise.all(
    ['etc/nv_tegra_release', 'proc/device-tree/model'].map((path) => text(join(root, path))),
  );
  return platformOf(arch, release ?? null, model ?? null);
}

/** What kind of host a recording is of, which none says outright: some GPUs exist beside Arm CPUs only. */
export function recordedHost({
  devices,
  findings,
}: Pick<Inventory, 'devices' | 'findings'>): Required<Pick<ImageRequest, 'arch' | 'archFrom' | 'platform'>> {
  // A Jetson's tool lists its GPU as "Orin (nvgpu)", often without a UUID: then only a finding has the name.
  const jetson = /\bnvgpu\b/i;
  if (devices.some(({ model }) => jetson.test(model)) || findings.some(({ message }) => jetson.test(message))) {
    return { arch: 'arm64', archFrom: 'nvgpu, the driver of a Jetson', platform: 'l4t' };
  }
  const arm = devices.find(({ vendor, model }) => vendor === 'nvidia' && /\b(?:G[BH]\d{2,3}|T4G|Thor)\b/i.test(model));
  if (arm !== undefined) return { arch: 'arm64', archFrom: `${arm.model}, which exists beside Arm CPUs only`, platform: 'sbsa' };
  const archFrom = 'a guess, because no recording contains it; if it is wrong, use --arch arm64';
  return { arch: 'amd64', archFrom, platform: null };
}

async function text(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'utf8');
  } catch {
    return null;
  }
}
