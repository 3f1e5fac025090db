/** A job of the own queue: the request and the result, as in the API and in the store. */
import { z } from 'zod';
import type { Exit } from '../core/slot.ts';
import type { Mount } from '../ports/runtime.ts';

const optional = <T extends z.ZodType>(type: T) => type.nullable().prefault(null);

const mount = z.strictObject({
  host: z.string(),
  container: z.string(),
  readOnly: z.boolean(),
  variable: z.string().nullable(),
  /** Caches belong to pools. */
  cache: z.custom<Mount['cache']>((found) => found === null, 'a job has no caches of its own').default(null),
});

/** Letters of a job's name. */
export const longestName = 100;

/** A line of at most `most` characters. */
const label = (most: number) =>
  optional(
    // Blanks at its ends are nobody's intention, and invisible in lists.
    z
      .string()
      .trim()
      .regex(new RegExp(`^\\P{Cc}{1,${most}}$`, 'u'), {
        error: ({ input }) => labelProblem(String(input), most) ?? 'it is invalid',
      }),
  );

/** Why a text cannot be a name of up to `most` letters, as a clause; null if it can. */
export function labelProblem(text: string, most: number): string | null {
  const length = [...text].length;
  if (length === 0) return 'it is empty';
  if (/[\n\r]/.test(text)) return `it has ${text.trimEnd().split(/\r\n|\n|\r/).length} lines: give one, of at most ${most} letters`;
  if (/\p{Cc}/u.test(text)) return 'it contains a control character, such as a tab';
  return length > most ? `it has ${length} letters, at most ${most} are possible` : null;
}

const jobId = z.string().regex(/^[0-9a-f]{12}$/);

/** The array that a job is part of, and its place in it. */
export const arrayPlace = z.object({ id: z.string(), index: z.int() });

export const jobRequest = z.strictObject({
  /** Chosen by the client, so that submitting again after a lost connection gives the same job. 12 hex digits. */
  id: optional(jobId),
  command: z.array(z.string()).min(1),
  /** null: the pool named `default`, the only one, or the first without devices; with `devices` the first that has as many. */
  pool: z.string().nullable().default(null),
  env: z.record(z.string(), z.string()).default({}),
  /** For people, in lists. */
  name: label(longestName),
  /** The submitter according to the client, unchecked. */
  user: label(64),
  image: z.string().nullable().default(null),
  /** Overrides the pool's limit, and may not exceed it. Bytes. */
  memory: optional(z.int().min(6 * 2 ** 20)),
  cpus: z.number().min(0.01).nullable().default(null),
  volumes: z.array(mount).default([]),
  devices: z.int().min(0).nullable().default(null),
  priority: z.int().min(-1000).max(1000).default(0),
  /** ms; null: the pool's. */
  timeout: z.int().positive().nullable().default(null),
  retries: z.int().min(0).max(100).default(0),
  artifacts: z.array(z.string()).default([]),
  /** Id of an uploaded workspace; null for none. */
  workspace: z.string().nullable().default(null),
  /** Ids of jobs and arrays of the own queue that must have passed before it starts. If a job does not pass, it is cancelled. */
  needs: z.array(z.string()).max(1_000).default([]),
  /** Whether clients may run programs in its sandbox while it runs, as `POST /v1/jobs/ID/shell` does. */
  attended: z.boolean().default(false),
  /** The job of another onejob that this one is an attempt of, which it takes itself for (`ONEJOB_JOB_ID` and so on). */
  attemptOf: z
    .strictObject({ job: jobId, attempt: z.int().min(1), array: z.strictObject(arrayPlace.shape).nullable() })
    .nullable()
    .default(null),
});
export type JobRequest = z.infer<typeof jobRequest>;

/** Most jobs of one array. */
export const arrayLimit = 10_000;

/** Jobs that differ only in `ONEJOB_ARRAY_INDEX`. `job.id` is the array's; its jobs get ids that are made from it. */
export const arrayRequest = z.strictObject({
  job: jobRequest,
  indices: z
    .array(z.int().min(0).max(1_000_000_000))
    .min(1)
    .max(arrayLimit)
    .refine((all) => new Set(all).size === all.length, 'an index is given twice'),
});
export type ArrayRequest = z.infer<typeof arrayRequest>;

export const failure = z.object({ code: z.string(), message: z.string(), retry: z.boolean() });

export const exit = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('code'), code: z.int() }),
  z.object({ kind: z.literal('signal'), signal: z.string() }),
  z.object({ kind: z.literal('oom'), peak: z.number().optional() }),
  z.object({ kind: z.literal('lost'), reason: z.string() }),
]) satisfies z.ZodType<Exit>;

export const jobResult = z.discriminatedUnion('kind', [
  ...exit.options,
  z.object({ kind: z.literal('cancelled') }),
  z.object({ kind: z.literal('timeout') }),
  z.object({ kind: z.literal('disk') }),
  z.object({ kind: z.literal('unstartable'), failure }),
]);
