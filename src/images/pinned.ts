/** Whether an image that a person chose can run on a host: known only of NVIDIA's own, whose tag says its CUDA. Pure. */
import type { Device, Inventory } from '../gpu/inventory.ts';
import { groupsOf } from './groups.ts';
import { hostCuda } from './host-cuda.ts';
import type { Arch } from './request.ts';
import { runs } from './search.ts';
import { builtInTables, type Tables } from './tables.ts';
import { compareVersions, leadingVersion } from './version.ts';

/** CUDA of an image by its tag, such as `12.9` of `nvcr.io/nvidia/cuda:12.9.1-devel-ubuntu24.04`; null where it does not say it. */
export function cudaOfImage(image: string): string | null {
  return /(?:^|\/)nvidia\/cuda:(\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?:-|@|$)/.exec(image)?.[1] ?? null;
}

/**
 * Why an image cannot be used with these devices of a host, as the end of a sentence about it; null when nothing speaks against
 * it, or nobody knows.
 */
export function whyNotImage(
  image: string,
  inventory: Pick<Inventory, 'driver' | 'cuda' | 'cudaFrom'>,
  devices: readonly Device[],
  arch: Arch,
  tables: Tables = builtInTables,
): string | null {
  const cuda = cudaOfImage(image);
  const cards = devices.filter((device) => device.vendor === 'nvidia');
  if (cuda === null || cards.length === 0) return null;
  for (const { model, range } of groupsOf(cards, tables)) {
    if (range === null) continue;
    const { generation, first, last } = range;
    if (last !== null && compareVersions(cuda, last) > 0) {
      return `has CUDA ${cuda}, and ${last} is the last that can be used with ${model} (${generation})`;
    }
    if (compareVersions(cuda, first) < 0) return `has CUDA ${cuda}, and ${first} is the first that knows ${model} (${generation})`;
  }
  const host = hostCuda(inventory, tables);
  const toolkit = tables.toolkits.find((each) => each.cuda === cuda);
  const driver = leadingVersion(inventory.driver);
  if (driver !== null && toolkit !== undefined && compareVersions(driver, toolkit.any) < 0) {
    return `has CUDA ${cuda}, which needs driver ${toolkit.any} or newer; this host has ${driver}`;
  }
  const published = tables.images.find((each) => each.cuda === cuda);
  if (host === null || published === undefined) return null;
  const models = [...new Set(cards.map((card) => card.model))];
  if (runs(published, { host, models, arch }, tables) !== 'gated') return null;
  return `has CUDA ${cuda}, and its own gate (NVIDIA_REQUIRE_CUDA) refuses driver ${driver}, which can run CUDA ${host.cuda}`;
}
