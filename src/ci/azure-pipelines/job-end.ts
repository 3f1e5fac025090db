/**
 * Where a failed job of Azure Pipelines failed: a job is blamed only if a step of its pipeline failed. The timeline of its build shows
 * that, also the steps that the agent adds itself, which have no task (agent, `JobExtension.cs`), and the checkout.
 */
import { hasCode } from '../../base/errors.ts';
import type { FailedIn } from '../../core/job-end.ts';
import { brief } from '../../http/exchange.ts';
import type { AzureClient } from './client.ts';
import type { JobRequest, TimelineRecord } from './wire.ts';

export interface JobEnd {
  readonly failedIn: FailedIn;
  /** What failed outside of its script, and what to do, as sentences; null: its script failed. */
  readonly note: string | null;
}

/** How the agent names it itself, since the service has no task of that id. */
const checkout = '6d15af64-176c-496d-b583-fd2ae21d4df4';
const lost = /stopped hearing from agent|lost communication/i;

const isPipelines = ({ task }: TimelineRecord): boolean =>
  task !== null && task.id?.toLowerCase() !== checkout && task.name?.toLowerCase() !== 'checkout';

/** null: the timeline does not show the end of this job. */
export function endIn(records: readonly TimelineRecord[], jobId: string): JobEnd | null {
  const job = records.find(({ id }) => id.toLowerCase() === jobId.toLowerCase());
  if (job === undefined || job.state !== 'completed') return null;
  const failed = records.filter(
    ({ type, parentId, result }) => type === 'Task' && result === 'failed' && parentId?.toLowerCase() === job.id.toLowerCase(),
  );
  const said = errorsOf(job);
  if (said !== null && lost.test(said)) return { failedIn: 'runner', note: `Azure Pipelines lost its agent: ${stop(said)}` };
  if (failed.some(isPipelines)) return { failedIn: 'script', note: null };
  const [first] = failed;
  if (first !== undefined) return { failedIn: 'runner', note: whyOutside(first) };
  const why = said === null ? '' : `: ${stop(said)}`;
  return { failedIn: 'runner', note: `No step of its pipeline failed, as Azure Pipelines shows it${why === '' ? '.' : why}` };
}

function whyOutside(step: TimelineRecord): string {
  const name = step.name ?? 'a step without a name';
  const said = errorsOf(step);
  const what = `Its agent failed at "${brief(name)}", which is not a step of its script`;
  const why = said === null ? '. The log of that step says why.' : `: ${stop(said)}`;
  if (!/^initiali[sz]e containers$/i.test(name)) return what + why;
  return `${what}${why} "container:" and "services:" in a pipeline want an Engine, and sandboxes have none: name the image in the pool instead.`;
}

function errorsOf({ issues }: TimelineRecord): string | null {
  const error = issues.find(({ type, message }) => type?.toLowerCase() === 'error' && message !== null);
  return error?.message == null ? null : brief(error.message);
}

const stop = (sentence: string): string => (/[.!?…]$/.test(sentence) ? sentence : `${sentence}.`);

const remembered = 256;
/** How often onejob asks for the end of one job. */
const tries = 4;

/** The ends of failed jobs. `service`: its name in the config. Never asked for again in a project where the credential turned out to have no right to it. */
export class JobEnds {
  readonly #client: Pick<AzureClient, 'timeline'>;
  readonly #service: string;
  readonly #read = new Map<number, { readonly end: JobEnd | null; readonly left: number }>();
  readonly #denied = new Set<string>();

  constructor(client: Pick<AzureClient, 'timeline'>, service: string) {
    this.#client = client;
    this.#service = service;
  }

  /** Whether it is worth asking for. */
  isOpen(request: JobRequest): boolean {
    const { end, left } = this.#read.get(request.requestId) ?? { end: null, left: tries };
    const place = placeOf(request);
    return place !== null && !this.#denied.has(place.project) && end === null && left > 0;
  }

  /** Whether the service said it. */
  async ask(request: JobRequest, signal: AbortSignal): Promise<boolean> {
    const place = placeOf(request);
    if (place === null || !this.isOpen(request)) return false;
    const { jobId, project, build } = place;
    const left = (this.#read.get(request.requestId)?.left ?? tries) - 1;
    let end: JobEnd | null = null;
    try {
      end = endIn((await this.#client.timeline(project, build, signal)) ?? [], jobId);
    } catch (error) {
      signal.throwIfAborted();
      if (hasCode(error, 'E_CI_DENIED')) this.#denied.add(project);
    }
    this.#read.set(request.requestId, { end, left });
    for (const old of [...this.#read.keys()].slice(0, -remembered)) this.#read.delete(old);
    return end !== null;
  }

  /** For a job that has failed. */
  of(request: JobRequest): { readonly failedIn: FailedIn | null; readonly note: string } | JobEnd {
    const end = this.#read.get(request.requestId)?.end ?? null;
    if (end !== null) return end;
    const note = `Azure Pipelines shows no steps of it to the credential of ${this.#service}, so nobody knows whether its script failed.`;
    return {
      failedIn: null,
      note: this.#denied.has(request.scopeId ?? '') ? `${note} Give the credential the scope Build (Read).` : note,
    };
  }

  /** Whether the credential lacks the right to it, in any project. */
  get isDenied() {
    return this.#denied.size > 0;
  }
}

function placeOf({ result, jobId, scopeId, planType, owner }: JobRequest) {
  const isBuild = planType === null || planType === 'Build';
  if (result !== 'failed' || jobId === null || scopeId === null || owner === null || !isBuild) return null;
  return { jobId, project: scopeId, build: owner.id };
}
