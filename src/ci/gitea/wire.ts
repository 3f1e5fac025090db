/**
 * Gitea's REST API and its runner service, as far as onejob uses them (Gitea 1.26 and 1.27, `modules/structs/repo_actions.go`,
 * `actions-proto-go` runner/v1). The runner service speaks Connect: JSON with camelCase names, 64-bit numbers as text.
 */
import { z } from 'zod';
import type { FailedIn } from '../../core/job-end.ts';
import { serviceId } from '../../http/service-id.ts';
import type { Page } from '../kit/pages.ts';

const id = z.union([z.int(), z.string().regex(/^\d+$/)]).transform(Number);
/** Gitea writes a missing time as Go's zero time. */
const time = z
  .string()
  .nullish()
  .transform((text) => {
    const at = Date.parse(text ?? '');
    return at > 0 ? at : null;
  });
const text = z
  .string()
  .nullish()
  .transform((found) => (found === undefined || found === '' ? null : found));

const listOf = <T extends z.ZodType>(row: T) =>
  row
    .array()
    .nullish()
    .transform((found) => found ?? []);

export const runner = z.object({
  id,
  name: z.string(),
  status: z.string(),
  labels: z
    .array(z.object({ name: z.string() }))
    .nullish()
    .transform((found) => (found ?? []).map(({ name }) => name)),
});
export type Runner = z.infer<typeof runner>;

export const job = z.object({
  id,
  name: z.string(),
  /** Of the REST API, which is the only place that names the repository. */
  url: text,
  html_url: text,
  run_id: id,
  /** Counts up when a runner takes it: each try of a job that is run again is a job of its own here. */
  run_attempt: z
    .int()
    .nullish()
    .transform((attempt) => attempt ?? 0),
  labels: z
    .array(z.string())
    .nullish()
    .transform((found) => found ?? []),
  head_branch: text,
  /** `queued`, `in_progress`, `completed`, and `waiting` where it needs another job. */
  status: z.string(),
  conclusion: text,
  /** Also after its row is gone. */
  runner_id: id.nullish(),
  created_at: time,
  started_at: time,
  completed_at: time,
  /** As its workflow has them. Empty where no runner has begun it. */
  steps: listOf(z.object({ conclusion: text })),
});
export type GiteaJob = z.infer<typeof job>;

export const workflowRun = z.object({
  id,
  event: text,
  path: text,
});
export type WorkflowRun = z.infer<typeof workflowRun>;

const page = <T>(total: number, rows: readonly T[]): Page<T> => ({ total, rows });

export const runnerPage = z
  .object({ total_count: z.int(), runners: listOf(runner) })
  .transform(({ total_count: total, runners }) => page(total, runners));
export const giteaJobPage = z
  .object({ total_count: z.int(), jobs: listOf(job) })
  .transform(({ total_count: total, jobs }) => page(total, jobs));
export const taskPage = z.object({ workflow_runs: listOf(z.object({ id, status: z.string() })) });

export const registrationToken = z.object({ token: z.string().min(1) });
export const registered = z.object({ runner: z.object({ id, uuid: serviceId, token: z.string().min(1) }) });
export const logged = z.object({
  ackIndex: z
    .union([z.string(), z.int()])
    .nullish()
    .transform((index) => Number(index ?? 0)),
});
/** `UpdateTask`: the result is left out while the task runs (Gitea, `actions.Status.AsResult`). */
export const updated = z.object({ state: z.object({ result: z.string().default('RESULT_UNSPECIFIED') }).nullish() });
export const anything = z.unknown();
export const user = z.object({ login: text });
export const organisation = z.object({ id });
export const version = z.object({ version: z.string() });

/** The repository of a job, `owner/name`, as its address says; null for another address. */
export function repositoryOf({ url }: Pick<GiteaJob, 'url'>): string | null {
  return /\/repos\/([^/]+\/[^/]+)\/actions\/jobs\/\d+$/.exec(url ?? '')?.[1] ?? null;
}

const outcomes = { success: 'passed', failure: 'failed', cancelled: 'cancelled', skipped: 'cancelled' } as const;
/** What a conclusion means; null: unknown. */
export const giteaEnd = (conclusion: string | null): (typeof outcomes)[keyof typeof outcomes] | null =>
  conclusion !== null && Object.hasOwn(outcomes, conclusion) ? outcomes[conclusion as keyof typeof outcomes] : null;

/**
 * Where a job failed: a job is blamed only if a step of its workflow failed. Its runner lists no steps of its own, and reports steps
 * that it never began as cancelled (1.0.8, `reporter.go`). null: the server shows no steps.
 */
export function failedIn({ steps }: Pick<GiteaJob, 'steps'>): FailedIn | null {
  if (steps.length === 0) return null;
  return steps.some(({ conclusion }) => conclusion === 'failure') ? 'script' : 'runner';
}

/** What such a job may have wanted, and what to do, as sentences. */
export const outsideScript =
  'No step of its workflow failed: its runner did not come to one. "container:" in its workflow wants an Engine, which sandboxes have with "containers: true" in their pool: write that, or name the image in the pool instead. The log of the job says what it was.';
