/**
 * GitHub's REST API, as far as onejob uses it (`@octokit/openapi` 23, API version 2022-11-28). A list with an entry without id or name
 * is refused as a whole, because a missing runner would look as if it were gone.
 */
import { z } from 'zod';
import type { Page } from '../kit/pages.ts';

const id = z.int();
const text = z
  .string()
  .nullish()
  .transform((found) => (found === undefined || found === '' ? null : found));
/** ms since the epoch. */
const time = text.transform((found) => {
  const at = Date.parse(found ?? '');
  return Number.isNaN(at) ? null : at;
});

export const runner = z.object({
  id,
  name: z.string(),
  /** `offline` is also said of runners that run a job (actions/runner#3448). */
  status: z.string(),
  busy: z.boolean(),
  /** In lower case, in any order. */
  labels: z.array(z.object({ name: z.string() })).transform((found) => found.map(({ name }) => name.toLowerCase())),
});
export type Runner = z.infer<typeof runner>;

const page = <T>(total: number, rows: readonly T[]): Page<T> => ({ total, rows });
export const runnerPage = z
  .object({ total_count: z.int(), runners: z.array(runner) })
  .transform(({ total_count, runners }) => page(total_count, runners));

export const group = z.object({ id, name: z.string() });
export type RunnerGroup = z.infer<typeof group>;
export const groupPage = z
  .object({ total_count: z.int(), runner_groups: z.array(group) })
  .transform(({ total_count, runner_groups }) => page(total_count, runner_groups));

/** `encoded_jit_config` holds a private key: it goes into the script of the sandbox, and nowhere else. */
export const jitConfig = z.object({ runner: z.object({ id }), encoded_jit_config: z.string().regex(/^[\w+/=-]+$/) });

const step = z.object({ name: z.string(), conclusion: text });
export const job = z.object({
  id,
  run_id: id,
  name: z.string(),
  workflow_name: text,
  head_branch: text,
  status: z.string(),
  conclusion: text,
  labels: z.array(z.string()),
  runner_name: text,
  html_url: text,
  created_at: time,
  started_at: time,
  completed_at: time,
  /** Also those of the runner. */
  steps: z
    .array(step)
    .nullish()
    .transform((found) => found ?? []),
});
export type GithubJob = z.infer<typeof job>;
/** A webhook about a job (docs, "Webhook events and payloads"). It says nothing of forks. */
export const jobEvent = z.object({
  /** `queued`, `in_progress`, `completed`; `waiting`: for an approval. */
  action: z.string(),
  workflow_job: job,
  repository: z.object({ full_name: z.string().regex(/^[\w-]+\/(?!\.{1,2}$)[\w.-]+$/) }),
  enterprise: z.object({ slug: z.string() }).nullish(),
});
export type JobEvent = z.infer<typeof jobEvent>;
export const githubJobPage = z
  .object({ total_count: z.int(), jobs: z.array(job) })
  .transform(({ total_count, jobs }) => page(total_count, jobs));
export const runPage = z
  .object({ total_count: z.int(), workflow_runs: z.array(z.object({ id })) })
  .transform(({ total_count, workflow_runs }) => page(total_count, workflow_runs));

/** Packages of the runner, one for each system. */
export const downloads = z.array(
  z.object({ os: z.string(), architecture: z.string(), download_url: z.url(), filename: z.string(), sha256_checksum: text }),
);

export const repository = z.object({ full_name: z.string(), private: z.boolean() });
export const installation = z.object({ id });
export const installationToken = z.object({ token: z.string().regex(/^[\x21-\x7e]+$/) });
/** `first_time_contributors_new_to_github`, `first_time_contributors`, `all_external_contributors`. */
export const forkApproval = z.object({ approval_policy: z.string() });
export const registrationToken = z.object({ token: z.string().min(1) });

/** What the script in front of a job says about it (`script.ts`). */
export const hookNews = z.object({
  repository: z.string().regex(/^[\w-]+\/(?!\.{1,2}$)[\w.-]+$/),
  run: id,
  number: id.nullable(),
  workflow: text,
  name: text,
  event: text,
  ref: text,
  /** Why it may not run here. */
  refused: text,
});
export type HookNews = z.infer<typeof hookNews>;
