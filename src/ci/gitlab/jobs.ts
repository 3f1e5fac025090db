/**
 * The jobs that the server has given to this host: decided before there is a sandbox, offered to slots, and ended at the server, with
 * the reason in their log, where their own runner does not do it.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId, Failure, JobId, JobResult } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { Admission } from '../kit/admission.ts';
import { endUnreported, type JobEnd, jobsOwnFailure, type LateRows, mostTries } from '../kit/job-rows.ts';
import { matches } from '../kit/repository.ts';
import type { GitlabClient } from './client.ts';
import { type JobFacts, jobFacts } from './facts.ts';
import { type TakenJob, type TakenJobs, takenOf } from './taken.ts';
import { type End, endOf, type GivenJob } from './wire.ts';

export type Admitted = Extract<Admission<JobFacts>, { kind: 'run' }>;

/** A job of this host. */
export interface Held {
  readonly job: JobId;
  readonly taken: TakenJob;
  /** null: undecided, or of an earlier manager and begun. */
  admission: Admitted | null;
  /** The image of its own; null: its pool's. */
  image: string | null;
  /** Lines for its log. */
  notes: readonly string[];
  /** Whose sandbox is, or was, to run it. */
  agent: AgentId | null;
  /** Why it must never run, until the server knows. */
  verdict: Verdict | null;
  hasBegun: boolean;
  /** Failed sandboxes. */
  failures: number;
  /** Since when the server says that it is over or cancelled (the clock's `now`); null: it does not. */
  overSince: number | null;
}

/** `reason`: in the server's word, if it knows that. */
export interface Verdict {
  readonly words: string;
  readonly reason: 'runner_system_failure' | 'runner_unsupported';
  readonly end: JobEnd;
}

export interface JobsParts {
  readonly service: string;
  readonly pool: PoolConfig | undefined;
  /** Patterns of images that jobs may choose. */
  readonly images: readonly string[];
  readonly client: GitlabClient;
  readonly files: TakenJobs;
  readonly rows: LateRows<GivenJob>;
  readonly admit: (facts: JobFacts, given: GivenJob, pool: PoolConfig) => Promise<Admission<JobFacts>>;
  readonly emit: (event: CiEvent) => void;
  readonly log: Log;
}

/** As the server or the client says it. */
export const isOver = (state: string | null): boolean =>
  state === null || state === 'gone' || state === 'over' || endOf(state) !== null;

export const jobIdOf = (service: string, id: number): JobId => `${service}-${id}`;

export type GitlabJobs = ReturnType<typeof createGitlabJobs>;

export function createGitlabJobs(parts: JobsParts) {
  const { service, pool, client, files, rows, emit, log } = parts;
  const held = new Map<JobId, Held>();

  const add = (taken: TakenJob): Held => {
    const job = jobIdOf(service, taken.key.id);
    const state = { admission: null, image: null, notes: [], agent: null, verdict: null, failures: 0, overSince: null };
    const one: Held = { job, taken, ...state, hasBegun: taken.given === null };
    held.set(job, one);
    return one;
  };

  /** It is over, or another's. `end`: as in `LateRows.left`. */
  function forget(one: Held, end: JobEnd | null): void {
    rows.left(one.job, end);
    held.delete(one.job);
    files.forget(one.taken.key.id);
  }

  /**
   * Ends the job at the server, unless it is over there; how it ended. First it is reported as running: a job that no runner has
   * accepted yet takes no log, and the answer tells whether it is over. @throws OnejobError E_CI_*
   */
  async function finish({ taken }: Held, { words, reason, end }: Verdict, signal: AbortSignal): Promise<JobEnd> {
    const { key, reasons } = taken;
    const state = await client.touch(key, 'running', signal);
    if (isOver(state)) return ended(endOf(state));
    await client.write(key, `\n${words.startsWith('onejob ') ? '' : 'onejob: '}${words}\n`, signal);
    const known = reasons.length === 0 || reasons.includes(reason) ? reason : 'unknown_failure';
    const isOurs = await client.fail(key, known, signal);
    if (state === 'canceling') return { word: 'cancelled', outcome: 'cancelled' };
    return isOurs ? end : ended(null);
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

  const refuse = (words: string): Verdict => ({
    ...{ words: `this job was refused: ${words}`, reason: 'runner_unsupported' },
    end: { word: 'refused', outcome: null },
  });
  const cannot = (why: string): Verdict => ({
    ...{ words: `this job could not run: ${why}`, reason: 'runner_system_failure' },
    end: { word: 'failed', outcome: 'lost' },
  });

  /** Its image, and what to say about it. */
  function imageFor(given: GivenJob, { trusted }: Admitted): { readonly image: string | null; readonly note: string | null } {
    const wanted = expanded(given.image?.name ?? '', given);
    const own = !trusted && pool?.trust.image != null ? pool.trust.image : (pool?.recipe.image ?? null);
    if (wanted === '' || wanted === own || pool === undefined) return { image: null, note: null };
    const isOwn = !trusted && pool.trust.image !== null;
    if (!isOwn && pool.runtime !== 'process' && matches(parts.images, wanted)) return { image: wanted, note: null };
    const where = own === null ? 'this host itself' : `${own}`;
    return { image: null, note: `onejob: image ${wanted} is not used: this pool runs its jobs in ${where}.` };
  }

  async function decide(one: Held, signal: AbortSignal): Promise<void> {
    const { given } = one.taken;
    if (given === null || pool === undefined) return;
    const services = (given.services ?? []).map(({ name }) => name);
    if (services.length > 0) {
      const why = `it asks for "services" (${services.join(', ')}), which onejob does not start; start them in its script, or run it elsewhere.`;
      return end(one, refuse(why), signal);
    }
    const facts = jobFacts(given);
    const admission = await parts.admit(facts, given, pool).catch((error: unknown) => toFailure(error).message);
    if (!held.has(one.job) || signal.aborted) return;
    if (typeof admission === 'string') return end(one, cannot(admission), signal);
    if (admission.kind === 'refused') {
      log.warn('job refused', { job: one.job, reason: admission.reason });
      return end(one, refuse(admission.reason), signal);
    }
    const { image, note } = imageFor(given, admission);
    one.image = image;
    one.notes = [admission.why, note].filter((line) => line !== null);
    one.admission = admission;
    emit({ kind: 'waiting', pool: pool.name });
  }

  return {
    of: (job: JobId | null): Held | null => (job === null ? null : (held.get(job) ?? null)),
    all: (): readonly Held[] => [...held.values()],
    /** A job that the server has just given. It is written down before anything else. */
    async take(given: GivenJob, signal: AbortSignal): Promise<void> {
      const one = add(takenOf(given));
      rows.reserved(given, pool?.name ?? '');
      try {
        await files.keep(given);
      } catch (error) {
        return end(one, cannot(`it could not be written to the state directory: ${toFailure(error).message}`), signal);
      }
      await decide(one, signal);
    },
    /** Those of earlier managers. The server may have given one that waited to somebody else. */
    async resume(signal: AbortSignal): Promise<void> {
      const open = files.all().map(add);
      await Promise.all(
        open.map(async (one) => {
          if (one.hasBegun) return;
          const state = await client.touch(one.taken.key, 'pending', signal).catch(() => 'pending');
          if (isOver(state)) forget(one, ended(endOf(state)));
          else await decide(one, signal);
        }),
      );
    },
    tell,
    end,
    cannot,
    finish,
    forget,
    /** Its script has begun: nothing of it has to be kept but its token. */
    async begun(one: Held): Promise<void> {
      one.hasBegun = true;
      await files.begun(one.taken).catch((error: unknown) => {
        log.warn('the file of a job stays larger than needed', { job: one.job, reason: toFailure(error).message });
      });
      if (!held.has(one.job)) files.forget(one.taken.key.id);
    },
    /** Its sandbox has certainly not begun it. `failure`: what went wrong; null: nothing did. */
    returned(one: Held, failure: Failure | null, signal: AbortSignal): void {
      const its = jobsOwnFailure(failure);
      one.agent = null;
      one.failures += its === null ? 0 : 1;
      if (one.overSince !== null) void end(one, cannot('it was cancelled.'), signal);
      else if (its !== null && (one.failures >= mostTries || !its.retry)) void end(one, cannot(its.message), signal);
      else queueMicrotask(() => emit({ kind: 'waiting', pool: pool?.name ?? '' }));
    },
    /** What became of a job whose agent ended without saying it. */
    lost: (words: string, result: JobResult | null): Verdict => ({
      ...{ words, reason: 'runner_system_failure' },
      end: endUnreported(result),
    }),
  };
}

const ended = (as: End | null): JobEnd => ({ word: as ?? 'ended', outcome: as });

/** As the runner does it, but only once: `$NAME` and `${NAME}`. */
function expanded(text: string, { variables }: GivenJob): string {
  const values = new Map(variables.map(({ key, value }) => [key, value]));
  return text.replaceAll(/\$(?:\{(\w+)\}|(\w+))/g, (_, braced: string | undefined, plain: string | undefined) => {
    return values.get(braced ?? plain ?? '') ?? '';
  });
}
