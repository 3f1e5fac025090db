/** What kind of host it is: its architecture in the words of images, and whether it is a Jetson with Linux for Tegra. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Inventory } from '../gpu/inventory.ts';
import type { Arch, Platform } from './request.ts';

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

export interface RecordedHost {
  readonly arch: Arch;
  /** Where `arch` is known from. */
  readonly archFrom: string;
  readonly platform: Platform;
}

/** What kind of host a recording is of, which none says outright: some GPUs exist beside Arm CPUs only. */
export function recordedHost({ devices, findings }: Pick<Inventory, 'devices' | 'findings'>): RecordedHost {
  // A Jetson's tool lists its GPU as "Orin (nvgpu)", often without a UUID: then only a finding has the name.
  const jetson = /\bnvgpu\b/i;
  if (devices.some(({ model }) => jetson.test(model)) || findings.some(({ message }) => jetson.test(message))) {
    return { arch: 'arm64', archFrom: 'nvgpu, the driver of a Jetson', platform: 'l4t' };
  }
  const arm = devices.find(({ vendor, model }) => vendor === 'nvidia' && /\b(?:G[BH]\d{2,3}|T4G|Thor)\b/i.test(model));
  if (arm !== undefined) return { arch: 'arm64', archFrom: `${arm.model}, which exists beside Arm CPUs only`, platform: 'sbsa' };
  const archFrom = 'a guess, since no recording says it; --arch arm64 if it is wrong';
  return { arch: 'amd64', archFrom, platform: null };
}

async function text(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'utf8');
  } catch {
    return null;
  }
}
