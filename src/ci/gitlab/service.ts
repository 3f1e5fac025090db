/**
 * GitLab binds late: while a slot is free, onejob asks for a job with the token of a runner, decides about it, and gives it to the real
 * runner in a fresh sandbox. That runner gets it once, from the filter, and then speaks for it with the job's own token. The token of
 * the runner, which may take any job, stays here.
 */
import { hash } from 'node:crypto';
import { join } from 'node:path';
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId, Change, Exit, JobId, JobResult } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { describeSecret, readSecret } from '../../secrets/reference.ts';
import { subdirectory } from '../../store/directory.ts';
import type { CiEvent, CiService, SlotOffer } from '../ci-service.ts';
import { createFilter, type Filter } from '../filter/filter.ts';
import { createLeft, type Left } from '../filter/left.ts';
import { admitJob, cacheKeyOf, hasOwnImage, untrustedRecipe, wantsOther } from '../kit/admission.ts';
import { type AgentProgram, openAgentProgram } from '../kit/agent-program.ts';
import { createLateRows, type LateRows } from '../kit/job-rows.ts';
import { whyEnding, whyLost } from '../kit/last-words.ts';
import { jobGone, jobUndecided, whenCommitted } from '../kit/late-bound.ts';
import { noProxyFor } from '../kit/mounted.ts';
import { untilProgram } from '../kit/until-program.ts';
import type { OpenParts, SlotFacts } from '../parts.ts';
import { createGitlabClient, type GitlabClient } from './client.ts';
import { findings } from './doctor.ts';
import { jobFacts } from './facts.ts';
import { gitlabRules, rulesOf } from './filter-rules.ts';
import { createGitlabJobs, type Held, isOver, type JobsParts, jobIdOf } from './jobs.ts';
import { gitlabRunner } from './release.ts';
import { equipped, runnerScript } from './script.ts';
import { createTakenJobs, type TakenJobs } from './taken.ts';
import type { GitlabServiceConfig } from './type.ts';
import type { GivenJob } from './wire.ts';

export function openGitlab(config: GitlabServiceConfig, parts: OpenParts): CiService {
  const { store, clock, log, variables, onejob, env, fetch } = parts;
  const { name, url } = config;
  const { version, self } = onejob;
  const { secretsKey } = parts.config;
  const keys = async () =>
    secretsKey === null
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const pins = createPinStore(store, clock);
  const token = () => readSecret(config.token, variables);
  const systemId = `s_${hash('sha256', store.owner).slice(0, 12)}`;
  const filterParts = { stateDir: store.dir, self, given: env?.handedOn ?? {}, version, clock, log };
  return createGitlab({
    ...{ config, pools: parts.pools, slots: parts.slots, stateDir: store.dir, clock, log, random: Math.random },
    client: createGitlabClient({ url, token, systemId, clock, fetch, version }),
    program: openAgentProgram(name, gitlabRunner(), config.agentPackage, parts),
    // A temporary manager makes no agents.
    filter: onejob.temporary === true ? null : (parts.filter ?? createFilter(filterParts)),
    left: createLeft(subdirectory(store.dir, 'filter')),
    files: createTakenJobs(join(store.dir, `jobs-${name}`)),
    rows: createLateRows(name, parts, (given) => aboutOf(name, given)),
    admit: (facts, { variables: env }, pool) =>
      admitJob(facts, Object.fromEntries(env.map(({ key, value }) => [key, value])), { trust: pool.trust, keys, pins }),
    exitOf: (agent) => store.history.get(agent)?.exit ?? null,
    known: store.slots.all().map(({ slot }) => slot.key),
  });
}

export interface GitlabParts extends Pick<JobsParts, 'client' | 'files' | 'rows' | 'admit'> {
  readonly config: GitlabServiceConfig;
  /** One at most, because a runner has one set of tags. */
  readonly pools: readonly PoolConfig[];
  readonly client: GitlabClient;
  readonly files: TakenJobs;
  readonly rows: LateRows<GivenJob>;
  readonly program: Pick<AgentProgram, 'folder' | 'ready' | 'state'>;
  /** null: it makes no agents. */
  readonly filter: Filter | null;
  readonly left: Left;
  readonly slots: Pick<SlotFacts, 'jobsOf'>;
  readonly stateDir: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  /** How an agent ended, as it was written down; null if that is unknown. */
  readonly exitOf: (agent: AgentId) => Exit | null;
  /** Slots of an earlier manager. */
  readonly known: readonly string[];
}

/** ms. Longest wait after failures, and the wait after a refusal, which only a person can fix. */
const longest = 60_000;
/** ms between two looks at jobs that wait or run. */
const lookEvery = 30_000;
/** ms that a runner may take to leave after its job is over or cancelled: its `after_script` may take five minutes (19.4). */
const tidying = 360_000;
/** ms to end waiting jobs when the manager ends. */
const leaving = 5_000;

export function createGitlab(parts: GitlabParts): CiService {
  const { config, client, program, filter, left, slots, rows, stateDir, clock, log } = parts;
  const { name: service } = config;
  const [pool] = parts.pools;
  const closing = new AbortController();
  const { signal } = closing;
  const offers = new Map<string, SlotOffer>();
  const results = new Map<JobId, JobResult>();
  /** Why jobs are being ended. */
  const unsaid = new Map<JobId, string>();
  let emit: (event: CiEvent) => void = () => {};
  let changed = new AbortController();
  /** Why there are no jobs, if the server is to blame; shown once that is certain. */
  let trouble: string | null = null;
  let asking: Promise<unknown> = Promise.resolve();

  const jobs = createGitlabJobs({
    ...{ ...parts, service, pool, images: config.images },
    emit: (event) => emit(event),
  });
  const wake = (): void => changed.abort();
  const isTaken = ({ job }: Held): boolean =>
    [...new Set([...parts.known, ...offers.keys()])].some((slot) => slots.jobsOf(slot).includes(job));
  const waiting = (): Held[] => jobs.all().filter((one) => one.verdict === null && !one.hasBegun && !isTaken(one));
  const isCold = (one: Held): boolean =>
    one.admission !== null && (one.image !== null || wantsOther(pool, one.admission, stateDir));

  function say(problem: string | null): void {
    if (pool === undefined || trouble === problem) return;
    trouble = problem;
    emit({ kind: 'hold', pool: pool.name, reason: problem });
  }

  /** A server in trouble is asked although it holds the pool, because only an answer ends that. */
  const mayAsk = (): boolean =>
    !['preparing', 'failed'].includes(program.state.kind) &&
    waiting().length === 0 &&
    ([...offers.values()].includes('open') || (trouble !== null && offers.size > 0));

  /** Asks for jobs until the end: at once after a job, as the runner itself does. */
  async function follow(): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      changed = new AbortController();
      if (!mayAsk()) {
        await new Promise((resolve) => changed.signal.addEventListener('abort', resolve, { once: true }));
        continue;
      }
      const since = clock.now();
      try {
        const given = await client.request(versionOf(program), signal);
        failures = 0;
        say(null);
        if (given !== null) await jobs.take(given, signal);
        else await sleep(clock, Math.max(0, since + config.pollEvery - clock.now()), signal);
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        const { message, retry } = toFailure(error);
        if (!(error instanceof OnejobError)) log.error('cannot ask for jobs', { service, error });
        // A single failure is not an outage.
        if (!retry || failures > 1) say(message);
        const wait = retry ? doubling(1_000, longest, failures) * (1 - parts.random() / 5) : longest;
        await sleep(clock, Math.round(wait), signal);
      }
    }
  }

  /** Looks at what waits or runs, so that no job of this host is forgotten, here or there. */
  async function look(one: Held): Promise<void> {
    if (one.verdict !== null) return jobs.tell(one, signal);
    const { key } = one.taken;
    const isInSlot = isTaken(one);
    // Between two managers its sandbox was forgotten.
    if (!isInSlot && one.hasBegun)
      return offers.size === 0 ? undefined : jobs.end(one, jobs.lost('its sandbox is gone, and nobody knows why.', null), signal);
    const hasSlots = pool !== undefined && (offers.size === 0 || [...offers.values()].some((offer) => offer !== 'gone'));
    if (!isInSlot && !hasSlots) return jobs.end(one, jobs.cannot('its pool has no slot any more.'), signal);
    const state = one.hasBegun ? await client.state(key, signal) : await client.touch(key, 'pending', signal);
    const isEnded = isOver(state);
    if (!isEnded && state !== 'canceling') {
      one.overSince = null;
      return;
    }
    one.overSince ??= clock.now();
    if (one.hasBegun && clock.now() - one.overSince < tidying) return;
    if (one.agent !== null && isInSlot) emit({ kind: 'cancel', job: one.job, agent: one.agent, grace: 0 });
    else if (isEnded) jobs.forget(one, { word: 'cancelled', outcome: 'cancelled' });
    else await jobs.end(one, jobs.cannot('it was cancelled.'), signal);
  }

  async function lookAfter(): Promise<void> {
    while (!signal.aborted) {
      await sleep(clock, lookEvery, signal);
      for (const one of jobs.all()) {
        if (signal.aborted) return;
        await look(one).catch((error: unknown) => {
          if (!signal.aborted) log.warn('cannot look at a job', { job: one.job, reason: toFailure(error).message });
        });
      }
      wake();
    }
  }

  function apply(change: Change): void {
    const one = 'job' in change ? jobs.of(change.job) : null;
    if (one === null || !('job' in change)) return;
    wake();
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        one.agent = change.agent;
        return;
      case 'started':
        rows.runs(one.job, change.agent, clock.wall());
        void jobs.begun(one);
        return;
      case 'returned':
        jobs.returned(one, change.failure, signal);
        return;
      case 'ended':
        results.set(one.job, change.result);
        return;
      case 'settled':
        results.delete(one.job);
        unsaid.delete(one.job);
        return;
    }
  }

  /** What the runner in the sandbox gets: the job as it came, with the secrets of this host, and a way past proxies to the filter. */
  function payloadFor({ taken, admission }: Held, authority: string): string {
    const { given } = taken;
    if (given === null) throw new RangeError('the job has begun');
    const secrets = (admission?.secrets ?? []).map(({ name: key, value }) => ({
      key,
      value,
      masked: true,
      public: false,
      raw: true,
    }));
    const host = authority.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1');
    const open = given.variables
      .filter(({ key, value }) => /^no_proxy$/i.test(key) && value !== '')
      .map(({ key, value }) => ({ key, value: `${value},${host}`, public: true }));
    return JSON.stringify({ ...given, variables: [...given.variables, ...open, ...secrets] });
  }

  /** Ends what waits here, because this manager ends. */
  async function leave(): Promise<void> {
    closing.abort();
    wake();
    await asking;
    using limit = deadline(clock, leaving);
    const words = jobs.cannot('its host stopped onejob. Run it again.');
    await Promise.all(waiting().map((one) => jobs.end(one, words, limit.signal)));
  }

  return {
    name: service,
    capabilities: { binds: 'late', standsForSlots: true, terms: 1, poolTimeout: true, jobOnStdout: false },
    check: (inner) => findings(parts, trouble, inner),
    observe(send, outer) {
      if (outer.aborted) return;
      const stop = (): void => {
        emit = () => {};
        closing.abort();
        wake();
      };
      outer.addEventListener('abort', stop, { once: true });
      const begin: CiService['observe'] = (own) => {
        emit = own;
        filter?.start(signal);
        asking = Promise.all([jobs.resume(signal).then(follow), lookAfter()]);
      };
      untilProgram({ ...{ program, clock }, pools: parts.pools.map(({ name }) => name) }, begin, send, outer);
    },
    jobs: {
      next(_pool, _slot, only) {
        const fits = ({ admission, image }: Held): boolean =>
          admission !== null && (only !== 'ownImage' || image !== null || hasOwnImage(pool, admission));
        const one = waiting().find(fits);
        return one === undefined ? null : { job: one.job, limit: pool?.timeout ?? null, cold: isCold(one) };
      },
      offer(slot, offer) {
        offers.set(slot, offer);
        wake();
      },
      recipeFor(job, recipe) {
        const one = jobs.of(job);
        // A job without admission gets nothing of the pool.
        if (one === null || one.admission === null || pool === undefined) throw jobUndecided(job);
        const base = one.admission.trusted ? recipe : untrustedRecipe(recipe, pool, cacheKeyOf(one.admission), stateDir);
        if (one.image !== null) return { ...base, image: one.image };
        return one.admission.trusted ? null : base;
      },
      ...whenCommitted(apply),
    },
    async register(context, inner) {
      const { agent, job, name, workspace } = context;
      const one = jobs.of(job);
      if (one === null || one.verdict !== null || one.taken.given === null || pool === undefined) throw jobGone(job);
      if (one.admission === null || filter === null) throw jobUndecided(one.job);
      const { authority, seal } = await filter.listenFor(context, inner);
      one.agent = agent;
      const file = `${service}-${agent}`;
      const until = clock.wall() + (pool.timeout ?? 30 * 86_400_000) + 3_600_000;
      const about = { rules: rulesOf, endpoint: config.url, use: 'job', job: String(one.taken.key.id), build: null, file, until };
      const sealed = seal.close({ ...about, token: left.leave(file, payloadFor(one, authority)) });
      const url = `http://${authority}/${gitlabRules.root}/${sealed}`;
      const script = runnerScript({ name, url, workspace, before: noProxyFor(url), notes: one.notes });
      return { id: null, script, files: null };
    },
    async ending({ job, why, released }) {
      const words = job === null || !released ? null : whyEnding(why, pool);
      if (job === null || words === null) return;
      rows.note(job, words);
      unsaid.set(job, words);
    },
    async settle({ job, agent }, _files, inner) {
      const one = jobs.of(job);
      if (one === null || (one.agent !== null && one.agent !== agent)) return;
      const known = results.get(one.job) ?? parts.exitOf(agent);
      const words = unsaid.get(one.job) ?? whyLost(known, pool);
      jobs.forget(one, await jobs.finish(one, jobs.lost(words, known), inner));
      wake();
    },
    async deregister({ agent }) {
      left.forget(`${service}-${agent}`);
      return { ran: null };
    },
    retire: async () => null,
    equip: (recipe) => equipped(recipe, program.folder),
    serviceJobs: () => rows.list(),
    forget: () => leave(),
    async close(isLeaving) {
      if (isLeaving) closing.abort();
      else await leave();
      wake();
      await asking;
      await filter?.close(isLeaving);
    },
  };
}

/** The version that the server is told; the runner in the sandbox tells its own. */
function versionOf({ state }: Pick<AgentProgram, 'state'>): string {
  return state.kind === 'ready' ? state.version : 'unknown';
}

export function aboutOf(service: string, given: GivenJob) {
  const { id, pipeline, build, repository, branch, tag, reason, link, title } = jobFacts(given);
  return {
    ...{ id: jobIdOf(service, Number(id)), definition: pipeline, build, repository, branch: branch ?? tag, reason, link },
    title: [pipeline, build === null ? null : `#${build}`, title].filter((part) => part !== null).join(' '),
  };
}
