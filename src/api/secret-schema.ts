/** Pins of encrypted values as they cross the API. */
import { z } from 'zod';
import { parsePipeline } from '../secrets/pipelines.ts';

/** A fingerprint or, of a value that is pinned, its beginning. */
export const fingerprintText = z
  .string()
  .regex(/^[0-9a-f]{8,32}$/, 'a fingerprint is 32 digits and letters a to f; for a listed one, the first 8 are enough');

const pipeline = z.string().refine((text) => parsePipeline(text) !== null, 'a pipeline is ORGANISATION/SLUG, in lower case');

export const allowRequest = z.strictObject({ pipelines: z.array(pipeline).min(1).max(100) });
/** `pipeline` null: all pins of the value. */
export const forgetRequest = z.strictObject({ pipeline: pipeline.nullable().default(null) });

/** An encrypted value that is pinned, oldest pin first. */
export const pinnedView = z.object({
  fingerprint: z.string(),
  /** Variable it was used as first, without `SECRET_`; null when it was allowed before any job used it. */
  name: z.string().nullable(),
  pipelines: z.array(
    z.object({
      /** `ORGANISATION/SLUG`; `*` stands for all. */
      pipeline: z.string(),
      /** `used`: it was the first to use the value. `allowed`: a person said so. */
      origin: z.enum(['used', 'allowed']),
      /** Wall clock, ms since the epoch. */
      at: z.number(),
    }),
  ),
});
export type PinnedView = z.infer<typeof pinnedView>;
export const pinnedList = z.array(pinnedView);
export const forgetAnswer = z.object({ fingerprint: z.string(), forgotten: z.number() });
export type ForgetAnswer = z.infer<typeof forgetAnswer>;
