/** The steps of an explanation: what was known, from where, and what it ruled out. */

import { rangeWords } from './generation.ts';
import { type Group, groupWords } from './groups.ts';
import type { HostCuda } from './host-cuda.ts';
import type { ImageRequest } from './request.ts';
import { candidates } from './search.ts';
import type { Tables } from './tables.ts';

export interface Step {
  /** What it is about, in a word or two. */
  readonly about: string;
  readonly known: string;
  /** Where that is known from. */
  readonly from: string;
  /** null when it rules nothing out. */
  readonly rulesOut: string | null;
  /** false when it rests on something in the tables that no source confirms. */
  readonly verified: boolean;
}

export function step(about: string, known: string, from: string, rulesOut: string | null = null, verified = true): Step {
  return { about, known, from, rulesOut, verified };
}

export function hostStep({ arch, archFrom, platform }: ImageRequest): Step {
  const kind = platform === 'l4t' ? ', a Jetson with Linux for Tegra' : platform === 'sbsa' ? ', a server (SBSA)' : '';
  return step('host', `${arch}${kind}`, archFrom ?? 'the request', `images that are not published for ${arch}`);
}

export function driverStep({ cuda, driver, from, verified }: HostCuda): Step {
  const known = driver === null ? `the driver can run CUDA ${cuda}` : `driver ${driver} can run CUDA ${cuda}`;
  return step('driver', known, from, `anything newer than CUDA ${cuda}, while something older fits`, verified);
}

export function cardStep(group: Group, tables: Tables): Step {
  const { range } = group;
  if (range === null) return step('GPU', groupWords(group), 'the inventory', 'every image that is not pinned');
  const older = `anything older than CUDA ${range.first}`;
  const rulesOut = range.last === null ? older : `${older} or newer than CUDA ${range.last}`;
  const known = `${groupWords(group)}, ${range.generation}: ${rangeWords(range)}`;
  return step('GPU', known, `the inventory, and generations in the tables of ${tables.date}`, rulesOut, range.verified);
}

export function distributionStep(request: ImageRequest, tables: Tables): Step {
  const { distribution } = request;
  if (distribution === null)
    return step('distribution', `none asked for: ${tables.preferred.join(', ')}, in this order`, 'the tables');
  const having = new Set(candidates(request, tables).map((each) => each.tag));
  const lost = candidates({ ...request, distribution: null }, tables).filter((each) => !having.has(each.tag));
  const rulesOut = lost.length === 0 ? null : `${lost.map((each) => each.tag).join(', ')}: not published for it`;
  return step('distribution', distribution, 'the request', rulesOut);
}

/** Where a part of the tables has what it says from. */
export function source(key: string, tables: Tables): string {
  return `tables of ${tables.date}: ${tables.sources[key] ?? key}`;
}
