/** Why no image fits a host, and what would help: whole sentences, since a status line shows nothing else. */
import type { Inventory } from '../gpu/inventory.ts';
import { type Group, rangeWords } from './cards.ts';
import { type ImageRequest, pinIt } from './request.ts';
import { candidates, type Demands, type HostCuda, runs, suits } from './search.ts';
import type { PublishedImage, Tables } from './tables.ts';
import { compareVersions, leadingVersion, major, newest, oldest } from './version.ts';

/** A GPU that is in no table needs a pinned image. */
export function unknownCard(groups: readonly Group[]): string | null {
  const group = groups.find((each) => each.range === null);
  if (group === undefined) return null;
  const why =
    group.compute === null ? 'its compute capability is unknown' : `its compute capability ${group.compute} is in no table`;
  return `Cannot determine which CUDA works with ${group.model}: ${why}. ${pinIt}`;
}

/** What no driver would change. */
export function neverFits(request: ImageRequest, groups: readonly Group[], tables: Tables): string | null {
  const apart = cannotShare(groups);
  if (apart !== null) return apart;
  const ranges = groups.map((group) => group.range).filter((range) => range !== null);
  const all = candidates({ ...request, distribution: null }, tables);
  if (all.some((image) => suits(image, { ranges }))) return null;
  const lasts = ranges.map((each) => each.last).filter((each) => each !== null);
  const common = { first: newest(ranges.map((each) => each.first)) ?? '0', last: oldest(lasts) };
  const models = groups.map((group) => group.model).join(' and ');
  const kind = `${request.flavour} image for ${request.arch}`;
  return `${models} can only use ${rangeWords(common)}, and no ${kind} is published with that: there ${tagsWords(all)}. ${pinIt}`;
}

export function noDriver(inventory: Pick<Inventory, 'driver'>): string {
  const driver = leadingVersion(inventory.driver);
  if (driver !== null)
    return `Driver ${driver} is older than every driver in the tables, and older than any image requires. ${pinIt}`;
  return `onejob knows neither the driver nor its CUDA, so it cannot tell which image runs. ${pinIt}`;
}

export function wrongDriver({ driver }: HostCuda, groups: readonly Group[]): string | null {
  for (const { model, range } of groups) {
    const last = range?.lastDriver ?? null;
    if (last === null || driver === null || major(driver) <= last) continue;
    const seen = `${model} (${range?.generation}) is listed with driver ${driver}, but ${last} is the last branch that supports it`;
    return `The readings contradict each other: ${seen}. ${pinIt}`;
  }
  return null;
}

export function wrongTemplate(template: string, unknown: string): string {
  return `The template "${template}" contains the unknown placeholder ${unknown}: the known ones are {cuda}, {flavour}, {distribution}, {arch}.`;
}

/** To be called only if some image suits the GPUs, but none runs as requested. */
export function whyNone(request: ImageRequest, demands: Demands): string {
  const { arch, distribution } = request;
  const all = candidates({ ...request, distribution: null }, demands.tables);
  const usable = all.filter((image) => suits(image, demands));
  const has = (image: PublishedImage) => distribution === null || (image[arch]?.distributions.includes(distribution) ?? false);
  const running = usable.filter((image) => ['version', 'minor'].includes(runs(image, demands) ?? ''));
  if (distribution !== null && running.length > 0) {
    const having = all.filter(has);
    const where =
      having.length === 0 ? `No image is published for ${distribution}` : `For ${distribution} there ${tagsWords(having)} only`;
    const others = [...new Set(running.flatMap((each) => each[arch]?.distributions ?? []))];
    return `${where}. The images that run on this host, ${tagsShort(running)}, are published for ${others.join(', ')}: request one of those. ${pinIt}`;
  }
  const asked = usable.filter(has);
  return tooOld(asked.length === 0 ? usable : asked, demands);
}

function tooOld(images: readonly PublishedImage[], demands: Demands): string {
  const { driver, cuda } = demands.host;
  const gated = newest(images.filter((image) => runs(image, demands) === 'gated').map((each) => each.tag));
  const name = driver === null ? 'The driver' : `Driver ${driver}`;
  const why = `${gated} would still run, through minor-version compatibility, but its own check (NVIDIA_REQUIRE_CUDA) refuses this driver with these GPUs.`;
  const parts = [
    `${name} can run CUDA ${cuda}, but these GPUs need ${tagsShort(images)}.`,
    ...(gated === null ? [] : [why]),
    ...newerDriver(images, demands),
    gated === null ? pinIt : `Or pin ${gated}, and write NVIDIA_DISABLE_REQUIRE: "true" into "env" of the pool.`,
  ];
  return parts.join(' ');
}

/** The oldest driver with which an image would fit, unless the GPUs are too old for it. */
function newerDriver(images: readonly PublishedImage[], { ranges, tables }: Demands): string[] {
  const rows = tables.toolkits.filter((each) => images.some((image) => image.cuda === each.cuda));
  const [row] = rows.toSorted((one, other) => compareVersions(one.own, other.own));
  if (row === undefined || ranges.some(({ lastDriver }) => lastDriver !== null && lastDriver < major(row.own))) return [];
  return [`With driver ${row.own}${row.verified ? '' : ' (from memory)'} or newer, an image is available.`];
}

/** Two GPUs without a common CUDA. */
function cannotShare(groups: readonly Group[]): string | null {
  for (const [one, other] of groups.flatMap((one) => groups.map((other) => [one, other] as const))) {
    const [last, first] = [one.range?.last ?? null, other.range?.first ?? null];
    if (last === null || first === null || compareVersions(first, last) <= 0) continue;
    const both = `${one.model} (up to CUDA ${last}) and ${other.model} (from CUDA ${first})`;
    return `No image works with both ${both}. Put them into different pools, or name the devices that the image is for.`;
  }
  return null;
}

/** `is 12.9.1`, `are 11.4.3 to 12.9.1`. */
function tagsWords(images: readonly PublishedImage[]): string {
  if (images.length === 0) return 'are no images';
  return `${images.length === 1 ? 'is' : 'are'} ${tagsShort(images)}`;
}

function tagsShort(images: readonly PublishedImage[]): string {
  const tags = images.map((each) => each.tag);
  return tags.length === 1 ? `${tags[0]}` : `${oldest(tags)} to ${newest(tags)}`;
}
