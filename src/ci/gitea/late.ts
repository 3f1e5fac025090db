/**
 * Gitea, bound late (`binding: late`): while a slot is open, onejob asks for a task with the key of a runner that is registered for
 * this one job, decides about it, and gives it to the real runner in a fresh sandbox. That runner gets it once, from the filter, which
 * knows the key; neither key nor access token enters a sandbox.
 */
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId, Change, Exit, JobId, JobResult } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent, CiService, SlotOffer } from '../ci-service.ts';
import { createAgentNames } from '../early/registrations.ts';
import type { Filter } from '../filter/filter.ts';
import type { Left } from '../filter/left.ts';
import { cacheKeyOf, hasOwnImage, untrustedRecipe, wantsOther } from '../kit/admission.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { endUnreported, jobsOwnFailure, mostTries } from '../kit/job-rows.ts';
import { whyEnding, whyLost } from '../kit/last-words.ts';
import { jobGone, jobUndecided, whenCommitted } from '../kit/late-bound.ts';
import { noProxyFor } from '../kit/mounted.ts';
import { untilProgram } from '../kit/until-program.ts';
import type { SlotFacts } from '../parts.ts';
import { findings } from './doctor.ts';
import { giteaRules, rulesOf } from './filter-rules.ts';
import { createLateJobs, type Held, type LateJobsParts } from './late-jobs.ts';
import { createPlaces } from './registry.ts';
import { equipped, runnerScript } from './script.ts';
import type { Enlisted } from './taken.ts';
import { handedIn } from './task.ts';
import { type GiteaServiceConfig, labelsOf } from './type.ts';
import type { Job } from './wire.ts';

export interface LateParts extends Omit<LateJobsParts, 'service'> {
  readonly config: GiteaServiceConfig;
  readonly program: Pick<AgentProgram, 'folder' | 'ready' | 'state'>;
  /** null: it makes no agents. */
  readonly filter: Filter | null;
  readonly left: Left;
  readonly slots: Pick<SlotFacts, 'jobsOf'>;
  readonly stateDir: string;
  /** Of the installation, and the host's name for people. */
  readonly owner: string;
  readonly host: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  /** How an agent ended, as it was written down; null if that is unknown. */
  readonly exitOf: (agent: AgentId) => Exit | null;
  /** Slots of an earlier manager. */
  readonly known: readonly string[];
}

/** ms between two questions for a task, as of the runner in sandboxes. The server answers at once. */
const askEvery = 1_000;
/** ms. Longest wait after failures, and the wait after a refusal, which only a person can fix. */
const longest = 60_000;
/** ms that a runner may live on after its job is over, and with one that was cancelled, of which it never hears. */
const [tidying, cancelGrace] = [60_000, 1_000];
/** ms to end waiting jobs, and to remove runners, when the manager ends. */
const leaving = 5_000;

export function createLateGitea(parts: LateParts): CiService {
  const { config, pools, client, program, filter, left, slots, files, rows, stateDir, clock, log } = parts;
  const { name: service, url } = config;
  const jobs = createLateJobs({ ...parts, service });
  const places = createPlaces(client, url);
  const names = createAgentNames(parts.owner);
  /** The same for all runners of a pool. */
  const nameOf = (pool: PoolConfig): string => names.agentName(`${parts.host}-${pool.name}`, 'late');
  const poolOf = (slot: string): string => slot.slice(0, slot.lastIndexOf('/'));
  const closing = new AbortController();
  const { signal } = closing;
  const offers = new Map<string, SlotOffer>();
  const results = new Map<JobId, JobResult>();
  /** Why jobs are being ended. */
  const unsaid = new Map<JobId, string>();
  /** Runners that have no task, or one whose answer is lost. */
  const idle = new Map<number, Enlisted>();
  /** Why there are no jobs, by pool, if the server is to blame; shown once that is certain. */
  const troubles = new Map<string, string>();
  let emit: (event: CiEvent) => void = () => {};
  let changed = new AbortController();
  let working: Promise<unknown> = Promise.resolve();

  function wake(): void {
    const before = changed;
    changed = new AbortController();
    before.abort();
  }
  const isTaken = ({ job }: Held): boolean =>
    [...new Set([...parts.known, ...offers.keys()])].some((slot) => slots.jobsOf(slot).includes(job));
  const waiting = (pool?: string): Held[] =>
    jobs
      .all()
      .filter((one) => one.verdict === null && !one.hasBegun && (pool ?? one.taken.pool) === one.taken.pool && !isTaken(one));
  const offersOf = (pool: string): SlotOffer[] => [...offers].flatMap(([slot, offer]) => (poolOf(slot) === pool ? [offer] : []));

  function say(pool: string, problem: string | null): void {
    if ((troubles.get(pool) ?? null) === problem) return;
    if (problem === null) troubles.delete(pool);
    else troubles.set(pool, problem);
    emit({ kind: 'hold', pool, reason: problem });
  }

  /** A server in trouble is asked although it holds the pool, because only an answer ends that. */
  const mayAsk = (pool: string): boolean =>
    !['preparing', 'failed'].includes(program.state.kind) &&
    waiting(pool).length === 0 &&
    (offersOf(pool).includes('open') || (troubles.has(pool) && offersOf(pool).length > 0));

  /** Registers a runner for one job. Its key is on disk before it is used. */
  async function enlist(pool: PoolConfig): Promise<Enlisted> {
    const place = await places.find(pool.queue, signal);
    const token = await client.registrationToken(place, signal);
    const version = program.state.kind === 'ready' ? program.state.version : 'unknown';
    const made = await client.register({ name: nameOf(pool), token, labels: labelsOf(pool), version }, signal);
    if (made === null) {
      const message = `Cannot register a runner for pool ${pool.name}: ${url} does not accept the registration token that it has just made.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob tries again.', retry: true });
    }
    const { id, uuid, token: own } = made;
    const one: Enlisted = { id, key: { uuid, token: own }, pool: pool.name, place, task: null };
    await files.keep(one);
    idle.set(id, one);
    return one;
  }

  /** Removes runners of the pool whose keys nobody has: their registration was the last that a manager did. */
  async function sweep(pool: PoolConfig): Promise<void> {
    const place = await places.find(pool.queue, signal);
    const ours = new Set(files.all().map(({ id }) => id));
    for (const { id, name } of await client.runners(place, signal))
      if (name === nameOf(pool) && !ours.has(id)) await client.deleteRunner(place, String(id), signal);
  }

  /** Asks for the pool's jobs until the end. After any failure nobody knows what its runner was given, so that is found out first. */
  async function follow(pool: PoolConfig): Promise<void> {
    let current: Enlisted | null = null;
    let isSwept = false;
    for (let failures = 0; !signal.aborted; ) {
      const turn = changed;
      if (!mayAsk(pool.name)) {
        await new Promise((resolve) => turn.signal.addEventListener('abort', resolve, { once: true }));
        continue;
      }
      try {
        for (const one of idle.values()) if (one.pool === pool.name && one !== current) await letGo(one, signal);
        if (!isSwept) await sweep(pool);
        isSwept = true;
        const mine: Enlisted = current ?? (await enlist(pool));
        current = null;
        const answer = await client.fetchTask(mine.key, signal);
        failures = 0;
        say(pool.name, null);
        if (await jobs.take(mine, answer, signal)) {
          idle.delete(mine.id);
          emit({ kind: 'waiting', pool: pool.name });
        } else {
          current = mine;
          await sleep(clock, askEvery, signal);
        }
      } catch (error) {
        if (signal.aborted) return;
        isSwept = false;
        failures += 1;
        const { message, retry } = toFailure(error);
        if (!(error instanceof OnejobError)) log.error('cannot ask for jobs', { service, error });
        // A single failure is not an outage.
        if (!retry || failures > 1) say(pool.name, message);
        const wait = retry ? doubling(1_000, longest, failures) * (1 - parts.random() / 5) : longest;
        await sleep(clock, Math.round(wait), signal);
      }
    }
  }

  async function letGo(one: Enlisted, inner: AbortSignal): Promise<void> {
    await jobs.release(one, inner);
    idle.delete(one.id);
  }

  /** Looks at what waits or runs, so that no job of this host is forgotten, here or there. `running`: as the server shows it. */
  async function look(one: Held, running: ReadonlyMap<string, readonly Job[]>): Promise<void> {
    if (one.verdict !== null) return jobs.tell(one, signal);
    const { taken, agent, job } = one;
    const isInSlot = isTaken(one);
    const its = offersOf(taken.pool);
    // Between two managers its sandbox was forgotten.
    if (!isInSlot && one.hasBegun)
      return its.length === 0
        ? undefined
        : jobs.end(one, lost('the sandbox of this job is gone, and nobody knows why.', null), signal);
    if (!isInSlot && its.length > 0 && its.every((offer) => offer === 'gone'))
      return jobs.end(one, jobs.cannot('its pool has no slot any more.'), signal);
    const now = running.get(taken.place)?.find(({ runner_id }) => runner_id === taken.id);
    one.seen = now ?? one.seen;
    // While it waits, the server must hear of it at least every ten minutes.
    if (one.hasBegun ? now !== undefined : await client.touch(taken.key, taken.task.id, signal)) {
      one.overSince = null;
      return;
    }
    const found = await jobs.find(one, signal);
    if (found !== null && found.status !== 'completed') return;
    one.overSince ??= clock.now();
    const isCancelled = found?.conclusion === 'cancelled' || !one.hasBegun;
    if (!isInSlot) jobs.forget(one, { word: found?.conclusion ?? 'cancelled', outcome: 'cancelled' });
    else if (agent !== null && (isCancelled || clock.now() - one.overSince >= tidying))
      emit({ kind: 'cancel', job, agent, grace: isCancelled ? cancelGrace : 0 });
  }

  async function lookAfter(): Promise<void> {
    while (!signal.aborted) {
      await sleep(clock, config.pollEvery, signal);
      const warn = (job: JobId | null) => (error: unknown) => {
        if (!signal.aborted) log.warn('cannot look at a job', { job: job ?? service, reason: toFailure(error).message });
      };
      const begun = new Set(jobs.all().flatMap(({ hasBegun, taken }) => (hasBegun ? [taken.place] : [])));
      const lists = [...begun].map(async (place) => [place, await client.jobs(place, 'in_progress', signal)] as const);
      const running = await Promise.all(lists).then((all) => new Map(all), warn(null));
      for (const one of running === undefined ? [] : jobs.all()) {
        if (signal.aborted) return;
        await look(one, running ?? new Map()).catch(warn(one.job));
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
        returned(one, change.failure);
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

  /** Its sandbox has certainly not begun it. `failure`: what went wrong; null: nothing did. */
  function returned(one: Held, failure: Parameters<typeof jobsOwnFailure>[0]): void {
    const its = jobsOwnFailure(failure);
    one.agent = null;
    one.failures += its === null ? 0 : 1;
    if (one.overSince !== null) void jobs.end(one, jobs.cannot('it was cancelled.'), signal);
    else if (its !== null && (one.failures >= mostTries || !its.retry)) void jobs.end(one, jobs.cannot(its.message), signal);
    else queueMicrotask(() => emit({ kind: 'waiting', pool: one.taken.pool }));
  }

  const lost = (words: string, result: JobResult | null) => ({ words, end: endUnreported(result) });

  /** Ends what waits here, and removes runners without a job, because this manager ends. */
  async function leave(): Promise<void> {
    closing.abort();
    wake();
    await working;
    using limit = deadline(clock, leaving);
    const words = jobs.cannot('its host stopped onejob. Run it again.');
    const removed = [...idle.values()].map((one) =>
      letGo(one, limit.signal).catch((error: unknown) =>
        log.warn('a runner stays at its server', { reason: toFailure(error).message }),
      ),
    );
    await Promise.all([...waiting().map((one) => jobs.end(one, words, limit.signal)), ...removed]);
  }

  return {
    name: service,
    capabilities: { binds: 'late', standsForSlots: true, terms: 1, poolTimeout: true, jobOnStdout: false },
    check: (inner) => findings(parts, { places, isOurs: (name) => names.agentOf(name) !== null, left: 0 }, inner),
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
        const resumed = async (): Promise<void> => {
          for (const one of await jobs.resume(signal)) idle.set(one.id, one);
          for (const one of idle.values())
            if (!pools.some(({ name }) => name === one.pool)) await letGo(one, signal).catch(() => {});
          for (const { name } of pools) if (waiting(name).length > 0) emit({ kind: 'waiting', pool: name });
          await Promise.all(pools.map(follow));
        };
        working = Promise.all([resumed(), lookAfter()]);
      };
      untilProgram({ ...{ program, clock }, pools: pools.map(({ name }) => name) }, begin, send, outer);
    },
    jobs: {
      next(pool, _slot, only) {
        const own = pools.find(({ name }) => name === pool);
        const one = waiting(pool).find(
          ({ admission }) => admission !== null && (only !== 'ownImage' || hasOwnImage(own, admission)),
        );
        if (one === undefined || one.admission === null) return null;
        return { job: one.job, limit: own?.timeout ?? null, cold: wantsOther(own, one.admission, stateDir) };
      },
      offer(slot, offer) {
        offers.set(slot, offer);
        wake();
      },
      recipeFor(job, recipe) {
        const { admission = null, pool } = jobs.of(job) ?? {};
        // A job without admission gets nothing of the pool.
        if (admission === null || pool === undefined) throw jobUndecided(job);
        return admission.trusted ? null : untrustedRecipe(recipe, pool, cacheKeyOf(admission), stateDir);
      },
      ...whenCommitted(apply),
    },
    async register(context, inner) {
      const { agent, job, name, workspace } = context;
      const one = jobs.of(job);
      const { answer = null } = one?.taken.task ?? {};
      if (one === null || one.verdict !== null || answer === null || one.pool === undefined) throw jobGone(job);
      const { admission, taken, pool } = one;
      if (admission === null || filter === null) throw jobUndecided(one.job);
      const { authority, seal } = await filter.listenFor(context, inner);
      one.agent = agent;
      const { key, task } = taken;
      const file = `${service}-${agent}`;
      const token = left.leave(file, handedIn(Buffer.from(answer, 'base64'), { ...admission, url }));
      const until = clock.wall() + (pool.timeout ?? 30 * 86_400_000) + 3_600_000;
      const signs = { 'x-runner-uuid': key.uuid, 'x-runner-token': key.token };
      const about = { rules: rulesOf, endpoint: url, use: 'job', job: one.job, build: null, file, until, token, signs };
      if (admission.why !== null) {
        // In the place of the runner's own first line, which only names the task: the server drops as many lines as it has.
        const rows = [{ time: new Date(clock.wall()).toISOString(), content: `onejob: ${admission.why}` }];
        await client.log(key, task.id, { from: 0, rows, isLast: false }, inner);
      }
      const door = `http://${authority}/${giteaRules.root}`;
      const made = { id: taken.id, uuid: 'onejob', token: seal.close(about), name, labels: labelsOf(pool), workspace };
      return {
        id: null,
        script: runnerScript({ ...made, url: door, timeout: pool.timeout, before: noProxyFor(door) }),
        files: null,
      };
    },
    async ending({ job, why, released }) {
      const words = job === null || !released ? null : whyEnding(why, jobs.of(job)?.pool);
      if (job === null || words === null) return;
      rows.note(job, words);
      unsaid.set(job, words);
    },
    async settle({ job, agent }, _files, inner) {
      const one = jobs.of(job);
      if (one === null || (one.agent !== null && one.agent !== agent)) return;
      const known = results.get(one.job) ?? parts.exitOf(agent);
      jobs.forget(one, await jobs.finish(one, lost(unsaid.get(one.job) ?? whyLost(known, one.pool), known), inner));
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
      await working;
      await filter?.close(isLeaving);
    },
  };
}
