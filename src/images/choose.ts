import { cardsFor, type Group, groupsOf, groupWords, rangeWords } from './cards.ts';
import { neverFits, noDriver, unknownCard, whyNone, wrongDriver, wrongTemplate } from './refusal.ts';
import { fillTemplate, type ImageRequest, pinIt } from './request.ts';
import { candidates, type Demands, type Found, type HostCuda, hostCuda, oldestDriver, pick, tooNew } from './search.ts';
import { builtInTables, type Tables } from './tables.ts';
import { compareVersions } from './version.ts';

export interface ImageChoice {
  /** null when none fits. */
  readonly image: string | null;
  readonly steps: readonly Step[];
  /** Why none fits and what to do, in whole sentences. */
  readonly problem: string | null;
}

/** The same request always gives the same choice. Never throws. */
export function chooseImage(asked: ImageRequest, tables: Tables = builtInTables): ImageChoice {
  const request = asked.distribution === null ? asked : { ...asked, distribution: tagWord(asked.distribution) };
  const steps: Step[] = [hostStep(request)];
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

function refuse(steps: readonly Step[], problem: string): ImageChoice {
  return { image: null, steps, problem };
}

function named(request: ImageRequest, steps: readonly Step[], found: Found, { host, tables }: Demands): ImageChoice {
  const { image, rule, skipped } = found;
  const distribution = request.distribution ?? bestOf(image[request.arch]?.distributions ?? [], tables);
  const name = fillTemplate(request.template, { cuda: image.tag, flavour: request.flavour, distribution, arch: request.arch });
  if ('unknown' in name) return refuse(steps, wrongTemplate(request.template, name.unknown));
  const newer = skipped.filter((each) => compareVersions(each.tag, image.tag) > 0);
  const passedOver = newer.map((each) =>
    step('image', `${each.tag} would fit and is newer`, source(each.source, tables), 'it, because no source confirms it', false),
  );
  const why =
    rule === 'version'
      ? `${image.tag} is the newest remaining image, and CUDA ${image.cuda} is not newer than the driver's ${host.cuda}`
      : `no remaining image is as old as CUDA ${host.cuda}; ${image.tag} is the newest that runs through minor-version compatibility and accepts driver ${host.driver}`;
  const last = step('image', why, source(image.source, tables), null, image.verified);
  return { image: name.image, steps: [...steps, ...passedOver, last], problem: null };
}

function plainImage(request: ImageRequest, tables: Tables, steps: readonly Step[], why: string): ImageChoice {
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

export interface Step {
  readonly about: string;
  readonly known: string;
  readonly from: string;
  /** null when it rules nothing out. */
  readonly rulesOut: string | null;
  /** false when it rests on an unconfirmed entry of the tables. */
  readonly verified: boolean;
}

function step(about: string, known: string, from: string, rulesOut: string | null = null, verified = true): Step {
  return { about, known, from, rulesOut, verified };
}

function hostStep({ arch, archFrom, platform }: ImageRequest): Step {
  const kind = platform === 'l4t' ? ', a Jetson with Linux for Tegra' : platform === 'sbsa' ? ', a server (SBSA)' : '';
  return step('host', `${arch}${kind}`, archFrom ?? 'the request', `images that are not published for ${arch}`);
}

function driverStep({ cuda, driver, from, verified }: HostCuda): Step {
  const known = driver === null ? `the driver can run CUDA ${cuda}` : `driver ${driver} can run CUDA ${cuda}`;
  return step('driver', known, from, `anything newer than CUDA ${cuda}, while something older fits`, verified);
}

function cardStep(group: Group, tables: Tables): Step {
  const { range } = group;
  if (range === null) return step('GPU', groupWords(group), 'the inventory', 'every image that is not pinned');
  const older = `anything older than CUDA ${range.first}`;
  const rulesOut = range.last === null ? older : `${older} or newer than CUDA ${range.last}`;
  const known = `${groupWords(group)}, ${range.generation}: ${rangeWords(range)}`;
  return step('GPU', known, `the inventory, and generations in the tables of ${tables.date}`, rulesOut, range.verified);
}

function distributionStep(request: ImageRequest, tables: Tables): Step {
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
