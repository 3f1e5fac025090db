/**
 * Gitea's runners for the early engine. Two things no other service needs: a cancelled job of an ephemeral runner continues, because the
 * cancel removes the registration by which the runner would hear of it, so onejob ends its agent; and a job whose sandbox died would
 * hang for 10 to 15 minutes, so onejob writes its last words with the runner's own key, and ends it.
 */

import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId, Exit, StopReason } from '../../core/slot.ts';
import { type AgentContext, type CiEvent, foreignPool } from '../../ports/ci-service.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import type { Draft, Entry, EntryKey, Queue, Registry, Remote, RemoteJob, Shown } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import type { GiteaClient } from './client.ts';
import { endTask } from './last-words.ts';
import type { GiteaParts } from './parts.ts';
import { giteaScript } from './script.ts';
import { labelsOf } from './type.ts';
import { failedIn, type GiteaJob, giteaEnd, outsideScript, type Runner, repositoryOf, type WorkflowRun } from './wire.ts';

/** ms: how long a runner may live on without its job, and without a registration. */
const [tidying, ghostly] = [60_000, 15_000];
/** ms in which a job shows up that the server was giving a runner while it was disabled. */
const picking = 1_000;
/** ms that a cancelled job may take to end: its runner can report nothing any more, and would try that for a minute. */
const cancelGrace = 1_000;
/** How many runs, and agents with what is known of them, are remembered. */
const remembered = 1_000;

interface Known {
  /** Its job at the last look that showed it. */
  job: GiteaJob | null;
  /** Its job, as it was when it was over. */
  ended: GiteaJob | null;
  /** Task that its runner has begun, by the runner's own log. */
  task: number | null;
  /** Why it was told to end. */
  why: StopReason | null;
  /** What onejob wrote into the log of its job, which it ended. */
  words: string | null;
  /** It gets no more jobs, and one that was being picked for it shows. */
  isClosed: boolean;
  /** Its sandbox is gone, and it has no job that is not over: another look would only cost its server time. */
  isOver: boolean;
  /** Since when it has had neither registration nor job, or a job that is over; core clock, ms. */
  uselessSince: number | null;
}

export class GiteaRegistry implements Registry {
  readonly #parts: GiteaParts;
  readonly #registrations: Registrations;
  readonly places: Places;
  readonly #runs: Runs;
  readonly #tokens = new Map<string, string>();
  readonly #agents = new Map<AgentId, Known>();
  /** Jobs that runners have, by place and then by runner, as the newest look shows them. */
  readonly #looked = new Map<string, ReadonlyMap<string, GiteaJob>>();

  constructor(parts: GiteaParts, registrations: Registrations) {
    this.#parts = parts;
    this.#registrations = registrations;
    this.places = createPlaces(this.#parts.client, this.#parts.config.url);
    this.#runs = createRuns(this.#parts.client);
  }

  async list({ name, pools: served }: Queue, signal: AbortSignal): Promise<Shown> {
    const place = await this.places.find(name, signal);
    const [runners, running, queued] = await Promise.all([
      this.#parts.client.runners(place, signal),
      this.#working(place, signal),
      this.#parts.client.jobs(place, 'queued', signal),
    ]);
    this.#looked.set(place, new Map(running.map((job) => [String(job.runner_id), job])));
    const pools = this.#parts.pools.filter((pool) => served.includes(pool.name));
    const isIn = (labels: readonly string[]) => (job: GiteaJob) => job.labels.every((label) => labels.includes(label));
    const fits = (job: GiteaJob) => pools.filter((pool) => isIn(labelsOf(pool))(job));
    const isForOthers = (job: GiteaJob) => runners.some(({ labels }) => isIn(labels)(job));
    return {
      place,
      title: this.places.titleOf(name),
      entries: runners.map((one) => this.#entryOf(place, one, running)),
      unfinished: [...running, ...queued].map((job) => jobIdOf(this.#parts.config.name, job)),
      waiting: queued.map((job) => ({
        job: this.#remoteJob(job),
        pools: fits(job).map(({ name }) => name),
        isForOthers: isForOthers(job),
      })),
    };
  }

  async create(context: AgentContext, name: string, signal: AbortSignal): Promise<Draft> {
    const pool = this.#parts.pools.find((one) => one.name === context.pool);
    if (pool === undefined) throw foreignPool(this.#parts.config.name, context.pool);
    const place = await this.places.find(pool.queue, signal);
    const labels = labelsOf(pool);
    const version = this.#parts.program.state.kind === 'ready' ? this.#parts.program.state.version : 'unknown';
    const register = async (inner: AbortSignal) => {
      const token = this.#tokens.get(place) ?? (await this.#parts.client.registrationToken(place, inner));
      this.#tokens.set(place, token);
      const made = await this.#parts.client.register({ name, token, labels, version }, inner);
      if (made === null) this.#tokens.delete(place);
      return made;
    };
    return {
      place,
      create: async (inner) => {
        // Somebody may have reset the registration token.
        const made = (await register(inner)) ?? (await register(inner));
        if (made === null) {
          const message = `Cannot register runner ${name}: ${this.#parts.config.url} does not accept the registration token that it has just made.`;
          throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob tries again.', retry: true });
        }
        this.#parts.keys.keep(context.agent, made);
        const { url } = this.#parts.config;
        const { workspace } = context;
        const hasEngine = pool.recipe.containers !== undefined;
        const script = giteaScript({ ...made, name, url, labels, workspace, timeout: pool.timeout, hasEngine });
        return { id: String(made.id), script, files: null };
      },
    };
  }

  async find(which: EntryKey, signal: AbortSignal): Promise<Entry | null> {
    const { place } = which;
    const runner =
      'id' in which
        ? await this.#parts.client.runner(place, which.id, signal)
        : ((await this.#parts.client.runners(place, signal)).find(({ name }) => name === which.name) ?? null);
    return runner === null ? null : this.#entryOf(place, runner, await this.#working(place, signal));
  }

  /** The server would remove a runner with a job, too, and let the job hang. */
  async remove(remote: Remote, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
    const { place, id } = remote;
    const agent = this.#agentAt(remote);
    const job = agent !== undefined && this.#agents.get(agent)?.isOver === true ? null : await this.#currentJob(remote, signal);
    if (job !== null && (agent === undefined || !(await this.#speakFor(agent, job, signal)))) return 'busy';
    const answer = await this.#parts.client.deleteRunner(place, id, signal);
    if (agent !== undefined) this.#parts.keys.forget(agent);
    return answer;
  }

  /** Keeps jobs from a runner, or allows them again. A job that is being picked for it shows up after the answer. */
  async disable(remote: Remote, disabled: boolean, signal: AbortSignal): Promise<'done' | 'absent'> {
    const answer = await this.#parts.client.setDisabled(remote.place, remote.id, disabled, signal);
    if (disabled && answer === 'done') await sleep(this.#parts.clock, picking, signal);
    signal.throwIfAborted();
    const agent = this.#agentAt(remote);
    if (agent !== undefined) this.#knownOf(agent).isClosed = disabled;
    return answer;
  }

  async lastJob(remote: Remote, signal: AbortSignal): Promise<RemoteJob | null> {
    const known = this.#knownOf(this.#agentAt(remote) ?? '');
    const { job, task, isOver, ended: last } = known;
    if (last !== null) return this.#remoteJob(last, known);
    const current = isOver ? null : await this.#currentJob(remote, signal);
    const agent = this.#agentAt(remote);
    // Its agent is long gone: this ends it, and its result is known.
    const isLeft = current !== null && agent !== undefined && this.#parts.slots.poolOf(agent) === null;
    if (isLeft && (await this.#speakFor(agent, current, signal)))
      return this.#remoteJob((await this.#again(current, signal)) ?? current, known);
    if (current !== null) return this.#remoteJob(current, known);
    const found = job === null ? null : await this.#again(job, signal);
    if (found !== null) return this.#remoteJob(found, known);
    // A runner says in its log when it begins a task: without that, there was none.
    if (job === null && task === null) return null;
    const ended = (await this.#parts.client.endedJobs(remote.place, signal)).find(
      ({ runner_id }) => runner_id === Number(remote.id),
    );
    if (ended !== undefined) return this.#remoteJob(ended, known);
    throw new OnejobError('E_CI_ANSWER', `${this.#parts.config.url} does not say which job runner ${remote.id} had.`, {
      retry: true,
    });
  }

  async follow({ place, entries }: Shown, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const there = new Set(entries.map(({ id }) => id));
    for (const { agent, place: its, remote: id } of this.#registrations.open()) {
      if (its !== place || id === null || this.#parts.slots.poolOf(agent) === null) continue;
      const known = this.#knownOf(agent);
      const job = this.#looked.get(place)?.get(id);
      known.job = job ?? known.job;
      if (job !== undefined || (there.has(id) && known.job === null)) {
        known.uselessSince = null;
        continue;
      }
      try {
        await this.#afterJob(agent, { place, id }, known, emit, signal);
      } catch (error) {
        signal.throwIfAborted();
        this.#parts.log.warn('failed to find out whether an agent still has its job', { agent, reason: toFailure(error).message });
      }
    }
    // Asked for now: an agent may have been registered meanwhile.
    this.#parts.keys.retain(new Set(this.#registrations.open().map(({ agent }) => agent)));
  }

  /** An agent whose registration or job no longer shows. */
  async #afterJob(
    agent: AgentId,
    remote: Remote,
    known: Known,
    emit: (event: CiEvent) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { job } = known;
    const seen = job === null ? null : await this.#again(job, signal);
    if (seen !== null && seen.status !== 'completed') return;
    // Without its repository, its runner is gone too; a job that is only hidden continues.
    if (job !== null && seen === null && (await this.#parts.client.runner(remote.place, remote.id, signal)) !== null) return;
    if (job !== null && (seen === null || seen.conclusion === null || seen.conclusion === 'cancelled')) {
      emit({ kind: 'cancel', agent, job: jobIdOf(this.#parts.config.name, job), grace: cancelGrace });
      return;
    }
    known.uselessSince ??= this.#parts.clock.now();
    if (this.#parts.clock.now() - known.uselessSince < (job === null ? ghostly : tidying)) return;
    if (job === null && (await this.#parts.client.runner(remote.place, remote.id, signal)) !== null) return;
    if (job === null && (await this.#currentJob(remote, signal)) !== null) return;
    const why = job === null ? 'its runner was removed at the server' : 'its job is over';
    this.#parts.log.warn('onejob ends an agent that can get no job any more', { agent, why });
    emit({ kind: 'jobDone', agent });
  }

  /** Ends the job that an agent left behind; its sandbox is gone. */
  async bury(agent: AgentId, signal: AbortSignal): Promise<void> {
    const remote = this.#registrations.remoteOf(agent);
    if (remote === null) return;
    const known = this.#knownOf(agent);
    const seen = known.job === null ? null : await this.#again(known.job, signal);
    // It may be getting one right now. A runner that is absent has had its job, or was removed.
    if (seen === null && !known.isClosed && (await this.disable(remote, true, signal)) === 'absent') {
      known.isOver = true;
      return;
    }
    const job = seen === null ? await this.#currentJob(remote, signal) : seen.status === 'completed' ? null : seen;
    if (seen?.status === 'completed') known.ended = seen;
    if (job !== null) known.job = job;
    if (job === null || (await this.#speakFor(agent, job, signal))) known.isOver = true;
    else
      this.#parts.log.warn('a job hangs until its server gives it up, because its agent is gone', {
        agent,
        job: job.html_url ?? job.id,
      });
  }

  /** A line of the runner's own log. A job may forge it, but only names a task that is not its own. */
  heard(agent: AgentId, line: string): void {
    const task = /\btask (\d{1,15}) repo is \S/.exec(line)?.[1];
    if (task !== undefined) this.#knownOf(agent).task ??= Number(task);
  }

  isEnding(agent: AgentId, why: StopReason): void {
    this.#knownOf(agent).why ??= why;
  }

  forget(agent: AgentId): void {
    this.#agents.delete(agent);
  }

  #knownOf(agent: AgentId): Known {
    const found = this.#agents.get(agent) ?? {
      job: null,
      ended: null,
      task: null,
      why: null,
      words: null,
      isClosed: false,
      isOver: false,
      uselessSince: null,
    };
    this.#agents.delete(agent);
    this.#agents.set(agent, found);
    for (const old of [...this.#agents.keys()].slice(0, -remembered)) this.#agents.delete(old);
    return found;
  }

  #remoteJob(job: GiteaJob, how: How = alive) {
    return jobOf(job, this.#parts.config.name, this.#runs, how);
  }

  #entryOf(place: string, { id, name, status }: Runner, jobs: readonly GiteaJob[]): Entry {
    const job = jobs.find(({ runner_id }) => runner_id === id);
    const state = status === 'online' || status === 'offline' ? status : null;
    return { place, id: String(id), name, status: state, job: job === undefined ? null : this.#remoteJob(job) };
  }

  #working(place: string, signal: AbortSignal) {
    return this.#parts.client.jobs(place, 'in_progress', signal);
  }

  /** The job that the runner has and that is not over. */
  async #currentJob({ place, id }: Remote, signal: AbortSignal): Promise<GiteaJob | null> {
    return (await this.#working(place, signal)).find(({ runner_id }) => runner_id === Number(id)) ?? null;
  }

  /** The runner's try of the job as it is now; null: the job is gone, or nobody knows its repository. */
  async #again(job: GiteaJob, signal: AbortSignal): Promise<GiteaJob | null> {
    const repository = repositoryOf(job);
    const now = repository === null ? null : await this.#parts.client.job(repository, job.id, signal);
    // It is run again, so this try is over. Nobody tells how.
    if (now !== null && now.runner_id !== job.runner_id) return { ...job, status: 'completed', conclusion: null };
    return now;
  }

  #agentAt({ place, id }: Remote): AgentId | undefined {
    return this.#registrations.open().find((one) => one.place === place && one.remote === id)?.agent;
  }

  /** Ends the job of an agent that is gone, with the reason in its log. Whether it could. */
  async #speakFor(agent: AgentId, job: GiteaJob, signal: AbortSignal): Promise<boolean> {
    const key = this.#parts.keys.of(agent);
    const repository = repositoryOf(job);
    if (key === null || repository === null) return false;
    const known = this.#knownOf(agent);
    const { task: heard, why } = known;
    const words = lastWords(why, this.#parts.exitOf(agent));
    const tell = async (task: number): Promise<boolean> => {
      const isEnded = await endTask(this.#parts, { key, task, words }, signal);
      if (isEnded) known.words = words;
      return isEnded;
    };
    if (heard !== null && (await tell(heard))) return true;
    for (const task of await this.#parts.client.runningTasks(repository, signal))
      if (task !== heard && (await tell(task))) return true;
    return false;
  }
}

/** Why a job ended that did not say so itself, for its log. */
function lastWords(why: StopReason | null, exit: Exit | null): string {
  switch (why) {
    case 'timeout':
      return 'the job was ended: it ran longer than the pool allows.';
    case 'disk':
      return 'the job was ended: its files exceeded what the pool allows.';
    case 'cancelled':
      return 'the job was cancelled.';
    case 'shutdown':
      return 'the job was ended, because its host stopped onejob. Run it again.';
    case 'taken':
      return 'the job was ended, because the cloud ended its machine. Run it again.';
    case 'renewal':
    case 'unreleased':
    case null:
      break;
  }
  switch (exit?.kind) {
    case 'oom':
      return 'the sandbox was killed: out of memory.';
    case 'code':
      // 128 and a signal.
      if (exit.code === 137 || exit.code === 143) return `the sandbox was killed (exit code ${exit.code}).`;
      return `the runner ended with exit code ${exit.code} before it reported a result.`;
    case 'signal':
      return `the sandbox was killed by ${exit.signal}.`;
    case 'lost':
      return `the sandbox was lost: ${exit.reason}.`;
    case undefined:
      return 'the sandbox is gone, and nobody knows why.';
  }
}

/** `service`: its name in the config. A job that waits has not been counted up yet. */
function jobIdOf(service: string, { id, status, run_attempt: tries }: Pick<GiteaJob, 'id' | 'status' | 'run_attempt'>): string {
  const attempt = status === 'queued' ? tries + 1 : tries;
  return attempt > 1 ? `${service}-${id}-${attempt}` : `${service}-${id}`;
}

type How = Pick<Known, 'why' | 'words'>;
/** Of an agent that nobody told to end, and whose job onejob did not end. */
const alive: How = { why: null, words: null };

/** Where a job failed, and what onejob knows of that. */
function failureOf(job: GiteaJob, { why, words }: How): Pick<ServiceJob, 'failedIn' | 'note'> {
  if (giteaEnd(job.conclusion) !== 'failed') return { failedIn: null, note: null };
  const note = words === null ? null : `onejob ended this job: ${words}`;
  // Its own limits, which onejob watches.
  if (why === 'timeout' || why === 'disk') return { failedIn: 'script', note };
  if (words !== null) return { failedIn: 'runner', note };
  const where = failedIn(job);
  return { failedIn: where, note: where === 'runner' ? outsideScript : null };
}

function jobOf(job: GiteaJob, service: string, runs: Runs, how: How): RemoteJob {
  const { status, conclusion, runner_id } = job;
  return {
    id: jobIdOf(service, job),
    state: status === 'completed' ? 'done' : runner_id === undefined || runner_id === null ? 'waiting' : 'running',
    facts() {
      const run = runs.known(job.run_id);
      const file = /([^/@]+)(@[^@]*)?$/.exec(run?.path ?? '')?.[1] ?? null;
      const number = /\/actions\/runs\/(\d+)/.exec(job.html_url ?? '')?.[1] ?? null;
      return {
        title: [file, number === null ? null : `#${number}`, job.name].filter((part) => part !== null).join(' '),
        definition: file,
        build: number,
        repository: repositoryOf(job),
        branch: job.head_branch,
        reason: run?.event ?? null,
        link: job.html_url,
        demands: job.labels,
        result: conclusion,
        outcome: giteaEnd(conclusion),
        ...failureOf(job, how),
        queuedAt: job.created_at,
        startedAt: job.started_at,
        endedAt: job.completed_at,
      };
    },
    ...(runs.known(job.run_id) === undefined && { describe: (signal) => runs.read(job, signal) }),
  };
}

/** Runs of jobs, each read once, for people only. */
function createRuns(client: GiteaClient) {
  const runs = new Map<number, WorkflowRun | null>();
  return {
    known: (run: number) => runs.get(run),
    /** Whether it could be read. */
    async read(job: GiteaJob, signal: AbortSignal): Promise<boolean> {
      const repository = repositoryOf(job);
      if (repository === null) return false;
      runs.set(job.run_id, await client.run(repository, job.run_id, signal));
      for (const old of [...runs.keys()].slice(0, -remembered)) runs.delete(old);
      return runs.get(job.run_id) !== null;
    },
  };
}
type Runs = ReturnType<typeof createRuns>;

/** Whose runners and jobs a queue means: asked once. */
export function createPlaces(client: PlaceClient, url: string) {
  const known = new Map<string, string>();
  return {
    titleOf: (queue: string) => (queue === '*' ? 'the instance' : queue),
    /** @throws OnejobError E_CI_POOL when it is neither an organisation nor the token's own user */
    async find(queue: string, signal: AbortSignal): Promise<string> {
      // Names have no case there.
      const name = queue.toLowerCase();
      const place = known.get(name) ?? (await placeOf(client, url, name, signal));
      known.set(name, place);
      return place;
    },
  };
}
export type Places = ReturnType<typeof createPlaces>;

type PlaceClient = Pick<GiteaClient, 'hasOrganisation' | 'hasRepository' | 'user'>;

async function placeOf(client: PlaceClient, url: string, queue: string, signal: AbortSignal): Promise<string> {
  if (queue === '*') return 'admin';
  if (queue.includes('/')) {
    if (await client.hasRepository(queue, signal)) return `repos/${queue}`;
    const hint = 'Fix "queue" in the config, or give the token the scope write:repository and its owner access.';
    throw new OnejobError('E_CI_POOL', `Cannot run jobs of "${queue}": ${url} shows no such repository to this token.`, { hint });
  }
  let denied: unknown = null;
  const isOrganisation = await client.hasOrganisation(queue, signal).catch((error: unknown) => {
    // A token for its own user has no scope for organisations.
    if (!hasCode(error, 'E_CI_DENIED')) throw error;
    denied = error;
    return false;
  });
  if (isOrganisation) return `orgs/${queue}`;
  const user = await client.user(signal);
  if (user?.toLowerCase() === queue) return 'user';
  if (denied !== null) throw denied;
  throw new OnejobError('E_CI_POOL', `Cannot run jobs of "${queue}": ${url} shows no organisation with that name to this token.`, {
    hint: 'Write an organisation, a repository such as acme/app, or "*" for the whole instance as "queue"; the token needs the scopes write:organization and read:repository for an organisation.',
  });
}
