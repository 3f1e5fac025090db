/**
 * What is known of an agent of GitHub and its job: a fold over what was heard of it. No side tells all of a job, several tell the same,
 * and a job can forge what its runner prints; `learn` says which word counts.
 */
import { z } from 'zod';
import type { ServiceJob } from '../../ports/service-job.ts';
import { jsonOf } from '../../system/json.ts';
import type { JobFacts, Remote } from '../early/port.ts';
import type { SetJob } from './scale-sets.ts';
import { type GithubJob, type HookNews, hookNews } from './wire.ts';

export interface AgentFacts {
  /** What the script in front of its job said, before any step of the job; or its scale set, or GitHub. */
  readonly told: HookNews | null;
  /** That script was heard; what it says later is a job's. */
  readonly isHeard: boolean;
  /** Why it has refused its job. */
  readonly refused: string | null;
  /** Name of its job, by its runner's own words. */
  readonly title: string | null;
  /** Result of its job, such as `Succeeded`, by its runner's own words, which a job can forge until its agent has ended. */
  readonly result: string | null;
  /** A look has shown it busy. */
  readonly wasBusy: boolean;
  /** Its job, as GitHub describes it. */
  readonly job: GithubJob | null;
  /** When its runner began the job by its own words, or a look showed it busy first; wall clock, ms. */
  readonly begunAt: number | null;
}

export const noFacts: AgentFacts = {
  told: null,
  isHeard: false,
  refused: null,
  title: null,
  result: null,
  wasBusy: false,
  job: null,
  begunAt: null,
};

/** What was heard. `at`: wall clock, ms. */
export type AgentNews =
  /** The script in front of its job. */
  | { readonly by: 'script'; readonly said: HookNews }
  /** Its runner's own words. */
  | { readonly by: 'runner'; readonly title: string; readonly at: number }
  | { readonly by: 'runner'; readonly result: string }
  /** Its scale set. */
  | { readonly by: 'set'; readonly job: Omit<SetJob, 'runnerId'> }
  /** A list of runners shows it busy. */
  | { readonly by: 'look'; readonly at: number }
  /** GitHub showed the job without being asked for this one: a webhook, or a list of jobs. `repository`: as `acme/app`. */
  | { readonly by: 'github'; readonly job: GithubJob; readonly repository: string }
  /** GitHub was asked for its job; null: it shows none. */
  | { readonly by: 'answer'; readonly job: GithubJob | null };

export function learn(known: AgentFacts, news: AgentNews): AgentFacts {
  switch (news.by) {
    case 'script':
      // A job may forge the same line, but comes after it.
      return known.isHeard ? known : { ...known, told: news.said, refused: news.said.refused, isHeard: true };
    case 'runner':
      if ('result' in news) return { ...known, result: known.result ?? news.result };
      return { ...known, title: known.title ?? news.title, begunAt: known.begunAt ?? news.at };
    case 'set': {
      const { messageType, jobDisplayName: title = null, result = null } = news.job;
      const end = messageType === 'JobCompleted' ? result : null;
      const from = known.told ?? toldBySet(news.job);
      return { ...known, title: known.title ?? title, result: known.result ?? end, told: from };
    }
    case 'look':
      return { ...known, wasBusy: true, begunAt: known.begunAt ?? news.at };
    case 'github':
      return { ...known, job: isEnded(known) ? known.job : news.job, told: known.told ?? toldBy(news) };
    case 'answer':
      // A webhook may have told of its end meanwhile.
      return isEnded(known) ? known : { ...known, job: news.job ?? known.job };
  }
}

function toldBySet(job: Omit<SetJob, 'runnerId'>): HookNews | null {
  if (job.ownerName == null || job.repositoryName == null || job.workflowRunId == null) return null;
  return {
    repository: `${job.ownerName}/${job.repositoryName}`,
    run: job.workflowRunId,
    number: null,
    workflow: null,
    name: job.jobDisplayName ?? null,
    event: job.eventName ?? null,
    ref: job.jobWorkflowRef?.split('@')[1] ?? null,
    refused: null,
  };
}

function toldBy({ job, repository }: Extract<AgentNews, { by: 'github' }>): HookNews {
  const { run_id: run, workflow_name: workflow, name } = job;
  return { repository, run, number: null, workflow, name, event: null, ref: null, refused: null };
}

/** GitHub says that its job is over. */
export const isEnded = ({ job }: Pick<AgentFacts, 'job'>): boolean => job?.status === 'completed';

const words = z.string().nullable();
const left = z.object({
  place: z.string(),
  remote: z.string(),
  runner: z.string(),
  told: hookNews,
  title: words,
  result: words,
  refused: words,
  begunAt: z.number().nullable(),
  isHeard: z.boolean(),
});

/** What must be known of a job after a restart; undefined: nothing, because its end is known, or cannot be asked for. */
export function unsettledOf(remote: Remote, runner: string | undefined, known: AgentFacts): string | undefined {
  const { told, title, result, refused, begunAt, isHeard } = known;
  if (runner === undefined || told === null || (isEnded(known) && refused === null)) return undefined;
  return JSON.stringify({ place: remote.place, remote: remote.id, runner, told, title, result, refused, begunAt, isHeard });
}

/** What an earlier manager left of a job whose end GitHub did not know yet; null: nothing. */
export function leftOf({ unsettled }: Pick<ServiceJob, 'unsettled'>) {
  const found = unsettled === undefined ? null : left.safeParse(jsonOf(unsettled));
  if (found?.success !== true) return null;
  const { place, remote: id, runner, ...known } = found.data;
  return { remote: { place, id }, runner, known: { ...noFacts, ...known } };
}

/** Results by GitHub's words, and by the runner's own (actions/runner, `TaskResult`). */
const outcomes: Readonly<Record<string, 'passed' | 'failed' | 'cancelled' | 'lost'>> = {
  success: 'passed',
  neutral: 'passed',
  failure: 'failed',
  timed_out: 'failed',
  cancelled: 'cancelled',
  skipped: 'cancelled',
  succeeded: 'passed',
  failed: 'failed',
  canceled: 'cancelled',
  abandoned: 'lost',
};

/** Of its job, for people. */
export function jobFactsOf({ told: said, refused, title, result, job, begunAt }: AgentFacts): JobFacts {
  const file = job?.workflow_name ?? said?.workflow ?? null;
  const name = job?.name ?? title ?? said?.name ?? null;
  const number = said?.number ?? null;
  const shown = [file, number === null ? null : `#${number}`, name].filter((part) => part !== null).join(' ');
  const end = job?.conclusion ?? result?.toLowerCase() ?? null;
  return {
    title: shown === '' ? 'a job of GitHub' : shown,
    definition: file,
    build: number === null ? null : String(number),
    repository: said?.repository ?? null,
    branch: job?.head_branch ?? said?.ref?.replace(/^refs\/heads\//, '') ?? null,
    reason: said?.event ?? null,
    link: job?.html_url ?? null,
    demands: job?.labels ?? [],
    result: refused === null ? end : 'refused',
    outcome: refused !== null ? 'failed' : end === null ? null : (outcomes[end] ?? null),
    failedIn: null,
    queuedAt: job?.created_at ?? null,
    // GitHub writes the time of its creation while it waits.
    startedAt: (job === null || job.runner_name === null ? null : job.started_at) ?? begunAt,
    endedAt: job?.completed_at ?? null,
  };
}
