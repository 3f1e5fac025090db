/**
 * The jobs that the service has given to this host: written down, decided before there is a sandbox, offered to slots, and ended at the
 * service, with the reason in their log, where their own agent does not do it.
 */
import { z } from 'zod';
import { type Failure, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId, JobId, JobResult } from '../../core/slot.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { type AdmissionParts, admitJob } from '../kit/admission.ts';
import { createJobFiles } from '../kit/job-files.ts';
import { jobImageProblem } from '../kit/job-image.ts';
import { endUnreported, type JobEnd, jobsOwnFailure, type LateRows, mostTries } from '../kit/job-rows.ts';
import { matches } from '../kit/repository.ts';
import type { Admitted, LatePort, LateVerdict } from './port.ts';

/** A job of this host. */
export interface Held<G, K> {
  readonly job: JobId;
  readonly key: K;
  /** null: of an earlier manager, and begun. */
  readonly given: G | null;
  /** null: undecided, or begun. */
  admission: Admitted | null;
  /** The image of its own; null: its pool's. */
  image: string | null;
  /** Lines for its log. */
  notes: readonly string[];
  /** Whose sandbox is, or was, to run it. */
  agent: AgentId | null;
  /** Why it must never run, until the service knows. */
  verdict: LateVerdict | null;
  hasBegun: boolean;
  /** What its agent said of a failure outside of its script; null: nothing. */
  failedOutside: string | null;
  /** Failed sandboxes. */
  failures: number;
  /** Since when the service says that it is over or cancelled (the clock's `now`); null: it does not. */
  overSince: number | null;
}

export interface JobsParts<G, K> {
  readonly service: string;
  readonly pool: PoolConfig | undefined;
  readonly port: LatePort<G, K>;
  /** Patterns of images that jobs may choose. */
  readonly images: readonly string[];
  readonly files: JobFiles<G, K>;
  readonly rows: LateRows<G>;
  readonly admission: Omit<AdmissionParts, 'trust'>;
  readonly emit: (event: CiEvent) => void;
  readonly log: Log;
}

export type JobFiles<G, K> = ReturnType<typeof openJobFiles<G, K>>;

/** `dir`: of this service alone. Whole until a job begins, and then only what ends it. */
export function openJobFiles<G, K>(dir: string, { schemas: { given, key } }: Pick<LatePort<G, K>, 'schemas'>) {
  return createJobFiles(dir, z.union([z.object({ given }), z.object({ begun: key })]));
}

/** Whether the registry, or at Docker Hub the first part of the name, is written without wildcards. */
function namesSource(pattern: string): boolean {
  return /^[\w.-]+(:\d+\/|[/:@]|$)/.test(pattern);
}

export const jobIdOf = (service: string, id: string): JobId => `${service}-${id}`;

export function createLateJobs<G, K>(parts: JobsParts<G, K>) {
  const { service, pool, port, files, rows, emit, log } = parts;
  const held = new Map<JobId, Held<G, K>>();

  const add = (key: K, given: G | null): Held<G, K> => {
    const job = jobIdOf(service, port.idOf(key));
    const state = { admission: null, image: null, notes: [], agent: null, verdict: null, failures: 0, overSince: null };
    const one: Held<G, K> = { job, key, given, failedOutside: null, ...state, hasBegun: given === null };
    held.set(job, one);
    return one;
  };

  /** It is over, or another's. */
  function forget(one: Held<G, K>, end: JobEnd): void {
    const { failedOutside: note } = one;
    rows.left(one.job, note === null || end.outcome !== 'failed' ? end : { ...end, failedIn: 'runner', note });
    held.delete(one.job);
    files.forget(port.idOf(one.key));
  }

  /** Ends it at the service, unless it is over there. @throws OnejobError E_CI_* */
  async function finish(one: Held<G, K>, verdict: LateVerdict, signal: AbortSignal): Promise<void> {
    forget(one, (await port.end(one.key, verdict, signal)) ?? verdict.end);
  }

  /** Ends it now, or with a later call. */
  async function tell(one: Held<G, K>, signal: AbortSignal): Promise<void> {
    if (one.verdict === null || !held.has(one.job)) return;
    try {
      await finish(one, one.verdict, signal);
    } catch (error) {
      if (!signal.aborted) log.warn('cannot end a job yet', { job: one.job, reason: toFailure(error).message });
    }
  }

  async function end(one: Held<G, K>, verdict: LateVerdict, signal: AbortSignal): Promise<void> {
    one.verdict = verdict;
    rows.note(one.job, verdict.words);
    await tell(one, signal);
  }

  const refused = (why: string): LateVerdict => ({
    words: `this job was refused: ${why}`,
    why: 'refused',
    end: { word: 'refused', outcome: null },
  });
  const unable = (why: string): LateVerdict => ({
    words: `this job could not run: ${why}`,
    why: 'lost',
    end: { word: 'failed', outcome: 'lost' },
  });

  /** Its image, and what to say about it. */
  function imageFor(given: G, { trusted }: Admitted): { readonly image: string | null; readonly note: string | null } {
    const wanted = port.imageOf(given);
    const forced = trusted ? null : (pool?.trust.image ?? null);
    const own = forced ?? pool?.recipe.image ?? null;
    if (wanted === '' || wanted === own || pool === undefined) return { image: null, note: null };
    const problem = jobImageProblem(wanted);
    if (problem !== null) return { image: null, note: `onejob: image ${wanted} is not used: ${problem}.` };
    if (forced === null && pool.runtime !== 'process' && matches(parts.images, wanted)) return { image: wanted, note: null };
    return { image: null, note: `onejob: image ${wanted} is not used: this pool runs its jobs in ${own ?? 'this host itself'}.` };
  }

  /** Only a pattern that names where images come from is a leave to use the password for it, which "**" is not. */
  function imageRights(image: string, trusted: boolean): { readonly publicOnly?: true } {
    return trusted && matches(parts.images.filter(namesSource), image) ? {} : { publicOnly: true };
  }

  const deciding = new Set<JobId>();

  async function decide(one: Held<G, K>, signal: AbortSignal): Promise<void> {
    if (deciding.has(one.job)) return;
    deciding.add(one.job);
    await decideNow(one, signal).finally(() => deciding.delete(one.job));
  }

  async function decideNow(one: Held<G, K>, signal: AbortSignal): Promise<void> {
    const { given } = one;
    if (given === null || pool === undefined) return;
    const whyNot = port.whyNot(given);
    if (whyNot !== null) return end(one, refused(whyNot), signal);
    const about = { ...parts.admission, trust: pool.trust };
    const admission = await admitJob(port.factsOf(given), port.envOf(given), about).catch((error: unknown) => toFailure(error));
    if (!held.has(one.job) || signal.aborted) return;
    if ('retry' in admission) {
      if (!admission.retry) return end(one, unable(admission.message), signal);
      // Not the job's fault; it is asked again with the next look.
      log.warn('cannot decide about a job yet', { job: one.job, reason: admission.message });
      return;
    }
    if (admission.kind === 'refused') {
      log.warn('job refused', { job: one.job, reason: admission.reason });
      return end(one, refused(admission.reason), signal);
    }
    const { image, note } = imageFor(given, admission);
    one.image = image;
    one.notes = [admission.why, note].filter((line) => line !== null);
    one.admission = admission;
    emit({ kind: 'waiting', pool: pool.name });
  }

  return {
    imageRights,
    of: (job: JobId | null): Held<G, K> | null => (job === null ? null : (held.get(job) ?? null)),
    all: (): readonly Held<G, K>[] => [...held.values()],
    /** A job that the service has just given. It is written down before anything else. */
    async take(given: G, signal: AbortSignal): Promise<void> {
      const one = add(port.keyOf(given), given);
      rows.reserved(given, pool?.name ?? '');
      try {
        await files.keep(port.idOf(one.key), { given });
      } catch (error) {
        return end(one, unable(`it could not be written to the state directory: ${toFailure(error).message}`), signal);
      }
      await decide(one, signal);
    },
    /** Those of earlier managers. The service may have given one that waited to somebody else. */
    async resume(signal: AbortSignal): Promise<void> {
      const open = files
        .all()
        .map((found) => ('given' in found ? add(port.keyOf(found.given), found.given) : add(found.begun, null)));
      await Promise.all(
        open.map(async (one) => {
          if (one.hasBegun) return;
          const state = await port.look(one.key, true, signal).catch(() => 'ours' as const);
          if (typeof state === 'object') forget(one, state);
          else await decide(one, signal);
        }),
      );
    },
    decide,
    tell,
    end,
    unable,
    forget,
    finish,
    /** Its script has begun: nothing of it has to be kept but what ends it. */
    async begun(one: Held<G, K>): Promise<void> {
      one.hasBegun = true;
      const id = port.idOf(one.key);
      await files.keep(id, { begun: one.key }).catch((error: unknown) => {
        log.warn('the file of a job stays larger than needed', { job: one.job, reason: toFailure(error).message });
      });
      if (!held.has(one.job)) files.forget(id);
    },
    /** Its sandbox has certainly not begun it. `failure`: what went wrong; null: nothing did. */
    returned(one: Held<G, K>, failure: Failure | null, signal: AbortSignal): void {
      const its = jobsOwnFailure(failure);
      one.agent = null;
      one.failures += its === null ? 0 : 1;
      if (one.overSince !== null) void end(one, unable('it was cancelled.'), signal);
      else if (its !== null && (one.failures >= mostTries || !its.retry)) void end(one, unable(its.message), signal);
      else queueMicrotask(() => emit({ kind: 'waiting', pool: pool?.name ?? '' }));
    },
    /** What becomes of a job whose agent ended without saying it. */
    lost: (words: string, result: JobResult | null): LateVerdict => ({ words, why: 'lost', end: endUnreported(result) }),
  };
}
