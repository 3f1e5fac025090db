/**
 * The jobs that Gitea has given to this host before there was a sandbox for them: one runner was registered for each, and its key is
 * on disk before the server is asked for a task with it. So whatever dies, somebody can say what became of the job.
 */
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Admission } from '../kit/admission.ts';
import type { JobEnd, LateRows } from '../kit/job-rows.ts';
import type { GiteaClient } from './client.ts';
import { endTask } from './last-words.ts';
import type { Enlisted, Taken, TakenTasks } from './taken.ts';
import { type GivenTask, type TaskFacts, taskFacts, taskIn } from './task.ts';
import { endOf, type Job, repositoryOf } from './wire.ts';

/** ms in which a job shows up that the server was giving a runner while it was disabled. */
const picking = 1_000;

/** A job of this host. */
export interface Held {
  readonly job: JobId;
  readonly taken: Taken;
  readonly given: GivenTask | null;
  /** undefined when config no longer has it. */
  readonly pool: PoolConfig | undefined;
  /** null: undecided, or of an earlier manager and begun. */
  admission: Extract<Admission<TaskFacts>, { kind: 'run' }> | null;
  /** Whose sandbox is, or was, to run it. */
  agent: AgentId | null;
  /** Why it must never run, until the server knows. */
  verdict: Verdict | null;
  hasBegun: boolean;
  /** Failed sandboxes. */
  failures: number;
  /** As the newest look that found it shows it. */
  seen: Job | null;
  /** Since when it is over at the server (the clock's `now`); null: it is not. */
  overSince: number | null;
}

export interface Verdict {
  readonly words: string;
  readonly end: JobEnd;
}

export interface LateJobsParts {
  readonly service: string;
  readonly pools: readonly PoolConfig[];
  readonly client: GiteaClient;
  readonly files: TakenTasks;
  readonly rows: LateRows<TaskFacts>;
  readonly admit: (facts: TaskFacts, given: GivenTask, pool: PoolConfig) => Promise<Admission<TaskFacts>>;
  readonly clock: Clock;
  readonly log: Log;
}

/** The task is one try of the job, and every try is a job of its own here. */
export const lateJobId = (service: string, task: number): JobId => `${service}-task-${task}`;

export function createLateJobs(parts: LateJobsParts) {
  const { service, pools, client, files, rows, clock, log } = parts;
  const held = new Map<JobId, Held>();

  function add(taken: Taken, given: GivenTask | null): Held {
    const pool = pools.find(({ name }) => name === taken.pool);
    const state = { admission: null, agent: null, verdict: null, failures: 0, seen: null, overSince: null };
    const one: Held = {
      ...{ job: lateJobId(service, taken.task.id), taken, given, pool, ...state },
      hasBegun: taken.task.answer === null,
    };
    held.set(one.job, one);
    return one;
  }

  function forget(one: Held, end: JobEnd): void {
    rows.left(one.job, end);
    held.delete(one.job);
    files.forget(one.taken);
  }

  /** The job at the server, as its runner had it; null: nobody knows. */
  async function find({ taken, seen }: Held, signal: AbortSignal): Promise<Job | null> {
    const { id, place } = taken;
    const repository = seen === null ? null : repositoryOf(seen);
    const now = seen === null || repository === null ? null : await client.job(repository, seen.id, signal);
    if (now?.runner_id === id) return now;
    return (await client.endedJobs(place, signal)).find(({ runner_id }) => runner_id === id) ?? null;
  }

  /** How it ended, as the server says. */
  async function ended(one: Held, signal: AbortSignal): Promise<JobEnd> {
    const { conclusion = null } = (await find(one, signal)) ?? {};
    return { word: conclusion ?? 'ended', outcome: endOf(conclusion) };
  }

  /** Ends the job at the server, unless it is over there; how it ended. @throws OnejobError E_CI_* */
  async function finish(one: Held, { words, end }: Verdict, signal: AbortSignal): Promise<JobEnd> {
    const { key, task } = one.taken;
    return (await endTask(parts, { key, task: task.id, words }, signal)) ? end : ended(one, signal);
  }

  /** Ends it at the server, now or with a later call. */
  async function tell(one: Held, signal: AbortSignal): Promise<void> {
    if (one.verdict === null || !held.has(one.job)) return;
    try {
      forget(one, await finish(one, one.verdict, signal));
    } catch (error) {
      if (!signal.aborted) log.warn('cannot end a job yet', { job: one.job, reason: toFailure(error).message });
    }
  }

  async function end(one: Held, verdict: Verdict, signal: AbortSignal): Promise<void> {
    one.verdict = verdict;
    rows.note(one.job, verdict.words);
    await tell(one, signal);
  }

  const cannot = (why: string): Verdict => ({
    ...{ words: `this job could not run: ${why}`, end: { word: 'failed', outcome: 'lost' } },
  });

  async function decide(one: Held, signal: AbortSignal): Promise<void> {
    const { pool, given } = one;
    if (given === null) return;
    if (pool === undefined) return end(one, cannot('its pool is no longer in the config of its host.'), signal);
    const admission = await parts.admit(taskFacts(given), given, pool).catch((error: unknown) => toFailure(error).message);
    if (!held.has(one.job) || signal.aborted) return;
    if (typeof admission === 'string') return end(one, cannot(admission), signal);
    if (admission.kind === 'run') {
      one.admission = admission;
      return;
    }
    log.warn('job refused', { job: one.job, reason: admission.reason });
    await end(one, { words: `this job was refused: ${admission.reason}`, end: { word: 'refused', outcome: null } }, signal);
  }

  /**
   * Removes a runner that has no task, as far as this host knows. The server may have given it one whose answer was lost with the
   * connection or the manager. It gives no task twice, so such a job is ended. @throws OnejobError E_CI_*
   */
  async function release(one: Enlisted, signal: AbortSignal): Promise<void> {
    const { id, key, place } = one;
    if ((await client.setDisabled(place, String(id), true, signal)) === 'done') {
      await sleep(clock, picking, signal);
      signal.throwIfAborted();
      const job = (await client.jobs(place, 'in_progress', signal)).find(({ runner_id }) => runner_id === id);
      if (job === undefined) await client.deleteRunner(place, String(id), signal);
      else await speakFor(job);
    }
    files.forget(one);

    async function speakFor(job: Job): Promise<void> {
      const words = 'this job was lost: its host lost the answer with which the server gave it away. Run it again.';
      const repository = repositoryOf(job);
      const tasks = repository === null ? [] : await client.runningTasks(repository, signal);
      for (const task of tasks) {
        if (!(await endTask(parts, { key, task, words }, signal))) continue;
        log.warn('a job was lost, because the answer that gave it away was', { job: job.html_url ?? job.id });
        return;
      }
      log.warn('a job hangs until its server gives it up: nobody knows its task', { job: job.html_url ?? job.id });
    }
  }

  return {
    of: (job: JobId | null): Held | null => (job === null ? null : (held.get(job) ?? null)),
    all: (): readonly Held[] => [...held.values()],
    /**
     * What the server has answered this runner; false: no task. It is written down before anything else. @throws RangeError when
     * the answer is damaged
     */
    async take(one: Enlisted, answer: Buffer, signal: AbortSignal): Promise<boolean> {
      const given = taskIn(answer);
      if (given === null) return false;
      const facts = taskFacts(given);
      const taken: Taken = { ...one, task: { id: given.id, answer: answer.toString('base64') } };
      const mine = add(taken, given);
      rows.reserved(facts, one.pool);
      try {
        await files.keep(taken);
      } catch (error) {
        await end(mine, cannot(`it could not be written to the state directory: ${toFailure(error).message}`), signal);
        return true;
      }
      await decide(mine, signal);
      return true;
    },
    /** Those of earlier managers; the runners among them that had no task. */
    async resume(signal: AbortSignal): Promise<Enlisted[]> {
      const all = files.all();
      const open = all.flatMap(({ task, ...one }) => {
        if (task === null) return [];
        const answer = task.answer === null ? null : Buffer.from(task.answer, 'base64');
        return [add({ ...one, task }, answer === null ? null : taskIn(answer))];
      });
      await Promise.all(
        open.map(async (one) => {
          if (one.hasBegun) return;
          const { key, task } = one.taken;
          const isThere = await client.touch(key, task.id, signal).catch(() => true);
          if (isThere) await decide(one, signal);
          else forget(one, await ended(one, signal).catch(() => ({ word: 'ended', outcome: null })));
        }),
      );
      return all.filter(({ task }) => task === null);
    },
    ...{ tell, end, find, finish, forget, release, cannot },
    /** Its script has begun: nothing of it has to be kept but its runner's key. */
    async begun(one: Held): Promise<void> {
      one.hasBegun = true;
      const { taken } = one;
      await files.keep({ ...taken, task: { ...taken.task, answer: null } }).catch((error: unknown) => {
        log.warn('the file of a job stays larger than needed', { job: one.job, reason: toFailure(error).message });
      });
      if (!held.has(one.job)) files.forget(taken);
    },
  };
}
