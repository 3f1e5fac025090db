/**
 * GitHub's runners for the early engine. The list of runners says who is busy, but not with what: the script in front of each job tells
 * that, and the runner itself how the job ended.
 */
import { z } from 'zod';
import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId } from '../../core/slot.ts';
import { foreignPool } from '../../ports/ci-service.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { jsonOf } from '../../system/json.ts';
import type { Entry, JobFacts, Registry, Remote, RemoteJob } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { askForEnd } from '../early/settling.ts';
import type { GithubClient } from './client.ts';
import { failedIn, whyOutside } from './job-end.ts';
import { deviceLabels, isDeviceLabel } from './labels.ts';
import type { GithubParts } from './parts.ts';
import type { SetJob, SetPool } from './scale-sets.ts';
import { githubScript, jobMark, mountedAt, runnerIn } from './script.ts';
import { sharedFolder } from './shared-files.ts';
import { createToldJobs, placesOf } from './told-jobs.ts';
import { githubPlace, labelsOf } from './type.ts';
import { type GithubJob, type HookNews, type JobEvent, type Runner, told } from './wire.ts';

export type GithubRegistry = ReturnType<typeof createGithubRegistry>;

/** ms: how long a runner may live on after its job, and without a registration. */
const [tidying, ghostly] = [120_000, 60_000];
/** ms after which a right that was missing may have been granted. */
const rightsMayCome = 600_000;
/** How often GitHub is asked for an agent's job that it does not show. */
const mostTries = 3;
/** How many agents are remembered with what is known of them. */
const remembered = 1_000;

interface Known {
  /** What the script in front of its job said, before any step of the job; or its scale set. */
  told: HookNews | null;
  /** That script was heard; what it says later is a job's. */
  isHeard: boolean;
  /** Why it has refused its job. */
  refused: string | null;
  /** Name of its job, by its runner's own words. */
  title: string | null;
  /** Result of its job, such as `Succeeded`, by its runner's own words, which a job can forge until its agent has ended. */
  result: string | null;
  /** A look has shown it busy. */
  wasBusy: boolean;
  /** Its job, as GitHub describes it. */
  job: GithubJob | null;
  /** How often GitHub was asked for its job in vain. */
  tries: number;
  /** When its runner began the job by its own words, or a look showed it busy first; wall clock, ms. */
  begunAt: number | null;
  /** Since when looks do not show its runner, or since it was asked for; core clock, ms. */
  goneSince: number | null;
}

const unknown = {
  told: null,
  isHeard: false,
  refused: null,
  title: null,
  result: null,
  wasBusy: false,
  job: null,
  tries: 0,
  begunAt: null,
  goneSince: null,
};

const words = z.string().nullable();
const left = z.object({
  place: z.string(),
  remote: z.string(),
  runner: z.string(),
  told,
  title: words,
  result: words,
  refused: words,
  begunAt: z.number().nullable(),
  isHeard: z.boolean(),
});

/** What an earlier manager left of a job whose end GitHub did not know yet; null: nothing. */
function leftOf({ unsettled }: Pick<ServiceJob, 'unsettled'>) {
  const found = unsettled === undefined ? null : left.safeParse(jsonOf(unsettled));
  if (found?.success !== true) return null;
  const { place, remote, runner, ...known } = found.data;
  return { place, remote, runner, known };
}

/** `closing`: aborts when the manager ends. */
export function createGithubRegistry(parts: GithubParts, registrations: Registrations, closing: AbortSignal) {
  const { config, client, clock, log, slots, sets } = parts;
  const groups = createGroups(client, config.group);
  const agents = new Map<AgentId, Known>();
  /** Version of the runner in each pool's image. */
  const versions = new Map<string, string>();
  /** Labels of the newest agent of each pool. */
  const labels = new Map<string, readonly string[]>();
  /** Pools whose runner does not run the script in front of jobs, so that nothing is refused. */
  const unguarded = new Set<string>();
  /** Repositories, and places, whose jobs the credential may not read, and until when that is not tried again: core clock, ms. */
  const denied = new Map<string, number>();
  const isDenied = (what: string): boolean => (denied.get(what) ?? 0) > clock.now();
  const deny = (what: string): void => void denied.set(what, clock.now() + rightsMayCome);
  /** What webhooks tell of jobs without a runner. */
  const toldJobs = createToldJobs(clock);

  /** What an earlier manager, or this one before it forgot the agent, knew of its job. */
  const leftTo = (agent: AgentId) => {
    const remote = registrations.find(agent)?.remote ?? null;
    const row = remote === null ? null : parts.store.serviceJobs.get(`${config.name}-${remote}`);
    return row === null ? null : (leftOf(row)?.known ?? null);
  };

  const knownOf = (agent: AgentId): Known => {
    const found: Known = agents.get(agent) ?? { ...unknown, ...leftTo(agent) };
    agents.delete(agent);
    agents.set(agent, found);
    for (const old of [...agents.keys()].slice(0, -remembered)) agents.delete(old);
    return found;
  };

  const bookedAt = ({ place, id }: Remote) => registrations.open().find((one) => one.place === place && one.remote === id);
  const agentAt = (remote: Remote): AgentId | null => bookedAt(remote)?.agent ?? null;

  const isEnded = ({ job }: Known): boolean => job?.status === 'completed';
  const mayRead = (known: Known): boolean => known.told !== null && !isDenied(known.told.repository) && !isEnded(known);
  const hasEngine = config.docker !== null;

  const factsAt = (known: Known, unsettled?: string): JobFacts => {
    const { told, refused, job } = known;
    const facts = { ...factsOf(known), ...(unsettled !== undefined && { unsettled }) };
    if (refused !== null) return { ...facts, failedIn: 'runner', note: `onejob refused this job: ${refused}.` };
    if (facts.outcome !== 'failed') return facts;
    const where = job?.conclusion == null ? null : failedIn(job);
    if (job !== null && where === 'runner')
      return { ...facts, failedIn: where, note: whyOutside(job, { service: config.name, hasEngine }) };
    if (where === 'script') return { ...facts, failedIn: where };
    const note = `GitHub shows no steps of it to the credential of ${config.name}, so nobody knows whether its script failed.`;
    if (told !== null && isDenied(told.repository))
      return { ...facts, failedIn: where, note: `${note} Give the App or the token the right to read Actions.` };
    return { ...facts, failedIn: where, note };
  };

  /** What must be known of a job after a restart; undefined: nothing, because its end is known, or cannot be asked for. */
  const unsettledOf = (remote: Remote, runner: string | undefined, known: Known): string | undefined => {
    const { told, title, result, refused, begunAt, isHeard } = known;
    if (runner === undefined || told === null || (isEnded(known) && refused === null)) return undefined;
    return JSON.stringify({ place: remote.place, remote: remote.id, runner, told, title, result, refused, begunAt, isHeard });
  };

  /** A job that is over. `describe` asks for its end: at once, too, if it was left by an earlier manager. */
  function endedJob(remote: Remote, runner: string | undefined, known: Known, isReopened: boolean): RemoteJob {
    return {
      id: `${config.name}-${remote.id}`,
      state: 'done',
      facts: () => factsAt(known, unsettledOf(remote, runner, known)),
      ...(mayRead(known) && {
        async describe(inner) {
          // What has removed the agent is over by then.
          const signal = AbortSignal.any([inner, closing]);
          if (isReopened) await read(remote.place, runner, known, signal);
          return readEnd(remote.place, runner, known, signal);
        },
      }),
    };
  }

  const jobAt = (remote: Remote, known: Known): RemoteJob => ({
    id: `${config.name}-${remote.id}`,
    state: isEnded(known) ? 'done' : 'running',
    facts: () => factsAt(known, unsettledOf(remote, bookedAt(remote)?.name, known)),
    ...(known.job === null &&
      known.tries < mostTries &&
      mayRead(known) && { describe: (signal) => read(remote.place, bookedAt(remote)?.name, known, signal) }),
  });

  /** Asks GitHub for the job that an agent has, or had. `runner`: its name. Whether it said. */
  async function read(place: string, runner: string | undefined, known: Known, signal: AbortSignal): Promise<boolean> {
    const { told, job } = known;
    if (told === null || runner === undefined || !mayRead(known)) return false;
    known.tries += 1;
    try {
      const found =
        job === null
          ? await client.jobOf(place, { ...told, runner }, signal)
          : await client.job(place, told.repository, job.id, signal);
      // A webhook may have told of its end meanwhile.
      if (!isEnded(known)) known.job = found ?? job;
    } catch (error) {
      signal.throwIfAborted();
      // The App or the token need not have that right.
      if (hasCode(error, 'E_CI_DENIED')) deny(told.repository);
    }
    return known.job !== null;
  }

  /** Asks for the end of a job whose agent has ended, until GitHub knows it. */
  async function readEnd(place: string, runner: string | undefined, known: Known, signal: AbortSignal): Promise<boolean> {
    const isOpen = () => runner !== undefined && mayRead(known);
    await askForEnd({ clock, isOpen, ask: () => read(place, runner, known, signal) }, signal);
    return known.job !== null;
  }

  /** What GitHub says of a job that a runner has or had. Its agent, if it is this service's. */
  function shown(repository: string, job: GithubJob): AgentId | null {
    const agent = job.runner_name === null ? null : registrations.agentNames.agentOf(job.runner_name);
    if (agent === null || registrations.find(agent)?.service !== config.name) return null;
    const known = knownOf(agent);
    if (!isEnded(known)) known.job = job;
    known.told ??= {
      repository,
      run: job.run_id,
      number: null,
      workflow: job.workflow_name,
      name: job.name,
      event: null,
      ref: null,
      refused: null,
    };
    return agent;
  }

  /** A runner works on one job at most, so its id is that of the job. */
  const entryOf = (place: string, { id, name, status, busy }: Runner): Entry => {
    const remote = { place, id: String(id) };
    const agent = registrations.agentNames.agentOf(name);
    const state = status === 'online' || status === 'offline' ? status : null;
    if (!busy) return { ...remote, name, status: state, job: null };
    const known = agent === null ? null : knownOf(agent);
    if (known !== null) Object.assign(known, { wasBusy: true, begunAt: known.begunAt ?? clock.wall() });
    // "offline" is said of runners at work, too.
    return { ...remote, name, status: 'online', job: jobAt(remote, known ?? unknown) };
  };

  /** A look does not depend on it. null: unknown. */
  async function waitingAt(place: string, signal: AbortSignal): Promise<readonly WaitingJob[] | null> {
    if (sets !== null) return null;
    if (!place.startsWith('repos/') || isDenied(place)) return toldJobs.at(place);
    try {
      const repository = place.slice('repos/'.length);
      const { waiting, taken } = await client.unfinishedJobs(place, signal);
      for (const job of taken) shown(repository, job);
      return waiting?.map((job) => ({ job, repository })) ?? null;
    } catch (error) {
      signal.throwIfAborted();
      if (hasCode(error, 'E_CI_DENIED')) deny(place);
      return toldJobs.at(place);
    }
  }

  /** Asks GitHub about jobs that have waited long by what webhooks told: one that says the opposite may be lost. */
  async function askAgain(place: string, signal: AbortSignal): Promise<void> {
    for (const { job, repository } of sets === null ? toldJobs.inDoubt(place) : []) {
      if (isDenied(repository)) continue;
      try {
        const now = await client.job(place, repository, job.id, signal);
        if (now !== null && now.status !== 'queued') toldJobs.gone(job.id);
      } catch (error) {
        signal.throwIfAborted();
        if (hasCode(error, 'E_CI_DENIED')) deny(repository);
      }
    }
  }

  /** Whether a job with these labels may get an agent of the pool. Devices show their labels with the first agent, or with each lease. */
  const suits = (pool: PoolConfig, wants: readonly string[]): boolean => {
    const found = labels.get(pool.name);
    const has = new Set((found ?? labelsOf(pool)).map((one) => one.toLowerCase()));
    const isOpen = pool.devices.count !== 0 && (found === undefined || !pool.standby);
    const may = (label: string): boolean => isOpen && isDeviceLabel(label);
    return wants.every((label) => has.has(label.toLowerCase()) || may(label));
  };

  const setOf = async (pool: PoolConfig, signal: AbortSignal): Promise<SetPool> => {
    const place = githubPlace(pool.queue);
    const group = await groups.find(place, signal);
    return {
      name: pool.name,
      place,
      set: labelsOf(pool)[0] ?? pool.name,
      group,
      capacity: () => Math.max(1, slots.sizeOf(pool.name)),
    };
  };

  const calls: Registry = {
    async list({ name, pools: served }, signal) {
      const place = githubPlace(name);
      const [runners, waiting] = await Promise.all([client.runners(place, signal), waitingAt(place, signal)]);
      const pools = parts.pools.filter((pool) => served.includes(pool.name));
      return {
        place,
        title: name,
        entries: runners.map((one) => entryOf(place, one)),
        ...(waiting !== null && {
          waiting: waiting.map((one) => ({
            job: waitingJob(config.name, one),
            pools: pools.filter((pool) => suits(pool, one.job.labels)).map((pool) => pool.name),
          })),
        }),
      };
    },
    async create(context, name, signal) {
      const pool = parts.pools.find((one) => one.name === context.pool);
      if (pool === undefined) throw foreignPool(config.name, context.pool);
      const place = githubPlace(pool.queue);
      const inside =
        config.mountedRunner === null ? await runnerIn(context, signal) : { root: mountedAt, isWritable: false, version: null };
      if (inside.version !== null) versions.set(pool.name, inside.version);
      const all = [...new Set([...labelsOf(pool), ...deviceLabels(context)])];
      labels.set(pool.name, all);
      const group = await groups.find(place, signal);
      const refuses = { forks: config.forks === 'refuse', public: config.public === 'refuse' };
      return {
        place,
        async create(inner) {
          const made =
            sets === null
              ? client.generateJitConfig(place, { name, group, labels: all }, inner)
              : sets.generateJitConfig(await setOf(pool, inner), name, inner);
          // Its group may have been made anew.
          made.catch(() => groups.forget(place));
          const { id, config: jit } = await made;
          const { docker } = config;
          const shared = docker === null ? null : sharedFolder({ docker, agentNames: registrations.agentNames }, context.agent);
          const script = githubScript({ ...inside, workspace: context.workspace, shared, config: jit, refuses });
          return { id: String(id), script, files: null };
        },
      };
    },
    async find(which, signal) {
      const { place } = which;
      const runner =
        'id' in which ? await client.runner(place, which.id, signal) : await client.runnerNamed(place, which.name, signal);
      return runner === null ? null : entryOf(place, runner);
    },
    remove: ({ place, id }, signal) => (sets ?? client).deleteRunner(place, id, signal),
    async lastJob(remote, signal) {
      const agent = agentAt(remote);
      const known = agent === null ? null : knownOf(agent);
      // A runner says in its own words when it begins a job. That it is gone shows nothing: onejob or a person may have removed it.
      if (known === null || (known.told === null && known.title === null && !known.wasBusy)) return null;
      const runner = bookedAt(remote)?.name;
      await read(remote.place, runner, known, signal);
      const job = endedJob(remote, runner, known, false);
      const pool = agent === null ? null : slots.poolOf(agent);
      // One that was cancelled early may have ended before that script.
      const hasRun = !known.isHeard && job.facts().outcome === 'passed';
      if (hasRun && pool !== null && (config.forks === 'refuse' || config.public === 'refuse')) {
        if (!unguarded.has(pool)) log.error('the runner ran a job without asking whether it may run here', { pool });
        unguarded.add(pool);
      }
      return job;
    },
    reopen(row) {
      const left = leftOf(row);
      // A refusal is all that has to be known of a job.
      if (left === null || left.known.refused !== null) return null;
      return endedJob({ place: left.place, id: left.remote }, left.runner, { ...unknown, ...left.known }, true);
    },
    /** Ends agents that can get no job any more: GitHub may drop a runner without telling it (actions/runner#4617). */
    async follow({ place, entries }, emit, signal) {
      await askAgain(place, signal);
      const there = new Set(entries.map(({ id }) => id));
      for (const { agent, place: its, remote: id } of registrations.open()) {
        if (its !== place || id === null || slots.poolOf(agent) === null) continue;
        const known = knownOf(agent);
        if (there.has(id)) {
          known.goneSince = null;
          continue;
        }
        known.goneSince ??= clock.now();
        const hadJob = known.wasBusy || known.told !== null;
        if (clock.now() - known.goneSince < (hadJob ? tidying : ghostly)) continue;
        try {
          if ((await client.runner(place, id, signal)) !== null) {
            // The list does not show it yet.
            known.goneSince = clock.now();
            continue;
          }
        } catch (error) {
          signal.throwIfAborted();
          log.warn('failed to find out whether an agent is still registered', { agent, reason: toFailure(error).message });
          continue;
        }
        const why = hadJob ? 'its job is over' : 'GitHub has dropped its runner';
        log.warn('onejob ends an agent that can get no job any more', { agent, why });
        emit({ kind: 'jobDone', agent });
      }
    },
  };

  return {
    ...calls,
    groups,
    versions,
    labels,
    unguarded,
    setOf,
    isDenied,
    /** What a scale set says of a job that an agent has. */
    told(place: string, { messageType, runnerId, ...job }: SetJob): void {
      const agent = runnerId == null ? null : agentAt({ place, id: String(runnerId) });
      if (agent === null) return;
      const known = knownOf(agent);
      known.title ??= job.jobDisplayName ?? null;
      if (messageType === 'JobCompleted') known.result ??= job.result ?? null;
      if (job.ownerName == null || job.repositoryName == null || job.workflowRunId == null) return;
      known.told ??= {
        repository: `${job.ownerName}/${job.repositoryName}`,
        run: job.workflowRunId,
        number: null,
        workflow: null,
        name: job.jobDisplayName ?? null,
        event: job.eventName ?? null,
        refused: null,
        ref: job.jobWorkflowRef?.split('@')[1] ?? null,
      };
    },
    /** What a webhook says of a job. Returns the places that should be looked at now. It ends and starts nothing by itself. */
    hooked(event: JobEvent): readonly string[] {
      toldJobs.heard(event);
      const { workflow_job: job, repository } = event;
      const places = placesOf(event);
      const name = job.runner_name;
      const its = name === null ? null : registrations.find(registrations.agentNames.agentOf(name) ?? '');
      if (its !== null && places.includes(its.place) && shown(repository.full_name, job) !== null) return [its.place];
      const served = parts.pools.filter((pool) => suits(pool, job.labels)).map(({ queue }) => githubPlace(queue));
      return places.filter((place) => served.includes(place));
    },
    /** The job of an agent that has ended already, whose end a webhook reports; null: the event is about another one. */
    over(event: JobEvent): { readonly job: RemoteJob; readonly agent: AgentId; readonly place: string } | null {
      const { action, workflow_job: job } = event;
      const agent = job.runner_name === null ? null : registrations.agentNames.agentOf(job.runner_name);
      if (action !== 'completed' || agent === null || slots.poolOf(agent) !== null) return null;
      const its = registrations.find(agent);
      if (its?.service !== config.name || its.remote === null) return null;
      // A repository's administrators may give a runner of their own any name.
      if (!placesOf(event).includes(its.place)) return null;
      const remote = { place: its.place, id: its.remote };
      return { job: jobAt(remote, { ...knownOf(agent), job }), agent, place: its.place };
    },
    /** A line of the runner, or of the script in front of its job. A job may forge one, but comes after the first. */
    heard(agent: AgentId, line: string): void {
      if (line.startsWith(jobMark)) {
        const found = told.safeParse(jsonOf(line.slice(jobMark.length)));
        if (!found.success) return;
        const known = knownOf(agent);
        if (known.isHeard) return;
        Object.assign(known, { told: found.data, refused: found.data.refused, isHeard: true });
        return;
      }
      const [, begun, , result] = /^\S+ \S+Z: (?:Running job: (.+)|Job (.+) completed with result: (\w+))$/.exec(line) ?? [];
      if (begun !== undefined) {
        const known = knownOf(agent);
        known.title ??= begun;
        known.begunAt ??= clock.wall();
      }
      if (result !== undefined) knownOf(agent).result ??= result;
    },
    forget: (agent: AgentId) => void agents.delete(agent),
  };
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

function factsOf({ told: said, refused, title, result, job, begunAt }: Known): JobFacts {
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

interface WaitingJob {
  readonly job: GithubJob;
  /** As `acme/app`. */
  readonly repository: string;
}

function waitingJob(service: string, { job, repository }: WaitingJob): RemoteJob {
  const facts = () => ({ ...factsOf({ ...unknown, job }), repository });
  return { id: `${service}-job-${job.id}`, state: 'waiting', facts };
}

/** Ids of the runner group, by place. */
function createGroups(client: Pick<GithubClient, 'groups'>, name: string) {
  const found = new Map<string, number>();
  return {
    /** A repository has no groups, and calls want that of `Default`. @throws OnejobError E_CI_POOL */
    async find(place: string, signal: AbortSignal): Promise<number> {
      if (name.toLowerCase() === 'default') return 1;
      const known = found.get(place);
      if (known !== undefined) return known;
      const all = await client.groups(place, signal);
      const group = all.find((one) => one.name.toLowerCase() === name.toLowerCase());
      if (group === undefined) {
        const hint = `Create it (settings of the organisation, Actions, Runner groups), or fix "group". There are: ${all.map((one) => one.name).join(', ')}.`;
        throw new OnejobError('E_CI_POOL', `Cannot register runners in group "${name}": ${place} has no such runner group.`, {
          hint,
        });
      }
      found.set(place, group.id);
      return group.id;
    },
    forget: (place: string) => void found.delete(place),
  };
}
