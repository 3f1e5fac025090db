/**
 * GitHub's runners for the early engine. The list of runners says who is busy, but not with what: the script in front of each job tells
 * that, and the runner itself how the job ended.
 */
import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId } from '../../core/slot.ts';
import { type AgentContext, type CiEvent, foreignPool } from '../../ports/ci-service.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { jsonOf } from '../../system/json.ts';
import type { Draft, Entry, EntryKey, JobFacts, Queue, Registry, Remote, RemoteJob, Shown } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { askForEnd } from '../early/settling.ts';
import { type AgentFacts, type AgentNews, isEnded, jobFactsOf, learn, leftOf, noFacts, unsettledOf } from './agent-facts.ts';
import type { GithubClient } from './client.ts';
import { failedIn, whyOutside } from './job-end.ts';
import { deviceLabels, isDeviceLabel } from './labels.ts';
import type { GithubParts } from './parts.ts';
import type { SetJob, SetPool } from './scale-sets.ts';
import { githubScript, jobMark, mountedAt, runnerIn } from './script.ts';
import { sharedFolder } from './shared-files.ts';
import { githubPlace, labelsOf } from './type.ts';
import { createWaitingJobs, placesOf } from './waiting-jobs.ts';
import { type GithubJob, hookNews, type JobEvent, type Runner } from './wire.ts';

/** ms: how long a runner may live on after its job, and without a registration. */
const [tidying, ghostly] = [120_000, 60_000];
/** ms after which a right that was missing may have been granted. */
const rightsMayCome = 600_000;
/** How often GitHub is asked for an agent's job that it does not show. */
const mostTries = 3;
/** How many agents are remembered with what is known of them. */
const remembered = 1_000;

interface Known {
  facts: AgentFacts;
  /** How often GitHub was asked for its job in vain. */
  tries: number;
  /** Since when looks do not show its runner, or since it was asked for; core clock, ms. */
  goneSince: number | null;
}

/** `closing`: aborts when the manager ends. */
export class GithubRegistry implements Registry {
  readonly #parts: GithubParts;
  readonly #registrations: Registrations;
  readonly #closing: AbortSignal;
  readonly groups: ReturnType<typeof createGroups>;
  readonly #agents = new Map<AgentId, Known>();
  /** Version of the runner in each pool's image. */
  readonly versions = new Map<string, string>();
  /** Labels of the newest agent of each pool. */
  readonly labels = new Map<string, readonly string[]>();
  /** Pools whose runner does not run the script in front of jobs, so that nothing is refused. */
  readonly unguarded = new Set<string>();
  /** Repositories, and places, whose jobs the credential may not read, and until when that is not tried again: core clock, ms. */
  readonly #denied = new Map<string, number>();
  /** What webhooks report about jobs without a runner. */
  readonly #waitingJobs: ReturnType<typeof createWaitingJobs>;

  constructor(parts: GithubParts, registrations: Registrations, closing: AbortSignal) {
    this.#parts = parts;
    this.#registrations = registrations;
    this.#closing = closing;
    this.groups = createGroups(this.#parts.client, this.#parts.config.group);
    this.#waitingJobs = createWaitingJobs(this.#parts.clock);
  }

  isDenied(what: string): boolean {
    return (this.#denied.get(what) ?? 0) > this.#parts.clock.now();
  }

  async setOf(pool: PoolConfig, signal: AbortSignal): Promise<SetPool> {
    const place = githubPlace(pool.queue);
    const group = await this.groups.find(place, signal);
    return {
      name: pool.name,
      place,
      set: labelsOf(pool)[0] ?? pool.name,
      group,
      capacity: () => Math.max(1, this.#parts.slots.sizeOf(pool.name)),
    };
  }

  async list({ name, pools: served }: Queue, signal: AbortSignal): Promise<Shown> {
    const place = githubPlace(name);
    const [runners, waiting] = await Promise.all([this.#parts.client.runners(place, signal), this.#waitingAt(place, signal)]);
    const pools = this.#parts.pools.filter((pool) => served.includes(pool.name));
    return {
      place,
      title: name,
      entries: runners.map((one) => this.#entryOf(place, one)),
      ...(waiting !== null && {
        waiting: waiting.map((one) => ({
          job: waitingJob(this.#parts.config.name, one),
          pools: pools.filter((pool) => this.#suits(pool, one.job.labels)).map((pool) => pool.name),
          isForOthers: isHosted(one.job.labels) || runners.some(({ labels }) => isIn(one.job.labels, labels)),
        })),
      }),
    };
  }

  async create(context: AgentContext, name: string, signal: AbortSignal): Promise<Draft> {
    const pool = this.#parts.pools.find((one) => one.name === context.pool);
    if (pool === undefined) throw foreignPool(this.#parts.config.name, context.pool);
    const place = githubPlace(pool.queue);
    const inside =
      this.#parts.config.mountedRunner === null
        ? await runnerIn(context, signal)
        : { root: mountedAt, isWritable: false, version: null };
    if (inside.version !== null) this.versions.set(pool.name, inside.version);
    const all = [...new Set([...labelsOf(pool), ...deviceLabels(context)])];
    this.labels.set(pool.name, all);
    const group = await this.groups.find(place, signal);
    const refuses = { forks: this.#parts.config.forks === 'refuse', public: this.#parts.config.public === 'refuse' };
    return {
      place,
      create: async (inner) => {
        const made =
          this.#parts.sets === null
            ? this.#parts.client.generateJitConfig(place, { name, group, labels: all }, inner)
            : this.#parts.sets.generateJitConfig(await this.setOf(pool, inner), name, inner);
        // Its group may have been made anew.
        made.catch(() => this.groups.forget(place));
        const { id, config: jit } = await made;
        const { docker } = this.#parts.config;
        const { workspace } = context;
        const hasEngine = pool.recipe.containers !== undefined;
        // The engine of an agent finds the workspace, but nothing of the image.
        const own = hasEngine ? `${workspace}/.onejob/runner` : null;
        const shared = docker === null ? own : sharedFolder({ docker, agentNames: this.#registrations.agentNames }, context.agent);
        const script = githubScript({ ...inside, workspace, shared, seesMounts: hasEngine, config: jit, refuses });
        return { id: String(id), script, files: null };
      },
    };
  }

  async find(which: EntryKey, signal: AbortSignal): Promise<Entry | null> {
    const { place } = which;
    const runner =
      'id' in which
        ? await this.#parts.client.runner(place, which.id, signal)
        : await this.#parts.client.runnerNamed(place, which.name, signal);
    return runner === null ? null : this.#entryOf(place, runner);
  }

  remove({ place, id }: Remote, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
    return (this.#parts.sets ?? this.#parts.client).deleteRunner(place, id, signal);
  }

  async lastJob(remote: Remote, signal: AbortSignal): Promise<RemoteJob | null> {
    const agent = this.#agentAt(remote);
    const known = agent === null ? null : this.#knownOf(agent);
    // That it is gone shows nothing: onejob or a person may have removed it.
    if (known === null || !hadJob(known.facts)) return null;
    const runner = this.#bookedAt(remote)?.name;
    await this.#read(remote.place, runner, known, signal);
    const job = this.#endedJob(remote, runner, known, false);
    const pool = agent === null ? null : this.#parts.slots.poolOf(agent);
    // One that was cancelled early may have ended before that script.
    const hasRun = !known.facts.isHeard && job.facts().outcome === 'passed';
    if (hasRun && pool !== null && (this.#parts.config.forks === 'refuse' || this.#parts.config.public === 'refuse')) {
      if (!this.unguarded.has(pool)) this.#parts.log.error('the runner ran a job without asking whether it may run here', { pool });
      this.unguarded.add(pool);
    }
    return job;
  }

  reopen(row: ServiceJob): RemoteJob | null {
    const left = leftOf(row);
    // A refusal is all that has to be known of a job.
    if (left === null || left.known.refused !== null) return null;
    return this.#endedJob(left.remote, left.runner, { facts: left.known, tries: 0, goneSince: null }, true);
  }

  /** Ends agents that can get no job any more: GitHub may drop a runner without telling it (actions/runner#4617). */
  async follow({ place, entries }: Shown, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    await this.#askAgain(place, signal);
    const there = new Set(entries.map(({ id }) => id));
    for (const { agent, place: its, remote: id } of this.#registrations.open()) {
      if (its !== place || id === null || this.#parts.slots.poolOf(agent) === null) continue;
      const known = this.#knownOf(agent);
      if (there.has(id)) {
        known.goneSince = null;
        continue;
      }
      known.goneSince ??= this.#parts.clock.now();
      const { wasBusy, told } = known.facts;
      const hadJob = wasBusy || told !== null;
      if (this.#parts.clock.now() - known.goneSince < (hadJob ? tidying : ghostly)) continue;
      try {
        if ((await this.#parts.client.runner(place, id, signal)) !== null) {
          // The list does not show it yet.
          known.goneSince = this.#parts.clock.now();
          continue;
        }
      } catch (error) {
        signal.throwIfAborted();
        this.#parts.log.warn('failed to find out whether an agent is still registered', {
          agent,
          reason: toFailure(error).message,
        });
        continue;
      }
      const why = hadJob ? 'its job is over' : 'GitHub has dropped its runner';
      this.#parts.log.warn('onejob ends an agent that can get no job any more', { agent, why });
      emit({ kind: 'jobDone', agent });
    }
  }

  /** What a scale set says of a job that an agent has. */
  told(place: string, { runnerId, ...job }: SetJob): void {
    const agent = runnerId == null ? null : this.#agentAt({ place, id: String(runnerId) });
    if (agent !== null) this.#learn(agent, { by: 'set', job });
  }

  /** What a webhook says of a job. Returns the places that should be looked at now. It ends and starts nothing by itself. */
  hooked(event: JobEvent): readonly string[] {
    this.#waitingJobs.heard(event);
    const { workflow_job: job, repository } = event;
    const places = placesOf(event);
    const name = job.runner_name;
    const its = name === null ? null : this.#registrations.find(this.#registrations.agentNames.agentOf(name) ?? '');
    if (its !== null && places.includes(its.place) && this.#shown(repository.full_name, job) !== null) return [its.place];
    const served = this.#parts.pools.filter((pool) => this.#suits(pool, job.labels)).map(({ queue }) => githubPlace(queue));
    return places.filter((place) => served.includes(place));
  }

  /** The job of an agent that has ended already, whose end a webhook reports; null: the event is about another one. */
  over(event: JobEvent): { readonly job: RemoteJob; readonly agent: AgentId; readonly place: string } | null {
    const { action, workflow_job: job } = event;
    const agent = job.runner_name === null ? null : this.#registrations.agentNames.agentOf(job.runner_name);
    if (action !== 'completed' || agent === null || this.#parts.slots.poolOf(agent) !== null) return null;
    const its = this.#registrations.find(agent);
    if (its?.service !== this.#parts.config.name || its.remote === null) return null;
    // A repository's administrators may give a runner of their own any name.
    if (!placesOf(event).includes(its.place)) return null;
    const remote = { place: its.place, id: its.remote };
    const known = this.#knownOf(agent);
    return { job: this.#jobAt(remote, { ...known, facts: { ...known.facts, job } }), agent, place: its.place };
  }

  /** A line of the runner, or of the script in front of its job. A job may forge one, but comes after the first. */
  heard(agent: AgentId, line: string): void {
    if (line.startsWith(jobMark)) {
      const found = hookNews.safeParse(jsonOf(line.slice(jobMark.length)));
      if (found.success) this.#learn(agent, { by: 'script', said: found.data });
      return;
    }
    const [, title, , result] = /^\S+ \S+Z: (?:Running job: (.+)|Job (.+) completed with result: (\w+))$/.exec(line) ?? [];
    if (title !== undefined) this.#learn(agent, { by: 'runner', title, at: this.#parts.clock.wall() });
    if (result !== undefined) this.#learn(agent, { by: 'runner', result });
  }

  forget(agent: AgentId): void {
    this.#agents.delete(agent);
  }

  #deny(what: string): void {
    this.#denied.set(what, this.#parts.clock.now() + rightsMayCome);
  }

  /** What an earlier manager, or this one before it forgot the agent, knew of its job. */
  #leftTo(agent: AgentId): AgentFacts {
    const remote = this.#registrations.find(agent)?.remote ?? null;
    const row = remote === null ? null : this.#parts.store.serviceJobs.get(`${this.#parts.config.name}-${remote}`);
    return (row === null ? null : leftOf(row)?.known) ?? noFacts;
  }

  #knownOf(agent: AgentId): Known {
    const found = this.#agents.get(agent) ?? { facts: this.#leftTo(agent), tries: 0, goneSince: null };
    this.#agents.delete(agent);
    this.#agents.set(agent, found);
    for (const old of [...this.#agents.keys()].slice(0, -remembered)) this.#agents.delete(old);
    return found;
  }

  #learn(agent: AgentId, news: AgentNews): void {
    const known = this.#knownOf(agent);
    known.facts = learn(known.facts, news);
  }

  #bookedAt({ place, id }: Remote) {
    return this.#registrations.open().find((one) => one.place === place && one.remote === id);
  }

  #agentAt(remote: Remote): AgentId | null {
    return this.#bookedAt(remote)?.agent ?? null;
  }

  #mayRead({ told, job }: AgentFacts): boolean {
    return told !== null && !this.isDenied(told.repository) && !isEnded({ job });
  }

  #factsAt(known: AgentFacts, unsettled?: string): JobFacts {
    const { told, refused, job } = known;
    const facts = { ...jobFactsOf(known), ...(unsettled !== undefined && { unsettled }) };
    if (refused !== null) return { ...facts, failedIn: 'runner', note: `onejob refused this job: ${refused}.` };
    if (facts.outcome !== 'failed') return facts;
    const where = job?.conclusion == null ? null : failedIn(job);
    if (job !== null && where === 'runner')
      return {
        ...facts,
        failedIn: where,
        note: whyOutside(job, { service: this.#parts.config.name, hasEngine: this.#parts.config.docker !== null }),
      };
    if (where === 'script') return { ...facts, failedIn: where };
    const note = `GitHub shows no steps of it to the credential of ${this.#parts.config.name}, so nobody knows whether its script failed.`;
    if (told !== null && this.isDenied(told.repository))
      return { ...facts, failedIn: where, note: `${note} Give the App or the token the right to read Actions.` };
    return { ...facts, failedIn: where, note };
  }

  /** A job that is over. `describe` asks for its end: at once, too, if it was left by an earlier manager. */
  #endedJob(remote: Remote, runner: string | undefined, known: Known, isReopened: boolean): RemoteJob {
    return {
      id: `${this.#parts.config.name}-${remote.id}`,
      state: 'done',
      facts: () => this.#factsAt(known.facts, unsettledOf(remote, runner, known.facts)),
      ...(this.#mayRead(known.facts) && {
        describe: async (inner: AbortSignal) => {
          // What has removed the agent is over by then.
          const signal = AbortSignal.any([inner, this.#closing]);
          if (isReopened) await this.#read(remote.place, runner, known, signal);
          return this.#readEnd(remote.place, runner, known, signal);
        },
      }),
    };
  }

  #jobAt(remote: Remote, known: Known): RemoteJob {
    return {
      id: `${this.#parts.config.name}-${remote.id}`,
      state: isEnded(known.facts) ? 'done' : 'running',
      facts: () => this.#factsAt(known.facts, unsettledOf(remote, this.#bookedAt(remote)?.name, known.facts)),
      ...(known.facts.job === null &&
        known.tries < mostTries &&
        this.#mayRead(known.facts) && {
          describe: (signal) => this.#read(remote.place, this.#bookedAt(remote)?.name, known, signal),
        }),
    };
  }

  /** Asks GitHub for the job that an agent has, or had. `runner`: its name. Whether it said. */
  async #read(place: string, runner: string | undefined, known: Known, signal: AbortSignal): Promise<boolean> {
    const { told, job } = known.facts;
    if (told === null || runner === undefined || !this.#mayRead(known.facts)) return false;
    known.tries += 1;
    try {
      const found =
        job === null
          ? await this.#parts.client.jobOf(place, { ...told, runner }, signal)
          : await this.#parts.client.job(place, told.repository, job.id, signal);
      known.facts = learn(known.facts, { by: 'answer', job: found });
    } catch (error) {
      signal.throwIfAborted();
      // The App or the token need not have that right.
      if (hasCode(error, 'E_CI_DENIED')) this.#deny(told.repository);
    }
    return known.facts.job !== null;
  }

  /** Asks for the end of a job whose agent has ended, until GitHub knows it. */
  async #readEnd(place: string, runner: string | undefined, known: Known, signal: AbortSignal): Promise<boolean> {
    const isOpen = () => runner !== undefined && this.#mayRead(known.facts);
    await askForEnd({ clock: this.#parts.clock, isOpen, ask: () => this.#read(place, runner, known, signal) }, signal);
    return known.facts.job !== null;
  }

  /** What GitHub says of a job that a runner has or had. Its agent, if it is this service's. */
  #shown(repository: string, job: GithubJob): AgentId | null {
    const agent = job.runner_name === null ? null : this.#registrations.agentNames.agentOf(job.runner_name);
    if (agent === null || this.#registrations.find(agent)?.service !== this.#parts.config.name) return null;
    this.#learn(agent, { by: 'github', job, repository });
    return agent;
  }

  /** A runner works on one job at most, so its id is that of the job. */
  #entryOf(place: string, { id, name, status, busy }: Runner): Entry {
    const remote = { place, id: String(id) };
    const agent = this.#registrations.agentNames.agentOf(name);
    const state = status === 'online' || status === 'offline' ? status : null;
    if (!busy) return { ...remote, name, status: state, job: null };
    const known = agent === null ? null : this.#knownOf(agent);
    if (agent !== null) this.#learn(agent, { by: 'look', at: this.#parts.clock.wall() });
    // "offline" is said of runners at work, too.
    return { ...remote, name, status: 'online', job: this.#jobAt(remote, known ?? { facts: noFacts, tries: 0, goneSince: null }) };
  }

  /** A look does not depend on it. null: unknown. */
  async #waitingAt(place: string, signal: AbortSignal): Promise<readonly WaitingJob[] | null> {
    if (this.#parts.sets !== null) return null;
    if (!place.startsWith('repos/') || this.isDenied(place)) return this.#waitingJobs.at(place);
    try {
      const repository = place.slice('repos/'.length);
      const { waiting, taken } = await this.#parts.client.unfinishedJobs(place, signal);
      for (const job of taken) this.#shown(repository, job);
      return waiting?.map((job) => ({ job, repository })) ?? null;
    } catch (error) {
      signal.throwIfAborted();
      if (hasCode(error, 'E_CI_DENIED')) this.#deny(place);
      return this.#waitingJobs.at(place);
    }
  }

  /** Asks GitHub about jobs that have waited long by what webhooks told: one that says the opposite may be lost. */
  async #askAgain(place: string, signal: AbortSignal): Promise<void> {
    for (const { job, repository } of this.#parts.sets === null ? this.#waitingJobs.inDoubt(place) : []) {
      if (this.isDenied(repository)) continue;
      try {
        const now = await this.#parts.client.job(place, repository, job.id, signal);
        if (now !== null && now.status !== 'queued') this.#waitingJobs.gone(job.id);
      } catch (error) {
        signal.throwIfAborted();
        if (hasCode(error, 'E_CI_DENIED')) this.#deny(repository);
      }
    }
  }

  /** Whether a job with these labels may get an agent of the pool. Devices show their labels with the first agent, or with each lease. */
  #suits(pool: PoolConfig, wants: readonly string[]): boolean {
    const found = this.labels.get(pool.name);
    const has = new Set((found ?? labelsOf(pool)).map((one) => one.toLowerCase()));
    const isOpen = pool.devices.count !== 0 && (found === undefined || !pool.standby);
    const may = (label: string): boolean => isOpen && isDeviceLabel(label);
    return wants.every((label) => has.has(label.toLowerCase()) || may(label));
  }
}

/** Whether anything shows a job. A runner says in its own words when it begins one. */
const hadJob = ({ told, title, wasBusy }: AgentFacts): boolean => told !== null || title !== null || wasBusy;

interface WaitingJob {
  readonly job: GithubJob;
  /** As `acme/app`. */
  readonly repository: string;
}

/** Whether GitHub's own runners have such labels. Larger ones have names that only their organisation knows. */
const isHosted = (labels: readonly string[]): boolean => labels.some((label) => /^(ubuntu|windows|macos)-/i.test(label));

const isIn = (wanted: readonly string[], has: readonly string[]): boolean =>
  wanted.every((label) => has.includes(label.toLowerCase()));

function waitingJob(service: string, { job, repository }: WaitingJob): RemoteJob {
  const facts = () => ({ ...jobFactsOf({ ...noFacts, job }), repository });
  return { id: `${service}-job-${job.id}`, state: 'waiting', facts };
}

/** Ids of the runner group, by place. */
function createGroups(client: Pick<GithubClient, 'groups'>, name: string) {
  const known = new Map<string, number>();
  return {
    /** A repository has no groups, and calls want that of `Default`. @throws OnejobError E_CI_POOL */
    async find(place: string, signal: AbortSignal): Promise<number> {
      if (name.toLowerCase() === 'default') return 1;
      const found = known.get(place);
      if (found !== undefined) return found;
      const all = await client.groups(place, signal);
      const group = all.find((one) => one.name.toLowerCase() === name.toLowerCase());
      if (group === undefined) {
        const hint = `Create it (settings of the organisation, Actions, Runner groups), or fix "group". There are: ${all.map((one) => one.name).join(', ')}.`;
        const message = `Cannot register runners in group "${name}": ${place} has no such runner group.`;
        throw new OnejobError('E_CI_POOL', message, { hint });
      }
      known.set(place, group.id);
      return group.id;
    },
    forget: (place: string) => void known.delete(place),
  };
}
