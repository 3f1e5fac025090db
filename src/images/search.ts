/** The search itself: what is published as asked, and the newest of it that fits. */

import type { Device, Inventory } from '../gpu/inventory.ts';
import { type CudaRange, groupsOf, inRange } from './cards.ts';
import type { Arch, ImageRequest } from './request.ts';
import { builtInTables, type Gate, type PublishedImage, type Tables } from './tables.ts';
import { compareVersions, leadingVersion, major } from './version.ts';

/** What a host asks of an image. */
export interface Demands {
  readonly arch: Arch;
  readonly host: HostCuda;
  /** Of every GPU. */
  readonly ranges: readonly CudaRange[];
  readonly models: readonly string[];
}

/** Why an image runs: its CUDA is not newer than the driver's, or it is of the same family. */
export type Rule = 'version' | 'minor';

export interface Found {
  readonly image: PublishedImage;
  readonly rule: Rule;
  /** What fits as well but was passed over, because no source confirms it. */
  readonly skipped: readonly PublishedImage[];
}

/** Images of this architecture, flavour and distribution, the newest first. */
export function candidates(
  { arch, flavour, distribution }: Pick<ImageRequest, 'arch' | 'flavour' | 'distribution'>,
  tables: Tables,
): PublishedImage[] {
  const has = ({ [arch]: published, flavours }: PublishedImage) =>
    published !== undefined &&
    flavours.includes(flavour) &&
    (distribution === null || published.distributions.includes(distribution));
  return tables.images.filter(has).toSorted((one, other) => compareVersions(other.tag, one.tag));
}

/** `found` as `candidates` gives it. One that no source confirms is taken only where no other fits by the same rule. */
export function pick(found: readonly PublishedImage[], demands: Demands, tables: Tables): Found | null {
  for (const rule of ['version', 'minor'] as const) {
    const fitting = found.filter((image) => suits(image, demands) && runs(image, demands, tables) === rule);
    const image = fitting.find((each) => each.verified) ?? fitting[0];
    if (image !== undefined) return { image, rule, skipped: image.verified ? fitting.filter((each) => !each.verified) : [] };
  }
  return null;
}

/** Whether every GPU can be used with it. */
export function suits({ cuda }: PublishedImage, { ranges }: Pick<Demands, 'ranges'>): boolean {
  return ranges.every((range) => inRange(cuda, range));
}

/** By which rule the driver runs it; `gated` when it would, but the image itself does not let the host in; null: it does not. */
export function runs(
  image: PublishedImage,
  { host, models, arch }: Pick<Demands, 'host' | 'models' | 'arch'>,
  tables: Tables,
): Rule | 'gated' | null {
  const needs = oldestDriver(image, tables);
  if (needs === null || (host.driver !== null && compareVersions(host.driver, needs) < 0)) return null;
  if (compareVersions(image.cuda, host.cuda) <= 0) return 'version';
  // Minor-version compatibility began with CUDA 11.
  if (host.driver === null || major(image.cuda) < 11 || major(image.cuda) !== major(host.cuda)) return null;
  return admits(image[arch]?.gate ?? null, tables, host.driver, models) ? 'minor' : 'gated';
}

/** The newest image that only fails because the driver is an early one of its branch; null when there is none. */
export function tooNew(
  found: readonly PublishedImage[],
  demands: Demands,
  tables: Tables,
): { readonly tag: string; readonly cuda: string; readonly any: string } | null {
  const early = (image: PublishedImage) =>
    suits(image, demands) && compareVersions(image.cuda, demands.host.cuda) <= 0 && runs(image, demands, tables) === null;
  const image = found.find(early);
  return image === undefined ? null : { tag: image.tag, cuda: image.cuda, any: oldestDriver(image, tables) ?? '' };
}

function oldestDriver({ cuda }: PublishedImage, tables: Tables): string | null {
  return tables.toolkits.find((each) => each.cuda === cuda)?.any ?? null;
}

/** What CUDA the driver of a host can run: what its tool says, held against the driver's branch. */
export interface HostCuda {
  readonly cuda: string;
  /** null where only CUDA is known. */
  readonly driver: string | null;
  /** Where `cuda` comes from, and what was made of it. */
  readonly from: string;
  readonly verified: boolean;
}

/** null when neither the driver nor its CUDA is known, or the driver is older than all that the tables know. */
export function hostCuda(inventory: Pick<Inventory, 'driver' | 'cuda' | 'cudaFrom'>, tables: Tables): HostCuda | null {
  const driver = leadingVersion(inventory.driver);
  const said = inventory.cudaFrom === 'tool' && /^\d+\.\d+$/.test(inventory.cuda ?? '') ? inventory.cuda : null;
  const row = driver === null ? null : branchRow(driver, tables);
  const exact = row !== null && driver !== null && row.driver === major(driver);
  if (said !== null && exact && compareVersions(said, row.cuda) > 0) {
    // Inside a container with forward compatibility the tool shows the container's number, which other images do not have.
    const from = `the driver's branch ${row.driver}; the tool reports ${said}, which is only possible through forward compatibility: run onejob on the host`;
    return { cuda: row.cuda, driver, from, verified: row.verified };
  }
  if (said !== null) return { cuda: said, driver, from: 'nvidia-smi', verified: true };
  if (row === null) return null;
  const from = exact ? `the driver's branch ${row.driver}` : `branch ${row.driver}, the nearest known one below the driver`;
  return { cuda: row.cuda, driver, from, verified: row.verified };
}

function branchRow(driver: string, tables: Tables): Tables['branches'][number] | null {
  return (
    tables.branches
      .filter((each) => each.driver <= major(driver))
      .toSorted((one, other) => one.driver - other.driver)
      .at(-1) ?? null
  );
}

/**
 * The brands, in the words of gates, that a GPU of this name may have: the driver knows it, its tool does not print it.
 * null where the name says nothing.
 */
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
 * The gate that an image of NVIDIA has itself: the container toolkit reads `NVIDIA_REQUIRE_CUDA` and refuses to start the image on a
 * host whose CUDA is older, but for some branches of the driver and some brands of GPUs. Whether it lets such a host in: only if it
 * does whichever brand each GPU has.
 */
export function admits(gate: Gate | null, tables: Tables, driver: string, models: readonly string[]): boolean {
  if (gate === null || !gate.branches.includes(major(driver))) return false;
  const admitted = tables.brands[gate.brands] ?? [];
  const all = [...new Set(Object.values(tables.brands).flat())];
  return models.every((model) => (brandsOf(model) ?? all).every((brand) => admitted.includes(brand)));
}

/** CUDA of an image by its tag, such as `12.9` of `nvcr.io/nvidia/cuda:12.9.1-devel-ubuntu24.04`; null where it does not say it. */
export function cudaOfImage(image: string): string | null {
  return /(?:^|\/)nvidia\/cuda:(\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?:-|@|$)/.exec(image)?.[1] ?? null;
}

/**
 * Why an image cannot be used with these devices of a host, as the end of a sentence about it; null when nothing speaks against
 * it, or nobody knows: only the tags of NVIDIA's own images say their CUDA.
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
      return `has CUDA ${cuda}, but ${last} is the last one that supports ${model} (${generation})`;
    }
    if (compareVersions(cuda, first) < 0)
      return `has CUDA ${cuda}, but ${first} is the first one that supports ${model} (${generation})`;
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
  return `has CUDA ${cuda}, and its own check (NVIDIA_REQUIRE_CUDA) refuses driver ${driver}, which can run CUDA ${host.cuda}`;
}
