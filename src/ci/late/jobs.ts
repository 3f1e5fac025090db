/**
 * The jobs that the service has given to this host: written down, decided before there is a sandbox, offered to slots, and ended at the
 * service, with the reason in their log, where their own agent does not do it.
 */
import { z } from 'zod';
import { type Failure, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import { hasImages } from '../../config/types.ts';
import type { AgentId, JobId, JobResult } from '../../core/slot.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { type AdmissionParts, admitJob } from '../kit/admission.ts';
import { createJobFiles, type JobFiles } from '../kit/job-files.ts';
import { jobImageProblem } from '../kit/job-image.ts';
import { endUnreported, type JobEnd, jobsOwnFailure, type LateRows, mostTries } from '../kit/job-rows.ts';
import { matches } from '../kit/repository.ts';
import type { Admitted, LatePort, LateVerdict } from './port.ts';

/** A job of this host. */
export interface LateJob<G, K> {
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
  /** The exit code of its script, as its agent said it; null: it did not. */
  exit: string | null;
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
  readonly files: LateJobFiles<G, K>;
  readonly rows: LateRows<G>;
  readonly admission: Omit<AdmissionParts, 'trust' | 'containers'>;
  readonly emit: (event: CiEvent) => void;
  readonly log: Log;
}

/** The jobs of a service on disk: whole until one begins, and then only what ends it. */
export type LateJobFiles<G, K> = JobFiles<{ given: G } | { begun: K }>;

/** `dir`: of this service alone. */
export function openJobFiles<G, K>(dir: string, { schemas: { given, key } }: Pick<LatePort<G, K>, 'schemas'>): LateJobFiles<G, K> {
  return createJobFiles(dir, z.union([z.object({ given }), z.object({ begun: key })]));
}

/** Whether the registry, or at Docker Hub the first part of the name, is written without wildcards. */
function namesSource(pattern: string): boolean {
  return /^[\w.-]+(:\d+\/|[/:@]|$)/.test(pattern);
}

export const jobIdOf = (service: string, id: string): JobId => `${service}-${id}`;

export class LateJobs<G, K> {
  readonly #parts: JobsParts<G, K>;
  readonly #jobs = new Map<JobId, LateJob<G, K>>();
  readonly #deciding = new Set<JobId>();

  constructor(parts: JobsParts<G, K>) {
    this.#parts = parts;
  }

  /** It is over, or another's. */
  forget(one: LateJob<G, K>, end: JobEnd): void {
    const { failedOutside: note, exit } = one;
    const failed =
      note !== null ? { failedIn: 'runner' as const, note } : exit !== null ? { word: `${end.word} (exit ${exit})` } : {};
    this.#parts.rows.left(one.job, end.outcome === 'failed' ? { ...end, ...failed } : end);
    this.#jobs.delete(one.job);
    this.#parts.files.forget(this.#parts.port.idOf(one.key));
  }

  /** Ends it at the service, unless it is over there. @throws OnejobError E_CI_* */
  async finish(one: LateJob<G, K>, verdict: LateVerdict, signal: AbortSignal): Promise<void> {
    this.forget(one, (await this.#parts.port.end(one.key, verdict, signal)) ?? verdict.end);
  }

  /** Ends it now, or with a later call. */
  async tell(one: LateJob<G, K>, signal: AbortSignal): Promise<void> {
    if (one.verdict === null || !this.#jobs.has(one.job)) return;
    try {
      await this.finish(one, one.verdict, signal);
    } catch (error) {
      if (!signal.aborted) this.#parts.log.warn('cannot end a job yet', { job: one.job, reason: toFailure(error).message });
    }
  }

  async end(one: LateJob<G, K>, verdict: LateVerdict, signal: AbortSignal): Promise<void> {
    one.verdict = verdict;
    this.#parts.rows.note(one.job, verdict.words);
    await this.tell(one, signal);
  }

  unable(why: string): LateVerdict {
    return {
      words: `this job could not run: ${why}`,
      why: 'lost',
      end: { word: 'failed', outcome: 'lost' },
    };
  }

  /** Only a pattern that names where images come from is a leave to use the password for it, which "**" is not. */
  imageRights(image: string, trusted: boolean): { readonly publicOnly?: true } {
    return trusted && matches(this.#parts.images.filter(namesSource), image) ? {} : { publicOnly: true };
  }

  async decide(one: LateJob<G, K>, signal: AbortSignal): Promise<void> {
    if (this.#deciding.has(one.job)) return;
    this.#deciding.add(one.job);
    await this.#decideNow(one, signal).finally(() => this.#deciding.delete(one.job));
  }

  of(job: JobId | null): LateJob<G, K> | null {
    return job === null ? null : (this.#jobs.get(job) ?? null);
  }

  all(): readonly LateJob<G, K>[] {
    return [...this.#jobs.values()];
  }

  /** A job that the service has just given. It is written down before anything else. */
  async take(given: G, signal: AbortSignal): Promise<void> {
    const one = this.#add(this.#parts.port.keyOf(given), given);
    this.#parts.rows.reserved(given, this.#parts.pool?.name ?? '');
    try {
      await this.#parts.files.keep(this.#parts.port.idOf(one.key), { given });
    } catch (error) {
      return this.end(one, this.unable(`it could not be written to the state directory: ${toFailure(error).message}`), signal);
    }
    await this.decide(one, signal);
  }

  /** Those of earlier managers. The service may have given one that waited to somebody else. */
  async resume(signal: AbortSignal): Promise<void> {
    const open = this.#parts.files
      .all()
      .map((found) =>
        'given' in found ? this.#add(this.#parts.port.keyOf(found.given), found.given) : this.#add(found.begun, null),
      );
    // Without its file nobody can run it, or end it.
    for (const { id } of this.#parts.rows.list()) if (!this.#jobs.has(id)) this.#parts.rows.left(id, null);
    await Promise.all(
      open.map(async (one) => {
        if (one.hasBegun) return;
        const state = await this.#parts.port.look(one.key, true, signal).catch(() => 'ours' as const);
        if (typeof state === 'object') this.forget(one, state);
        else await this.decide(one, signal);
      }),
    );
  }

  /** Its script has begun: nothing of it has to be kept but what ends it. */
  async begun(one: LateJob<G, K>): Promise<void> {
    one.hasBegun = true;
    const id = this.#parts.port.idOf(one.key);
    await this.#parts.files.keep(id, { begun: one.key }).catch((error: unknown) => {
      this.#parts.log.warn('the file of a job stays larger than needed', { job: one.job, reason: toFailure(error).message });
    });
    if (!this.#jobs.has(one.job)) this.#parts.files.forget(id);
  }

  /** Its sandbox has certainly not begun it. `failure`: what went wrong; null: nothing did. */
  returned(one: LateJob<G, K>, failure: Failure | null, signal: AbortSignal): void {
    const its = jobsOwnFailure(failure);
    one.agent = null;
    one.failures += its === null ? 0 : 1;
    if (one.overSince !== null) void this.end(one, this.unable('it was cancelled.'), signal);
    else if (its !== null && (one.failures >= mostTries || !its.retry)) void this.end(one, this.unable(its.message), signal);
    else queueMicrotask(() => this.#parts.emit({ kind: 'waiting', pool: this.#parts.pool?.name ?? '' }));
  }

  /** What becomes of a job whose agent ended without saying it. */
  lost(words: string, result: JobResult | null): LateVerdict {
    return { words, why: 'lost', end: endUnreported(result) };
  }

  #add(key: K, given: G | null): LateJob<G, K> {
    const job = jobIdOf(this.#parts.service, this.#parts.port.idOf(key));
    const state = { admission: null, image: null, notes: [], agent: null, verdict: null, failures: 0, overSince: null };
    const one: LateJob<G, K> = { job, key, given, failedOutside: null, exit: null, ...state, hasBegun: given === null };
    this.#jobs.set(job, one);
    return one;
  }

  #refused(why: string): LateVerdict {
    return {
      words: `this job was refused: ${why}`,
      why: 'refused',
      end: { word: 'refused', outcome: null },
    };
  }

  /** Its image, and what to say about it. */
  #imageFor(given: G, admitted: Admitted): { readonly image: string | null; readonly note: string | null } {
    const wanted = this.#parts.port.imageOf(given, admitted);
    const forced = admitted.trusted ? null : (this.#parts.pool?.trust.image ?? null);
    const own = forced ?? this.#parts.pool?.recipe.image ?? null;
    if (wanted === '' || wanted === own || this.#parts.pool === undefined) return { image: null, note: null };
    const problem = jobImageProblem(wanted);
    if (problem !== null) return { image: null, note: `onejob: image ${wanted} is not used: ${problem}.` };
    if (forced === null && hasImages(this.#parts.pool) && matches(this.#parts.images, wanted)) return { image: wanted, note: null };
    return { image: null, note: `onejob: image ${wanted} is not used: this pool runs its jobs in ${own ?? 'this host itself'}.` };
  }

  async #decideNow(one: LateJob<G, K>, signal: AbortSignal): Promise<void> {
    const { given } = one;
    if (given === null || this.#parts.pool === undefined) return;
    const { trust, recipe } = this.#parts.pool;
    const about = { ...this.#parts.admission, trust, containers: recipe.containers !== undefined };
    const admission = await admitJob(this.#parts.port.factsOf(given), this.#parts.port.envOf(given), about).catch(
      (error: unknown) => toFailure(error),
    );
    if (!this.#jobs.has(one.job) || signal.aborted) return;
    if ('retry' in admission) {
      if (!admission.retry) return this.end(one, this.unable(admission.message), signal);
      // Not the job's fault; it is asked again with the next look.
      this.#parts.log.warn('cannot decide about a job yet', { job: one.job, reason: admission.message });
      return;
    }
    if (admission.kind === 'refused') {
      this.#parts.log.warn('job refused', { job: one.job, reason: admission.reason });
      return this.end(one, this.#refused(admission.reason), signal);
    }
    const whyNot = this.#parts.port.whyNot(given, admission);
    if (whyNot !== null) return this.end(one, this.#refused(whyNot), signal);
    const { image, note } = this.#imageFor(given, admission);
    one.image = image;
    one.notes = [admission.why, note].filter((line) => line !== null);
    one.admission = admission;
    this.#parts.emit({ kind: 'waiting', pool: this.#parts.pool.name });
  }
}
