/** A job that the server has given to this host, as its file has it: whole until it begins, and then only what ends it. */
import { z } from 'zod';
import { createJobFiles } from '../kit/job-files.ts';
import type { JobKey } from './client.ts';
import { type GivenJob, givenJob } from './wire.ts';

const begun = z.strictObject({ id: z.int().positive(), token: z.string(), reasons: z.array(z.string()) });
const stored = z.union([z.strictObject({ given: givenJob }), z.strictObject({ begun })]);

/** `given`: null once it has begun. `reasons`: why a job may fail, in words that the server knows. */
export interface TakenJob {
  readonly key: JobKey;
  readonly given: GivenJob | null;
  readonly reasons: readonly string[];
}

export type TakenJobs = ReturnType<typeof createTakenJobs>;

/** `dir`: of this service alone. */
export function createTakenJobs(dir: string) {
  const files = createJobFiles(dir, stored);
  return {
    keep: (given: GivenJob) => files.keep(String(given.id), { given }),
    begun: ({ key, reasons }: TakenJob) => files.keep(String(key.id), { begun: { ...key, reasons: [...reasons] } }),
    forget: (id: number): void => files.forget(String(id)),
    all: (): TakenJob[] =>
      files.all().map((found) => {
        if ('given' in found) return takenOf(found.given);
        const { reasons, ...key } = found.begun;
        return { key, given: null, reasons };
      }),
  };
}

export function takenOf(given: GivenJob): TakenJob {
  const { id, token, features } = given;
  return { key: { id, token }, given, reasons: features.failure_reasons };
}
