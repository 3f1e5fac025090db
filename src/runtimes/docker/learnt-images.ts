/**
 * What a pool learns from the images that its jobs have pulled: names, when each was pulled last, and what the registry had under them
 * when onejob asked. Pure. What a job has left is hostile: it may name any image that a pattern of the pool matches, and nothing else.
 */
import { z } from 'zod';
import { glob } from '../../base/glob.ts';
import { imageReference, isOwnName } from '../../base/image-reference.ts';
import { jsonOf } from '../../system/json.ts';
import { parseReference } from '../engine/image.ts';

/** Names that one job may teach, and that are looked at for it. */
const mostOfJob = 20;
const mostSeen = 200;
/** Names that a pool remembers. */
const mostOfPool = 100;
const hour = 3_600_000;
/** How often a registry is asked for an image that no job pulls meanwhile, in ms. */
const day = 24 * hour;

const learnt = z.object({
  name: z.string().regex(imageReference),
  /** ms since the epoch. */
  first: z.number(),
  last: z.number(),
  /** When the registry was last asked for it. */
  asked: z.number(),
  /** What it had then: its name with a digest, and bytes on disk. */
  image: z.object({ reference: z.string().regex(imageReference), size: z.number() }).nullable(),
  /** Why jobs do not have it. */
  problem: z.string().nullable(),
});
export type Learnt = z.infer<typeof learnt>;

export const memory = z.object({
  /** When its set was last thought about. */
  at: z.number(),
  /** Those that a job pulled last come first. */
  images: z.array(learnt),
  /** What jobs have now. `reference`: its name with a digest. */
  set: z.array(z.object({ id: z.string(), name: z.string(), reference: z.string() })),
  /** What was pulled for it, by digest, and so has to be removed one day. */
  pulled: z.array(z.string().regex(imageReference)),
  /** Why the last set could not be made. */
  problem: z.string().nullable(),
});
export type Memory = z.infer<typeof memory>;

/** By repository, names with a tag and names with a digest, each with the id of its image: `repositories.json` of a Docker Engine. */
const repositories = z.object({ Repositories: z.record(z.string(), z.record(z.string(), z.string())) });

/**
 * The names of images that a job has pulled, from what its engine knew at the end. Only what comes from a registry has a digest there:
 * neither what the job has built, nor what it had from the start and did not pull.
 */
export function pulledNames(text: string, fits: (name: string) => boolean): string[] {
  const { data } = repositories.safeParse(jsonOf(text));
  const tagged = Object.values(data?.Repositories ?? {}).flatMap((names) => {
    const ids = new Set(Object.entries(names).flatMap(([name, id]) => (name.includes('@') ? [id] : [])));
    return Object.entries(names).flatMap(([name, id]) => (ids.has(id) && !name.includes('@') ? [name] : []));
  });
  return tagged.slice(0, mostSeen).filter(fits).slice(0, mostOfJob);
}

/** With its registry and tag, so that each image has one name. */
export function fullName(reference: string): string {
  const { name, tag, registry } = parseReference(reference.replace(/@.*$/, ''));
  if (registry !== 'docker.io') return `${name}:${tag}`;
  const path = name.replace(/^(index\.)?docker\.io\//, '');
  return `docker.io/${path.includes('/') ? path : `library/${path}`}:${tag}`;
}

/** Whether a name matches one of the patterns, which may leave the tag out. Names of images that onejob builds match none. */
export function matcher(patterns: readonly string[]): (name: string) => boolean {
  const each = patterns.map((pattern) => glob(pattern));
  return (name) => {
    if (!imageReference.test(name) || isOwnName(name)) return false;
    const full = fullName(name);
    return each.some((fits) => fits(full) || fits(full.slice(0, full.lastIndexOf(':'))));
  };
}

/** A job has pulled these. */
export function noted(images: readonly Learnt[], names: readonly string[], now: number): Learnt[] {
  // A job may write one image in several ways.
  const known = new Map(images.map((one) => [fullName(one.name), one]));
  const fresh = { first: now, asked: 0, image: null, problem: null };
  for (const name of names) known.set(fullName(name), { ...fresh, name, ...known.get(fullName(name)), last: now });
  return [...known.values()].sort((a, b) => b.last - a.last).slice(0, mostOfPool);
}

/** Whether to think about a new set: at most once an hour, also if somebody has turned the clock back. */
export function mayRenew({ at, images, set }: Memory, now: number): boolean {
  return (now - at >= hour || now < at) && images.length + set.length > 0;
}

/** Whether to ask the registry: a job has pulled it since, so something may be new, or it was long ago. */
export function mustAsk({ last, asked }: Learnt, now: number): boolean {
  return last > asked || now - asked >= day || now < asked;
}
