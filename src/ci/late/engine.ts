/**
 * Binds late, for every service whose jobs are given once: asks for a job while a slot is free, as long as none waits for a slot, and
 * gives it to an agent in a fresh sandbox. The agent gets it from the filter, and then speaks for it itself; here is only noticed what
 * has become of it. The service's own credential enters no sandbox.
 */
import { join } from 'node:path';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Config, PoolConfig } from '../../config/config.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId, Change, Exit, JobId, JobResult } from '../../core/slot.ts';
import type { CiEvent, CiService, SlotOffer } from '../../ports/ci-service.ts';
import { describeSecret, readSecret } from '../../schema/secret-reference.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { subdirectory } from '../../store/directory.ts';
import { createFilter, type Filter } from '../filter/filter.ts';
import { createLeft, type Left } from '../filter/left.ts';
import type { Sealed } from '../filter/seal.ts';
import { cacheKeyOf, hasOwnImage, untrustedRecipe, wantsOther } from '../kit/admission.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { createLateRows } from '../kit/job-rows.ts';
import { whyEnding, whyLost } from '../kit/last-words.ts';
import { jobGone, jobUndecided, whenCommitted } from '../kit/late-bound.ts';
import { untilProgram } from '../kit/until-program.ts';
import type { OpenParts, SlotFacts } from '../parts.ts';
import { createLateJobs, type Held, type JobsParts, jobIdOf, openJobFiles } from './jobs.ts';
import type { LatePort } from './port.ts';

export interface LateParts<G, K> extends Pick<JobsParts<G, K>, 'port' | 'files' | 'rows' | 'admission' | 'images'> {
  readonly service: string;
  /** ms between two questions for a job. */
  readonly pollEvery: number;
  /** One at most: the service does not say for which of several a job is. */
  readonly pools: readonly PoolConfig[];
  readonly program: Pick<AgentProgram, 'folder' | 'ready' | 'state'>;
  /** null: this manager makes no agents. */
  readonly filter: Filter | null;
  readonly left: Left;
  readonly slots: Pick<SlotFacts, 'jobsOf'>;
  readonly stateDir: string;
  readonly places: Config['places'];
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  /** How an agent ended, as it was written down; null if that is unknown. */
  readonly exitOf: (agent: AgentId) => Exit | null;
  /** Slots of an earlier manager. */
  readonly known: readonly string[];
}

/** What every such service has from its manager. */
export function openLate<G, K>(service: string, port: LatePort<G, K>, parts: OpenParts) {
  const { store, clock, log, slots, pools, variables, onejob, env } = parts;
  const { version, self, temporary } = onejob;
  const { secretsKey, places } = parts.config;
  const keys = async () =>
    secretsKey === null
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const filterParts = { stateDir: store.dir, self, given: env?.handedOn ?? {}, version, clock, log };
  return {
    service,
    port,
    pools,
    slots,
    stateDir: store.dir,
    clock,
    log,
    random: Math.random,
    places,
    admission: { keys, pins: createPinStore(store, clock) },
    filter: temporary === true ? null : (parts.filter ?? createFilter(filterParts)),
    left: createLeft(subdirectory(store.dir, 'filter')),
    files: openJobFiles(join(store.dir, `jobs-${service}`), port),
    rows: createLateRows(service, parts, (given: G) => ({
      ...port.aboutOf(given),
      id: jobIdOf(service, port.idOf(port.keyOf(given))),
    })),
    exitOf: (agent: AgentId) => store.history.get(agent)?.exit ?? null,
    known: store.slots.all().map(({ slot }) => slot.key),
  };
}

/** ms. Longest wait after failures, and the wait after a refusal, which only a person can fix. */
const longest = 60_000;
/** ms after which a question without an answer ends a turn. */
const silence = 5_000;
/** ms to end waiting jobs when the manager ends. */
const leaving = 5_000;

/** Letters of what an agent said. */
const longestWords = 300;

/** All of a service but its name for `doctor` and what equips its sandboxes. */
export function createLateBound<G, K>(parts: LateParts<G, K>) {
  const { service, port, program, filter, left, slots, rows, stateDir, places, clock, log } = parts;
  const [pool] = parts.pools;
  const closing = new AbortController();
  const { signal } = closing;
  const offers = new Map<string, SlotOffer>();
  const results = new Map<JobId, JobResult>();
  /** Why jobs are being ended. */
  const unsaid = new Map<JobId, string>();
  let emit: (event: CiEvent) => void = () => {};
  let changed = new AbortController();
  /** Why there are no jobs, if the service is to blame; shown once that is certain. */
  let trouble: string | null = null;
  /** Why no sandbox can be given the filter. */
  let unproven: string | null = null;
  let told: string | null = null;
  let asking: Promise<unknown> = Promise.resolve();
  /** Whether a slot gets devices only for a job: here already for the question, because the answer is this host's job. */
  const leases = pool !== undefined && !pool.standby && pool.devices.count !== 0;
  /** Whether a lease is wanted to ask, and how many questions had no answer: each of them ends a turn. */
  let isInLine = false;
  let turns = 0;

  const jobs = createLateJobs({ ...parts, pool, emit: (event) => emit(event) });
  type One = Held<G, K>;
  const wake = (): void => changed.abort();
  const isTaken = ({ job }: One): boolean =>
    [...new Set([...parts.known, ...offers.keys()])].some((slot) => slots.jobsOf(slot).includes(job));
  const waiting = (): One[] => jobs.all().filter((one) => one.verdict === null && !one.hasBegun && !isTaken(one));
  const isCold = (one: One): boolean =>
    one.admission !== null && (one.image !== null || wantsOther(pool, one.admission, stateDir, places));

  function say(problem: string | null): void {
    trouble = problem;
    tellHold();
  }

  function tellHold(): void {
    const reason = unproven ?? trouble;
    if (pool === undefined || told === reason) return;
    told = reason;
    emit({ kind: 'hold', pool: pool.name, reason });
  }

  function heardOfFilter(problem: OnejobError | null): void {
    const reason = problem === null ? null : toFailure(problem).message;
    if (unproven === reason) return;
    unproven = reason;
    if (problem !== null) log.error('no job is taken: the filter has not proved itself', { service, reason });
    tellHold();
    wake();
  }

  /** Joins or leaves the line of pools that wait for devices, in order to ask. */
  function setInLine(up: boolean): void {
    if (pool === undefined || !leases || isInLine === up) return;
    isInLine = up;
    emit({ kind: 'waiting', pool: pool.name });
  }

  const hasProgram = (): boolean => !['preparing', 'failed'].includes(program.state.kind);

  /** A service in trouble is asked although it holds the pool, because only an answer ends that. */
  const mayAsk = (): boolean =>
    hasProgram() &&
    unproven === null &&
    waiting().length === 0 &&
    ([...offers.values()].includes('open') || (trouble !== null && [...offers.values()].some((offer) => offer !== 'gone')));

  function endTurn(): void {
    turns += 1;
    setInLine(false);
  }

  /** A silent server keeps no devices from other pools: a job that it gives after all waits in line like any other. */
  async function ask(): Promise<G | null> {
    const callOff = clock.after(silence, endTurn);
    try {
      return await port.request(!leases, signal);
    } finally {
      callOff();
    }
  }

  /** Asks for jobs until the end: at once after a job, else as often as config says. */
  async function follow(): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      changed = new AbortController();
      if (!mayAsk()) {
        setInLine(hasProgram() && unproven === null && waiting().length === 0);
        if (!changed.signal.aborted)
          await new Promise((resolve) => changed.signal.addEventListener('abort', resolve, { once: true }));
        continue;
      }
      const since = clock.now();
      try {
        const given = await ask();
        failures = 0;
        say(null);
        if (given !== null) {
          await jobs.take(given, signal);
          setInLine(false);
          continue;
        }
        endTurn();
        await sleep(clock, Math.max(0, since + parts.pollEvery - clock.now()), signal);
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        endTurn();
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
  async function look(one: One): Promise<void> {
    if (one.verdict !== null) return jobs.tell(one, signal);
    const isInSlot = isTaken(one);
    // Between two managers its sandbox was forgotten.
    if (!isInSlot && one.hasBegun)
      return offers.size === 0 ? undefined : jobs.end(one, jobs.lost('its sandbox is gone, and nobody knows why.', null), signal);
    const hasSlots = pool !== undefined && (offers.size === 0 || [...offers.values()].some((offer) => offer !== 'gone'));
    if (!isInSlot && !hasSlots) return jobs.end(one, jobs.unable('its pool has no slot any more.'), signal);
    const state = await port.look(one.key, !one.hasBegun, signal);
    if (state === 'ours') {
      one.overSince = null;
      if (one.admission === null && !one.hasBegun) await jobs.decide(one, signal);
      return;
    }
    one.overSince ??= clock.now();
    const isCancelled = state === 'cancelled' || state.outcome === 'cancelled';
    if (one.hasBegun && clock.now() - one.overSince < port.pace[isCancelled ? 'cancelled' : 'over']) return;
    if (one.agent !== null && isInSlot) emit({ kind: 'cancel', job: one.job, agent: one.agent, grace: 0 });
    else if (state !== 'cancelled') jobs.forget(one, state);
    else await jobs.end(one, jobs.unable('it was cancelled.'), signal);
  }

  async function lookAfter(): Promise<void> {
    while (!signal.aborted) {
      await sleep(clock, port.pace.look, signal);
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

  /** Ends what waits here, because this manager ends. */
  async function leave(): Promise<void> {
    closing.abort();
    wake();
    await asking;
    using limit = deadline(clock, leaving);
    const words = jobs.unable('its host stopped onejob. Run it again.');
    const withdrawn = port.withdraw?.(limit.signal).catch((error: unknown) => {
      log.warn('something stays at the service', { service, reason: toFailure(error).message });
    });
    await Promise.all([withdrawn, ...waiting().map((one) => jobs.end(one, words, limit.signal))]);
  }

  /** Of what the filter gives to an agent. */
  const fileOf = (agent: AgentId): string => `${service}-${agent}`;

  return {
    /** Why there are no jobs now; null: no problem is known. */
    trouble: () => trouble,
    common: {
      name: service,
      capabilities: { binds: 'late', standsForSlots: true, terms: 1, poolTimeout: true, jobOnStdout: false },
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
          filter?.start(signal, heardOfFilter);
          asking = Promise.all([jobs.resume(signal).then(follow), lookAfter()]);
        };
        const tell: typeof send = (event) => {
          send(event);
          // The program may be there now.
          if (event.kind === 'hold') wake();
        };
        untilProgram({ program, clock, pools: parts.pools.map(({ name }) => name) }, begin, tell, outer);
      },
      jobs: {
        next(_pool, _slot, only) {
          const fits = ({ admission, image }: One): boolean =>
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
          const { trusted } = one.admission;
          const base = trusted ? recipe : untrustedRecipe(recipe, pool, cacheKeyOf(one.admission), stateDir, places);
          if (one.image !== null) return { ...base, image: one.image, ...jobs.imageRights(one.image, trusted) };
          return trusted ? null : base;
        },
        namesImage: (job) => (jobs.of(job)?.image ?? null) !== null,
        ...whenCommitted(apply),
      },
      async register(context, inner) {
        const { agent, job } = context;
        const one = jobs.of(job);
        if (one === null || one.verdict !== null || one.given === null || pool === undefined) throw jobGone(job);
        const { admission, notes, given } = one;
        if (admission === null || filter === null) throw jobUndecided(one.job);
        const { authority, seal } = await filter.listenFor(context, inner);
        one.agent = agent;
        const file = fileOf(agent);
        const { rules, endpoint } = port;
        const until = clock.wall() + (pool.timeout ?? 30 * 86_400_000) + 3_600_000;
        const about = { rules, endpoint, use: 'job', job: port.idOf(one.key), build: null, file, until };
        const leave = (payload: string | Uint8Array, signs?: Sealed['signs']): string =>
          seal.close({ ...about, token: left.leave(file, payload), ...(signs !== undefined && { signs }) });
        const { secrets, trusted } = admission;
        const script = await port.script(context, given, { authority, notes, secrets, trusted, leave }, inner);
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
        await jobs.finish(one, jobs.lost(unsaid.get(one.job) ?? whyLost(known, pool), known), inner);
        wake();
      },
      listen: (agent) => (line) => {
        if (port.failsOutside?.(line) !== true) return;
        const one = jobs.all().find((each) => each.agent === agent);
        if (one !== undefined) one.failedOutside ??= `Its runner said: ${line.slice(0, longestWords)}`;
      },
      async deregister({ agent }) {
        left.forget(fileOf(agent));
        return { ran: null };
      },
      retire: async () => null,
      turn: () => (isInLine || waiting().length > 0 ? String(turns) : null),
      serviceJobs: () => rows.list(),
      forget: () => leave(),
      async close(isLeaving) {
        if (isLeaving) closing.abort();
        else await leave();
        wake();
        await asking;
        await filter?.close(isLeaving);
      },
    } satisfies Omit<CiService, 'check' | 'equip'>,
  };
}
