/** The search: which published images match a request, and the newest that fits. */

import { compareVersions, leadingVersion, major } from '../base/version.ts';
import type { Device, Inventory } from '../gpu/inventory.ts';
import { builtInTables, type Gate, type PublishedImage, type Tables } from '../gpu/tables.ts';
import { type CudaRange, groupsOf, inRange } from './cards.ts';
import type { Arch, ImageRequest } from './request.ts';

export interface Demands {
  readonly arch: Arch;
  readonly host: HostCuda;
  readonly ranges: readonly CudaRange[];
  readonly models: readonly string[];
  readonly tables: Tables;
}

/** Why an image runs: its CUDA is not newer than the driver's, or has the same major version. */
export type Rule = 'version' | 'minor';

/** `skipped`: fitting images that were passed over, because no source confirms them. */
export interface Found {
  readonly image: PublishedImage;
  readonly rule: Rule;
  readonly skipped: readonly PublishedImage[];
}

/** Images of this architecture, flavour and distribution, the newest first. */
export function candidates({ arch, flavour, distribution }: ImageRequest, tables: Tables): PublishedImage[] {
  const has = ({ [arch]: published, flavours }: PublishedImage) =>
    published !== undefined &&
    flavours.includes(flavour) &&
    (distribution === null || published.distributions.includes(distribution));
  return tables.images.filter(has).toSorted((one, other) => compareVersions(other.tag, one.tag));
}

/** `found`: from `candidates`. An unconfirmed image is chosen only if no other fits by the same rule. */
export function pick(found: readonly PublishedImage[], demands: Demands): Found | null {
  for (const rule of ['version', 'minor'] as const) {
    const fitting = found.filter((image) => suits(image, demands) && runs(image, demands) === rule);
    const image = fitting.find((each) => each.verified) ?? fitting[0];
    if (image !== undefined) return { image, rule, skipped: image.verified ? fitting.filter((each) => !each.verified) : [] };
  }
  return null;
}

export function suits({ cuda }: PublishedImage, { ranges }: Pick<Demands, 'ranges'>): boolean {
  return ranges.every((range) => inRange(cuda, range));
}

/** By which rule the driver runs it; `gated` if the image's own check refuses the host; null: it does not. */
export function runs(image: PublishedImage, { host, models, arch, tables }: Omit<Demands, 'ranges'>): Rule | 'gated' | null {
  const needs = oldestDriver(image, tables);
  if (needs === null || (host.driver !== null && compareVersions(host.driver, needs) < 0)) return null;
  if (compareVersions(image.cuda, host.cuda) <= 0) return 'version';
  // Minor-version compatibility began with CUDA 11.
  if (host.driver === null || major(image.cuda) < 11 || major(image.cuda) !== major(host.cuda)) return null;
  return admits(image[arch]?.gate ?? null, tables, host.driver, models) ? 'minor' : 'gated';
}

/** The newest image that only fails because the driver is an early one of its branch. */
export function tooNew(found: readonly PublishedImage[], demands: Demands): PublishedImage | null {
  const early = (image: PublishedImage) => suits(image, demands) && compareVersions(image.cuda, demands.host.cuda) <= 0;
  return found.find((image) => early(image) && runs(image, demands) === null) ?? null;
}

export function oldestDriver({ cuda }: Pick<PublishedImage, 'cuda'>, tables: Tables): string | null {
  return tables.toolkits.find((each) => each.cuda === cuda)?.any ?? null;
}

/** What a host's driver can run. `driver`: null where only CUDA is known. `from`: how that is known. */
export interface HostCuda {
  readonly cuda: string;
  readonly driver: string | null;
  readonly from: string;
  readonly verified: boolean;
}

/**
 * The CUDA that a host's driver can run: from its tool, checked against the driver's branch. null when neither the driver nor its
 * CUDA is known, or the driver is older than the tables.
 */
export function hostCuda(inventory: Pick<Inventory, 'driver' | 'cuda' | 'cudaFrom'>, tables: Tables): HostCuda | null {
  const driver = leadingVersion(inventory.driver);
  const said = inventory.cudaFrom === 'tool' && /^\d+\.\d+$/.test(inventory.cuda ?? '') ? inventory.cuda : null;
  const known = tables.branches.filter((each) => driver !== null && each.driver <= major(driver));
  const row = known.toSorted((one, other) => one.driver - other.driver).at(-1) ?? null;
  const exact = row !== null && driver !== null && row.driver === major(driver);
  if (said !== null && exact && compareVersions(said, row.cuda) > 0) {
    // In a container with forward compatibility the tool reports the container's version, which other images do not have.
    const from = `the driver's branch ${row.driver}; the tool reports ${said}, which is only possible through forward compatibility: run onejob on the host`;
    return { cuda: row.cuda, driver, from, verified: row.verified };
  }
  if (said !== null) return { cuda: said, driver, from: 'nvidia-smi', verified: true };
  if (row === null) return null;
  const from = exact ? `the driver's branch ${row.driver}` : `branch ${row.driver}, the nearest known one below the driver`;
  return { cuda: row.cuda, driver, from, verified: row.verified };
}

/** The brands, as gates name them, that a GPU of this name may have; the tool does not print it. null where unknown. */
export function brandsOf(model: string): readonly string[] | null {
  const name = model.toLowerCase().replace(/^nvidia\s+/, '');
  if (/\bgeforce\b/.test(name)) return ['geforce', 'geforcertx'];
  if (/\btitan\b/.test(name)) return ['titan', 'titanrtx'];
  if (/\bquadro\b/.test(name)) return ['quadro', 'quadrortx'];
  if (/^rtx\b/.test(name)) return ['nvidiartx', 'quadrortx', 'nvidia'];
  if (/^grid\b/.test(name)) return ['grid', 'tesla', 'nvidia'];
  return /^tesla\b|^(?:[abhlptv]\d{1,3}[a-z]{0,2}|g[bh]\d{3}|m(?:10|40|60)|k80)\b/.test(name) ? ['tesla', 'nvidia'] : null;
}

/**
 * Whether an image's own check lets the host in: `NVIDIA_REQUIRE_CUDA` refuses a host whose CUDA is older, except for some branches
 * of the driver and brands of GPUs. It must do so for every possible brand of each GPU.
 */
export function admits(gate: Gate | null, tables: Tables, driver: string, models: readonly string[]): boolean {
  if (gate === null || !gate.branches.includes(major(driver))) return false;
  const admitted = tables.brands[gate.brands] ?? [];
  const all = [...new Set(Object.values(tables.brands).flat())];
  return models.every((model) => (brandsOf(model) ?? all).every((brand) => admitted.includes(brand)));
}

/** CUDA of an image by its tag, such as `12.9` of `nvcr.io/nvidia/cuda:12.9.1-devel-ubuntu24.04`; null for other tags. */
export function cudaOfImage(image: string): string | null {
  return /(?:^|\/)nvidia\/cuda:(\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?:-|@|$)/.exec(image)?.[1] ?? null;
}

/** Why these devices cannot use an image, as the end of a sentence; null also where unknown: only NVIDIA's tags contain CUDA. */
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
    const { name, first, last } = range;
    if (last !== null && compareVersions(cuda, last) > 0)
      return `has CUDA ${cuda}, but ${last} is the last one that supports ${model} (${name})`;
    if (compareVersions(cuda, first) < 0) return `has CUDA ${cuda}, but ${first} is the first one that supports ${model} (${name})`;
  }
  const host = hostCuda(inventory, tables);
  const needs = oldestDriver({ cuda }, tables);
  const driver = leadingVersion(inventory.driver);
  if (driver !== null && needs !== null && compareVersions(driver, needs) < 0)
    return `has CUDA ${cuda}, which needs driver ${needs} or newer; this host has ${driver}`;
  const published = tables.images.find((each) => each.cuda === cuda);
  if (host === null || published === undefined) return null;
  const models = [...new Set(cards.map((card) => card.model))];
  if (runs(published, { host, models, arch, tables }) !== 'gated') return null;
  return `has CUDA ${cuda}, and its own check (NVIDIA_REQUIRE_CUDA) refuses driver ${driver}, which can run CUDA ${host.cuda}`;
}
