/**
 * What GitLab says, as far as onejob reads it: names from gitlab-runner 19.4 (`common/spec/spec.go`, `common/network.go`). All of a job
 * is foreign, and most of it secret.
 */
import { z } from 'zod';

const text = z.string().catch('');
/** Must fit into a header and into one segment of a path. */
const token = z.string().regex(/^[\x21-\x7e]{1,4096}$/);
const image = z.looseObject({ name: text });

const variable = z.looseObject({ key: z.string(), value: text });

/** A job that the server has given to this runner. Loose: the runner in the sandbox gets all of it. */
export const givenJob = z.looseObject({
  id: z.int().positive(),
  token,
  job_info: z.looseObject({
    name: text,
    project_full_path: text,
    /** `+Inf` unless the runner is one of the instance (GitLab's `Ci::BuildRunnerPresenter`); an old server does not say. */
    project_jobs_running_on_instance_runners_count: z.string().nullish().catch(null),
  }),
  git_info: z.looseObject({ repo_url: text, ref: text, ref_type: text, sha: text, protected: z.boolean().nullish().catch(null) }),
  variables: z
    .array(variable)
    .nullish()
    .transform((found) => found ?? []),
  image: image.nullish().catch(null),
  services: z.array(image).nullish().catch([]),
  cache: z.array(z.unknown()).nullish().catch([]),
  features: z.looseObject({ failure_reasons: z.array(z.string()).catch([]) }).catch({ failure_reasons: [] }),
});
export type GivenJob = z.output<typeof givenJob>;

/** What ends a job. `reasons`: why it may fail, in words that its server knows. */
export const jobKey = z.object({ id: z.int().positive(), token, reasons: z.array(z.string()) });
export type JobKey = z.output<typeof jobKey>;

/** `GET /job`: of the job whose token asks. */
export const ownJob = z.looseObject({ status: z.string() });
export const verified = z.looseObject({ id: z.number().nullish(), token_expires_at: z.string().nullish() });
export const anything = z.unknown();

/** States in which a job is over, with the result in words for people. */
const ends = { success: 'passed', failed: 'failed', canceled: 'cancelled', skipped: 'cancelled' } as const;
/** null: the job is not over, or the state is unknown. */
export const gitlabEnd = (state: string): (typeof ends)[keyof typeof ends] | null =>
  Object.hasOwn(ends, state) ? ends[state as keyof typeof ends] : null;
