/**
 * GitHub's runners for the early engine. The list of runners says who is busy, but not with what: the script in front of each job tells
 * that, and the runner itself how the job ended.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { jsonOf } from '../../system/json.ts';
import { foreignPool } from '../ci-service.ts';
import type { Entry, Registry, Remote, RemoteJob } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import type { GithubClient } from './client.ts';
import { deviceLabels } from './labels.ts';
import type { SetJob, SetPool } from './scale-sets.ts';
import { jobMark, runnerIn, runnerScript } from './script.ts';
import type { GithubParts } from './service.ts';
import { labelsOf, placeOf } from './type.ts';
import { type Job, type Runner, type Told, told } from './wire.ts';

export type GithubRegistry = ReturnType<typeof createGithubRegistry>;

/** ms: how long a runner may live on after its job, and without a registration. */
const [tidying, ghostly] = [120_000, 60_000];
/** How many agents are remembered with what is known of them. */
const remembered = 1_000;

interface Known {
  /** What the script in front of its job said, before any step of the job. */
  told: Told | null;
  /** Name of its job, by its runner's own words. */
  title: string | null;
  /** Result of its job, by its runner's own words, such as `Succeeded`. */
  result: string | null;
  /** A look has shown it busy. */
  wasBusy: boolean;
  /** Its job, as GitHub describes it. */
  job: Job | null;
  /** Since when looks do not show its runner; core clock, ms. */
  goneSince: number | null;
  /** GitHub has dropped it without a job. */
  isDropped: boolean;
}

export function createGithubRegistry(parts: GithubParts, registrations: Registrations) {
  const { config, client, clock, log, slots, sets } = parts;
  const groups = createGroups(client, config.group);
  const agents = new Map<AgentId, Known>();
  /** Version of the runner in each pool's image. */
  const versions = new Map<string, string>();
  /** Labels of the newest agent of each pool. */
  const labels = new Map<string, readonly string[]>();
  /** Repositories whose jobs this token may not read. */
  let isDenied = false;

  const knownOf = (agent: AgentId): Known => {
    const found = agents.get(agent) ?? {
      told: null,
      title: null,
      result: null,
      wasBusy: false,
      job: null,
      goneSince: null,
      isDropped: false,
    };
    agents.delete(agent);
    agents.set(agent, found);
    for (const old of [...agents.keys()].slice(0, -remembered)) agents.delete(old);
    return found;
  };

  const bookedAt = ({ place, id }: Remote) => registrations.open().find((one) => one.place === place && one.remote === id);
  const agentAt = (remote: Remote): AgentId | null => bookedAt(remote)?.agent ?? null;

  const jobAt = (remote: Remote, known: Known): RemoteJob => ({
    id: `${config.name}-${remote.id}`,
    state: known.result === null && known.job?.status !== 'completed' ? 'running' : 'done',
    facts: () => factsOf(known),
    ...(known.job === null && known.told !== null && !isDenied && { describe: (signal) => read(remote, known, signal) }),
  });

  /** Asks GitHub for the job that an agent has. Whether it said. */
  async function read(remote: Remote, known: Known, signal: AbortSignal): Promise<boolean> {
    const name = bookedAt(remote)?.name;
    if (known.told === null || name === undefined || isDenied) return false;
    try {
      known.job = (await client.jobOf(remote.place, { ...known.told, runner: name }, signal)) ?? known.job;
    } catch (error) {
      signal.throwIfAborted();
      // The App or the token need not have that right.
      if (!toFailure(error).retry) isDenied = true;
    }
    return known.job !== null;
  }

  /** A runner works on one job at most, so its id is that of the job. */
  const entryOf = (place: string, { id, name, status, busy }: Runner): Entry => {
    const remote = { place, id: String(id) };
    const agent = registrations.agentNames.agentOf(name);
    const state = status === 'online' || status === 'offline' ? status : null;
    if (!busy) return { ...remote, name, status: state, job: null };
    const known = agent === null ? null : knownOf(agent);
    if (known !== null) known.wasBusy = true;
    // "offline" is said of runners at work, too.
    return { ...remote, name, status: 'online', job: jobAt(remote, known ?? nothing) };
  };

  const setOf = async (pool: PoolConfig, signal: AbortSignal): Promise<SetPool> => {
    const place = placeOf(pool.queue);
    const group = await groups.find(place, signal);
    const isOurs = (agent: AgentId) => slots.poolOf(agent) === pool.name;
    const capacity = () => registrations.open().filter((one) => one.remote !== null && isOurs(one.agent)).length;
    return { name: pool.name, place, set: labelsOf(pool)[0] ?? pool.name, group, capacity };
  };

  const calls: Registry = {
    async list({ name, pools: served }, signal) {
      const place = placeOf(name);
      const [runners, waiting] = await Promise.all([
        client.runners(place, signal),
        place.startsWith('repos/') && config.mode === 'jit' ? client.waitingJobs(place, signal) : null,
      ]);
      const pools = parts.pools.filter((pool) => served.includes(pool.name));
      const has = (pool: (typeof pools)[number]) =>
        new Set((labels.get(pool.name) ?? labelsOf(pool)).map((one) => one.toLowerCase()));
      const sets = pools.map((pool) => [pool.name, has(pool)] as const);
      return {
        ...{ place, title: name },
        entries: runners.map((one) => entryOf(place, one)),
        ...(waiting !== null && {
          waiting: waiting.map((job) => ({
            job: waitingJob(config.name, place, job),
            pools: sets.filter(([, set]) => job.labels.every((label) => set.has(label.toLowerCase()))).map(([pool]) => pool),
          })),
        }),
      };
    },
    async create(context, name, signal) {
      const pool = parts.pools.find((one) => one.name === context.pool);
      if (pool === undefined) throw foreignPool(config.name, context.pool);
      const place = placeOf(pool.queue);
      const inside = await runnerIn(context, signal);
      versions.set(pool.name, inside.version);
      const all = [...new Set([...labelsOf(pool), ...deviceLabels(context)])];
      labels.set(pool.name, all);
      const group = await groups.find(place, signal);
      const refuses = { forks: config.forks === 'refuse', public: config.public === 'refuse' };
      return {
        place,
        async create(inner) {
          const { id, config: jit } =
            sets === null
              ? await client.generateJitConfig(place, { name, group, labels: all }, inner)
              : await sets.generateJitConfig(await setOf(pool, inner), name, inner);
          const script = runnerScript({ ...inside, workspace: context.workspace, config: jit, refuses });
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
      if (known === null) return null;
      const isSilent = known.told === null && known.title === null && !known.wasBusy;
      // GitHub removes a runner after its job, which may have been too short for any look.
      if (isSilent && (known.isDropped || (await client.runner(remote.place, remote.id, signal)) !== null)) return null;
      await read(remote, known, signal);
      return { ...jobAt(remote, known), state: 'done' };
    },
    /** Ends agents that can get no job any more: GitHub may drop a runner without telling it (actions/runner#4617). */
    async follow({ place, entries }, emit, signal) {
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
          if ((await client.runner(place, id, signal)) !== null) continue;
        } catch (error) {
          signal.throwIfAborted();
          log.warn('failed to find out whether an agent is still registered', { agent, reason: toFailure(error).message });
          continue;
        }
        known.isDropped = !hadJob;
        const why = hadJob ? 'its job is over' : 'GitHub has dropped its runner';
        log.warn('onejob ends an agent that can get no job any more', { agent, why });
        emit({ kind: 'jobDone', agent });
      }
    },
  };

  return {
    ...calls,
    ...{ groups, versions, labels, setOf },
    /** What a scale set says of a job that an agent has. */
    told(place: string, { messageType, runnerId, ...job }: SetJob): void {
      const agent = runnerId == null ? null : agentAt({ place, id: String(runnerId) });
      if (agent === null) return;
      const known = knownOf(agent);
      known.title ??= job.jobDisplayName ?? null;
      if (messageType === 'JobCompleted') known.result ??= job.result ?? null;
      if (job.ownerName == null || job.repositoryName == null || job.workflowRunId == null) return;
      known.told ??= {
        ...{ repository: `${job.ownerName}/${job.repositoryName}`, run: job.workflowRunId, attempt: 1, number: null },
        ...{ workflow: null, name: job.jobDisplayName ?? null, event: job.eventName ?? null, actor: null, refused: null },
        ref: job.jobWorkflowRef?.split('@')[1] ?? null,
      };
    },
    /** A line of the runner, or of the script in front of its job. A job may forge one, but comes after the first. */
    heard(agent: AgentId, line: string): void {
      if (line.startsWith(jobMark)) {
        const found = told.safeParse(jsonOf(line.slice(jobMark.length)));
        if (found.success) knownOf(agent).told ??= found.data;
        return;
      }
      const [, begun, , result] = /^\S+ \S+Z: (?:Running job: (.+)|Job (.+) completed with result: (\w+))$/.exec(line) ?? [];
      if (begun !== undefined) knownOf(agent).title ??= begun;
      if (result !== undefined) knownOf(agent).result ??= result;
    },
    forget: (agent: AgentId) => void agents.delete(agent),
  };
}

const nothing: Known = { told: null, title: null, result: null, wasBusy: true, job: null, goneSince: null, isDropped: false };

/** Results by GitHub's words, and by the runner's own (actions/runner, `TaskResult`). */
const outcomes: Readonly<Record<string, 'passed' | 'failed' | 'cancelled' | 'lost'>> = {
  ...{ success: 'passed', neutral: 'passed', failure: 'failed', timed_out: 'failed', cancelled: 'cancelled', skipped: 'cancelled' },
  ...{ succeeded: 'passed', failed: 'failed', canceled: 'cancelled', abandoned: 'lost' },
};

function factsOf({ told: said, title, result, job }: Known): ReturnType<RemoteJob['facts']> {
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
    result: said?.refused == null ? end : 'refused',
    outcome: said?.refused != null ? 'failed' : end === null ? null : (outcomes[end] ?? null),
    queuedAt: job?.created_at ?? null,
    startedAt: job?.started_at ?? null,
    endedAt: job?.completed_at ?? null,
  };
}

function waitingJob(service: string, place: string, job: Job): RemoteJob {
  return {
    id: `${service}-job-${job.id}`,
    state: 'waiting',
    facts: () => ({
      ...factsOf({ ...nothing, job }),
      repository: place.replace('repos/', ''),
    }),
  };
}

/** Ids of the runner group, by place. */
function createGroups(client: Pick<GithubClient, 'groups'>, name: string) {
  const found = new Map<string, number>();
  return {
    /** A repository has no groups, and calls want that of `Default`. @throws OnejobError E_CI_POOL */
    async find(place: string, signal: AbortSignal): Promise<number> {
      if (name === 'Default') return 1;
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
  };
}
