/** The image for a host, with the reasoning; or why none fits and what would help, in sentences: a status line shows nothing else. */

import { compareVersions, leadingVersion, major, newest, oldest } from '../base/version.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { builtInTables, type PublishedImage, type Tables } from '../gpu/tables.ts';
import { type CardGroup, cardsFor, groupsOf, groupWords, rangeWords } from './cards.ts';
import { type ImageRequest, pinIt } from './request.ts';
import {
  candidates,
  type Demands,
  type Found,
  type HostCuda,
  hostCuda,
  oldestDriver,
  pick,
  runs,
  suits,
  tooNew,
} from './search.ts';

/**
 * The same request always gives the same choice. `image`: null when none fits. `problem`: why, and what to do, in whole sentences.
 * Never throws.
 */
export function chooseImage(asked: ImageRequest, tables: Tables = builtInTables) {
  const request = asked.distribution === null ? asked : { ...asked, distribution: tagWord(asked.distribution) };
  const steps: ChoiceStep[] = [hostStep(request)];
  // First of all: a Jetson reports so little of its GPU that it looks like a failing tool.
  if (request.platform === 'l4t' && request.devices?.length !== 0) return refuse(steps, jetson);
  const cards = cardsFor(request.inventory, request.devices);
  if (cards.kind === 'problem') return refuse(steps, cards.problem);
  if (cards.kind === 'none') return plainImage(request, tables, steps, cards.why);

  const groups = groupsOf(cards.devices, tables);
  const host = hostCuda(request.inventory, tables);
  if (host !== null) steps.push(driverStep(host));
  steps.push(...groups.map((group) => cardStep(group, tables)));
  if (cards.note !== null) steps.push(step('also seen', cards.note, 'the inventory'));
  if (groups.some((group) => group.range?.platform === 'l4t')) return refuse(steps, jetson);
  const never = unknownCard(groups) ?? neverFits(request, groups, tables);
  if (never !== null) return refuse(steps, never);
  if (host === null) return refuse(steps, noDriver(request.inventory));
  const wrong = wrongDriver(host, groups);
  if (wrong !== null) return refuse(steps, wrong);

  steps.push(distributionStep(request, tables));
  const ranges = groups.flatMap((group) => group.range ?? []);
  const demands = { arch: request.arch, host, ranges, models: groups.map((group) => group.model), tables };
  const found = candidates(request, tables);
  const cut = tooNew(found, demands);
  const needs = cut && `CUDA ${cut.cuda} needs driver ${oldestDriver(cut, tables)}`;
  if (needs !== null) steps.push(step('driver', needs, source('toolkits', tables), cut?.tag));
  const chosen = pick(found, demands);
  return chosen === null ? refuse(steps, whyNone(request, demands)) : named(request, steps, chosen, demands);
}

const jetson = `This is a Jetson with Linux for Tegra: images for servers do not work on it, and onejob does not know which image fits its release. ${pinIt}`;

function refuse(steps: readonly ChoiceStep[], problem: string) {
  return { image: null, steps, problem };
}

function named(request: ImageRequest, steps: readonly ChoiceStep[], found: Found, { host, tables }: Demands) {
  const { image, rule, skipped } = found;
  const distribution = request.distribution ?? bestOf(image[request.arch]?.distributions ?? [], tables);
  const newer = skipped.filter((each) => compareVersions(each.tag, image.tag) > 0);
  const passedOver = newer.map((each) =>
    step('image', `${each.tag} would fit and is newer`, source(each.source, tables), 'it, because no source confirms it', false),
  );
  const why =
    rule === 'version'
      ? `${image.tag} is the newest remaining image, and CUDA ${image.cuda} is not newer than the driver's ${host.cuda}`
      : `no remaining image is as old as CUDA ${host.cuda}; ${image.tag} is the newest that runs through minor-version compatibility and accepts driver ${host.driver}`;
  const last = step('image', why, source(image.source, tables), null, image.verified);
  const name = `nvidia/cuda:${image.tag}-${request.flavour}-${distribution}`;
  return { image: name, steps: [...steps, ...passedOver, last], problem: null };
}

function plainImage(request: ImageRequest, tables: Tables, steps: readonly ChoiceStep[], why: string) {
  const distribution = request.distribution ?? tables.preferred[0];
  const image = Object.hasOwn(tables.plain, distribution) ? tables.plain[distribution] : undefined;
  const none = step('devices', why, request.devices === undefined ? 'the inventory' : 'the request', 'every image with CUDA');
  if (image === undefined) {
    const known = Object.keys(tables.plain).join(', ');
    return refuse([...steps, none], `onejob knows no image without CUDA for "${distribution}", only for ${known}. ${pinIt}`);
  }
  const last = step('image', `${image} is ${distribution} without CUDA`, source('plain', tables));
  return { image, steps: [...steps, none, last], problem: null };
}

function bestOf(published: readonly string[], tables: Tables): string {
  return tables.preferred.find((each) => published.includes(each)) ?? published[0] ?? tables.preferred[0];
}

/** `Ubuntu 22.04`, `ubuntu:22.04` and `ubuntu-22.04` are written `ubuntu22.04` in tags. */
function tagWord(distribution: string): string {
  const word = distribution.toLowerCase().replaceAll(/[\s:_-]+/g, '');
  return word.replace(/^(rocky|oracle)(?=\d)/, '$1linux');
}

/** `rulesOut`: null when it rules nothing out. `verified`: false when it rests on an unconfirmed entry of the tables. */
export interface ChoiceStep {
  readonly about: string;
  readonly known: string;
  readonly from: string;
  readonly rulesOut: string | null;
  readonly verified: boolean;
}

function step(about: string, known: string, from: string, rulesOut: string | null = null, verified = true): ChoiceStep {
  return { about, known, from, rulesOut, verified };
}

function hostStep({ arch, archFrom, platform }: ImageRequest): ChoiceStep {
  const kind = platform === 'l4t' ? ', a Jetson with Linux for Tegra' : platform === 'sbsa' ? ', a server (SBSA)' : '';
  return step('host', `${arch}${kind}`, archFrom ?? 'the request', `images that are not published for ${arch}`);
}

function driverStep({ cuda, driver, from, verified }: HostCuda): ChoiceStep {
  const known = driver === null ? `the driver can run CUDA ${cuda}` : `driver ${driver} can run CUDA ${cuda}`;
  return step('driver', known, from, `anything newer than CUDA ${cuda}, while something older fits`, verified);
}

function cardStep(group: CardGroup, tables: Tables): ChoiceStep {
  const { range } = group;
  if (range === null) return step('GPU', groupWords(group), 'the inventory', 'every image that is not pinned');
  const older = `anything older than CUDA ${range.first}`;
  const rulesOut = range.last === null ? older : `${older} or newer than CUDA ${range.last}`;
  const known = `${groupWords(group)}, ${range.name}: ${rangeWords(range)}`;
  return step('GPU', known, `the inventory, and generations in the tables of ${tables.date}`, rulesOut, range.verified);
}

function distributionStep(request: ImageRequest, tables: Tables): ChoiceStep {
  const { distribution } = request;
  if (distribution === null)
    return step('distribution', `none requested, so onejob tries ${tables.preferred.join(', ')}, in this order`, 'the tables');
  const having = new Set(candidates(request, tables).map((each) => each.tag));
  const lost = candidates({ ...request, distribution: null }, tables).filter((each) => !having.has(each.tag));
  const rulesOut = lost.length === 0 ? null : `${lost.map((each) => each.tag).join(', ')}: not published for it`;
  return step('distribution', distribution, 'the request', rulesOut);
}

/** The source of a part of the tables. */
function source(key: string, tables: Tables): string {
  return `tables of ${tables.date}: ${tables.sources[key] ?? key}`;
}

/** A GPU that is in no table needs a pinned image. */
function unknownCard(groups: readonly CardGroup[]): string | null {
  const group = groups.find((each) => each.range === null);
  if (group === undefined) return null;
  const why =
    group.compute === null ? 'its compute capability is unknown' : `its compute capability ${group.compute} is in no table`;
  return `Cannot determine which CUDA works with ${group.model}: ${why}. ${pinIt}`;
}

/** What no driver would change. */
function neverFits(request: ImageRequest, groups: readonly CardGroup[], tables: Tables): string | null {
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

function noDriver(inventory: Pick<Inventory, 'driver'>): string {
  const driver = leadingVersion(inventory.driver);
  if (driver !== null)
    return `Driver ${driver} is older than every driver in the tables, and older than any image requires. ${pinIt}`;
  return `onejob knows neither the driver nor its CUDA, so it cannot tell which image runs. ${pinIt}`;
}

function wrongDriver({ driver }: HostCuda, groups: readonly CardGroup[]): string | null {
  for (const { model, range } of groups) {
    const last = range?.lastDriver ?? null;
    if (last === null || driver === null || major(driver) <= last) continue;
    const seen = `${model} (${range?.name}) is listed with driver ${driver}, but ${last} is the last branch that supports it`;
    return `The readings contradict each other: ${seen}. ${pinIt}`;
  }
  return null;
}

/** To be called only if some image suits the GPUs, but none runs as requested. */
function whyNone(request: ImageRequest, demands: Demands): string {
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
function cannotShare(groups: readonly CardGroup[]): string | null {
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
