/** What crosses the API about images that onejob builds. */
import { z } from 'zod';
import { errorView } from './schema.ts';

const imageView = z.object({
  /** Name and tag. */
  reference: z.string(),
  id: z.string(),
  /** Pools whose sandboxes are made from it. */
  pools: z.array(z.string()),
  /** What it was built on; null when a Dockerfile says it. */
  base: z.string().nullable(),
  /** Version of the CI service's agent in it; null when it has none. */
  agent: z.string().nullable(),
  /** bytes, with what it shares with other images */
  size: z.number(),
  /** Wall clock, ms since the epoch. */
  createdAt: z.number(),
  /** Containers that were made from it. */
  containers: z.int(),
});
export type ImageView = z.infer<typeof imageView>;
export const imageList = z.array(imageView);

/** Names of pools; none: all whose images are built. */
export const imageRequest = z.strictObject({ pools: z.array(z.string().min(1)).default([]) });

const imageOutcome = z.object({
  pool: z.string(),
  /** null when there is none. */
  image: z.string().nullable(),
  agent: z.string().nullable(),
  /** `there`: nothing had to be done. `newer`: agents are made from it from now on. */
  what: z.enum(['there', 'built', 'newer', 'failed']),
  problem: errorView.nullable(),
});
export type ImageOutcome = z.infer<typeof imageOutcome>;

/** One line of the answer to a build: it is sent as it happens. */
export const imageEvent = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('progress'), pool: z.string(), line: z.string() }),
  z.object({ kind: z.literal('done'), outcome: imageOutcome }),
  /** The last line when all was done. */
  z.object({ kind: z.literal('end') }),
  /** The last line when it was not. */
  z.object({ kind: z.literal('error'), error: errorView }),
]);
export type ImageEvent = z.infer<typeof imageEvent>;

export const prunedView = z.object({ removed: z.array(z.string()) });
