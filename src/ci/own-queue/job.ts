/**
 * What a change does to a job. Pure. It keeps S7: a job has one result, the first; it goes back to its queue only while its script
 * has certainly not begun; a change about an agent that no longer has the job does nothing.
 */
import { createHash } from 'node:crypto';
import { type Failure, isEngineAway, isJobsOwn } from '../../base/errors.ts';
import type { JobView } from '../../contract/schema.ts';
import { outcomeOf } from '../../core/job-end.ts';
import type { AgentId, Change, JobResult } from '../../core/slot.ts';
import type { StoredJob, StoredRequest } from '../../store/jobs.ts';
import type { StoredOutcome } from '../../store/outcomes.ts';

/**
 * A job in the own queue. `agent` has it now; those in `past` had it before. `unmendable`: how often in a row it came back with one
 * failure that a retry cannot fix, or that is its own recipe's. `note`: a sentence for people.
 */
export type Job = StoredJob;

/** How often in a row a job may come back with one such failure before it is unstartable. */
const unmendableLimit = 3;
/** How many earlier agents are remembered; only the last few can be replayed. */
const pastLimit = 50;

/** A change of one of its jobs. */
export type JobChange = Extract<Change, { readonly job: string }>;

/** A new job, without its place in the order. `temporary`: see `StoredJob`. `blockedBy`: jobs it needs that have not passed. */
export function newJob(
  id: string,
  request: StoredRequest,
  cold: boolean,
  now: number,
  { temporary = null, blockedBy = [] }: { readonly temporary?: string | null; readonly blockedBy?: string[] } = {},
): Omit<Job, 'seq'> {
  const readyAt = blockedBy.length === 0 ? now : null;
  const none = { agent: null, unmendable: null, result: null, note: null, readyAt, startedAt: null, endedAt: null };
  const fresh = { attempt: 0, past: [], cancelling: false, settling: { failed: 0, killed: 0 } };
  return {
    id,
    request,
    submittedAt: now,
    temporary,
    progress: { ...none, ...fresh, state: 'queued', retriesLeft: request.retries, cold, blockedBy },
  };
}

/** Applies a change at `now` (wall clock, ms since the epoch). Returns the same object if nothing changed. */
export function applyChange(job: Job, change: JobChange, now: number): Job {
  const { progress } = job;
  if (progress.state === 'done' || progress.past.includes(change.agent)) return job;
  if (progress.agent !== null && progress.agent !== change.agent) return job;
  switch (change.change) {
    case 'reserved':
    case 'assigned':
      return take(job, change.agent, change.change);
    case 'started': {
      const begun = take(job, change.agent, 'running');
      return begun === job ? job : { ...begun, progress: { ...begun.progress, startedAt: progress.startedAt ?? now } };
    }
    case 'returned':
      return giveBack(job, change.agent, change.failure, now);
    case 'ended':
      return end(job, change.agent, change.result, now);
    case 'settled':
      return progress.state === 'settling' ? { ...job, progress: { ...progress, state: 'done' } } : job;
  }
}

/** Cancels a job: a waiting job ends at once, others are marked. */
export function applyCancel(job: Job, now: number): Job {
  const { progress } = job;
  switch (progress.state) {
    case 'queued':
      return finished(job, { kind: 'cancelled' }, now);
    case 'reserved':
    case 'assigned':
    case 'running':
      return progress.cancelling ? job : { ...job, progress: { ...progress, cancelling: true } };
    case 'settling':
    case 'done':
      return job;
  }
}

/** A waiting job in another pool, whose request was checked. What failed in the other pool says nothing about this one. */
export function applyMove(job: Job, request: StoredRequest, cold: boolean): Job {
  return { ...job, request, progress: { ...job.progress, cold, unmendable: null, note: null } };
}

/** The id of a job of an array, so that submitting the array again gives the same jobs. 12 hex digits. */
export function arrayJobId(array: string, index: number): string {
  return createHash('sha256').update(`${array}:${index}`).digest('hex').slice(0, 12);
}

/** A job that it may need is done: it no longer waits for that one, or it can never start. `needed` null: that is not known any more. */
export function applyNeeded(job: Job, id: string, needed: Job | null, now: number): Job {
  const { progress } = job;
  if (!progress.blockedBy.includes(id) || progress.state !== 'queued') return job;
  if (needed !== null && hasPassed(needed)) {
    const blockedBy = progress.blockedBy.filter((one) => one !== id);
    return { ...job, progress: { ...progress, blockedBy, readyAt: blockedBy.length === 0 ? now : null } };
  }
  const note = `It was cancelled because job ${id}, which it needs, ${needed === null ? 'is no longer known' : 'did not pass'}.`;
  return finished({ ...job, progress: { ...progress, note } }, { kind: 'cancelled' }, now);
}

export function hasPassed({ progress: { state, result } }: Job): boolean {
  return state === 'done' && result?.kind === 'code' && result.code === 0;
}

/** Whether it has ended by itself or over a limit, and did not pass. A lost job says nothing about its files. */
export function hasFailed({ progress: { result } }: Job): boolean {
  switch (result?.kind) {
    case 'code':
      return result.code !== 0;
    case 'signal':
    case 'oom':
    case 'timeout':
    case 'disk':
      return true;
    default:
      return false;
  }
}

const order = { queued: 0, reserved: 1, assigned: 2, running: 3, settling: 4, done: 5 } as const;

function take(job: Job, agent: AgentId, state: 'reserved' | 'assigned' | 'running'): Job {
  const { progress } = job;
  if (order[progress.state] >= order[state]) return job;
  const attempt = progress.agent === null ? progress.attempt + 1 : progress.attempt;
  return { ...job, progress: { ...progress, state, agent, attempt } };
}

function giveBack(job: Job, agent: AgentId, failure: Failure | null, now: number): Job {
  const { progress } = job;
  if (progress.state === 'settling') return job;
  // Contradicts that it began. In any case it must neither run twice nor wait forever.
  if (progress.state === 'running') return end(job, agent, { kind: 'lost', reason: failure?.message ?? 'its agent was lost' }, now);
  // Failures of a job's own recipe always count, because no pool backs off for them. An Engine that is away says nothing of it.
  const counts = failure !== null && !isEngineAway(failure) && (!failure.retry || progress.cold);
  const unmendable = counts ? countUp(progress.unmendable, failure.code) : progress.unmendable;
  const back = queued(job, agent, { unmendable, note: failure?.message ?? progress.note });
  if (progress.cancelling) return finished(back, { kind: 'cancelled' }, now);
  const own = failure !== null && ((progress.cold && !failure.retry) || isJobsOwn(failure));
  const hopeless = counts && (own || (unmendable?.times ?? 0) >= unmendableLimit);
  return hopeless ? finished(back, { kind: 'unstartable', failure }, now) : back;
}

function end(job: Job, agent: AgentId, result: JobResult, now: number): Job {
  const { progress } = job;
  if (progress.result !== null) return job;
  if (result.kind === 'lost' && progress.retriesLeft > 0 && !progress.cancelling) {
    const note = `Tried again, because its agent was lost: ${result.reason}.`;
    return queued(job, agent, { retriesLeft: progress.retriesLeft - 1, note });
  }
  return { ...job, progress: { ...progress, state: 'settling', agent, result, endedAt: now } };
}

function queued(job: Job, agent: AgentId, more: Partial<Job['progress']>): Job {
  const past = [...job.progress.past, agent].slice(-pastLimit);
  return { ...job, progress: { ...job.progress, state: 'queued', agent: null, past, ...more } };
}

/** Ends a job without an agent, so there is nothing to settle. */
function finished(job: Job, result: JobResult, now: number): Job {
  return { ...job, progress: { ...job.progress, state: 'done', agent: null, result, endedAt: now } };
}

function countUp(before: { code: string; times: number } | null, code: string): { code: string; times: number } {
  return { code, times: before?.code === code ? before.times + 1 : 1 };
}

/**
 * A job for the API. `reasonFor` says why a pool's jobs wait; the job's own note comes first. `outcome`: of a job that is done; null
 * if none was recorded.
 */
export function jobView(job: Job, reasonFor: (pool: string) => string | null, outcome: StoredOutcome | null): JobView {
  const { id, request, progress, submittedAt } = job;
  const { state, attempt, agent, result, cold, startedAt, endedAt, note } = progress;
  const reason = state === 'queued' ? (note ?? waitsFor(job) ?? reasonFor(request.pool)) : result === null ? null : note;
  return {
    id,
    service: 'own',
    pool: request.pool,
    command: [...request.command],
    name: request.name,
    user: request.user,
    ...(request.person !== undefined && { person: request.person }),
    about: null,
    ...(request.array !== null && { array: request.array }),
    ...(request.needs.length > 0 && { needs: [...request.needs] }),
    state,
    priority: request.priority,
    attempt,
    agent,
    result,
    reason,
    cold,
    artifacts: [...request.artifacts],
    outcome: state !== 'done' || result === null ? null : outcomeOf(result),
    submittedAt,
    startedAt,
    endedAt,
    verdict: outcome?.verdict ?? null,
    ...(outcome !== null && { image: outcome.image, devices: outcome.devices }),
    ...(outcome?.variance != null && { variance: outcome.variance }),
  };
}

function waitsFor({ progress: { blockedBy } }: Job): string | null {
  if (blockedBy.length === 0) return null;
  const named = blockedBy.slice(0, 3).join(', ');
  return `it needs ${blockedBy.length > 3 ? `${named} and ${blockedBy.length - 3} more jobs` : `job ${named}`} to pass first`;
}
