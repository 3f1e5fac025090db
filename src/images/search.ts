/** The search itself: what is published as asked, and the newest of it that fits. */

import { admits } from './gate.ts';
import { type CudaRange, inRange } from './generation.ts';
import type { HostCuda } from './host-cuda.ts';
import type { Arch, ImageRequest } from './request.ts';
import type { PublishedImage, Tables } from './tables.ts';
import { compareVersions, major } from './version.ts';

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
