/**
 * Binds late, for every service whose jobs are given once: asks for a job while a slot is free, as long as none waits for a slot, and
 * gives it to an agent in a fresh sandbox. The agent gets it from the filter, and then speaks for it itself; here is only noticed what
 * has become of it. The service's own credential enters no sandbox.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Config, PoolConfig } from '../../config/config.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId, Change, Exit, JobId, JobResult } from '../../core/slot.ts';
import type {
  AgentContext,
  CiEvent,
  CiService,
  EndedContext,
  EndingAgent,
  JobSource,
  Registration,
  SlotOffer,
} from '../../ports/ci-service.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { describeSecret, readSecret } from '../../schema/secret-reference.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { subdirectory } from '../../store/directory.ts';
import { cacheRoot, cacheRulesOf } from '../filter/cache-calls.ts';
import { type Filter, FilterProcess } from '../filter/filter.ts';
import { OneTimeFiles } from '../filter/one-time-files.ts';
import type { Sealed } from '../filter/seal.ts';
import { cacheKeyOf, hasOwnImage, projectOf, recipeOf, wantsOther } from '../kit/admission.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { LateRows } from '../kit/job-rows.ts';
import { whyEnding, whyLost } from '../kit/last-words.ts';
import { jobGone, jobUndecided, whenCommitted } from '../kit/late-bound.ts';
import { untilProgram } from '../kit/until-program.ts';
import type { OpenParts, SlotFacts } from '../parts.ts';
import { ownerPath, trustedCaches, untrustedPrefix } from '../stored/store.ts';
import { type JobsParts, jobIdOf, type LateJob, LateJobs, openJobFiles } from './jobs.ts';
import type { Admitted, JobHandover, LatePort } from './port.ts';

export interface LateParts<G, K> extends Pick<JobsParts<G, K>, 'port' | 'files' | 'rows' | 'admission' | 'images'> {
  readonly service: string;
  /** ms between two questions for a job. */
  readonly pollEvery: number;
  /** One at most: the service does not say for which of several a job is. */
  readonly pools: readonly PoolConfig[];
  readonly program: Pick<AgentProgram, 'folder' | 'ready' | 'state'>;
  /** null: this manager makes no agents. */
  readonly filter: Filter | null;
  readonly left: OneTimeFiles;
  readonly slots: Pick<SlotFacts, 'jobsOf'>;
  readonly stateDir: string;
  readonly places: Config['places'];
  /** Share of the disk that caches leave free. */
  readonly minFree: number;
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
    minFree: parts.config.diskMinFree ?? 0,
    clock,
    log,
    random: Math.random,
    places,
    admission: { keys, pins: createPinStore(store, clock) },
    filter: temporary === true ? null : (parts.filter ?? new FilterProcess(filterParts)),
    left: new OneTimeFiles(subdirectory(store.dir, 'filter')),
    files: openJobFiles(join(store.dir, `jobs-${service}`), port),
    rows: new LateRows(service, parts, (given: G) => ({
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

/** Of the file that is there as long as an agent may ask for caches. */
const cachesOf = (file: string): string => `${file}-caches`;

/** Letters of what an agent said. */
const longestWords = 300;

/** All of a service but its name for `doctor` and what equips its sandboxes. */
type LateCommon = Omit<CiService, 'check' | 'equip'> & Required<Pick<CiService, 'settle' | 'listen' | 'serviceJobs' | 'close'>>;

export class LateBound<G, K> {
  readonly #parts: LateParts<G, K>;
  readonly #pool: PoolConfig | undefined;
  readonly #closing = new AbortController();
  readonly #signal: AbortSignal;
  readonly #offers = new Map<string, SlotOffer>();
  readonly #results = new Map<JobId, JobResult>();
  /** Why jobs are being ended. */
  readonly #unsaid = new Map<JobId, string>();
  #emit: (event: CiEvent) => void = () => {};
  #changed = new AbortController();
  /** Why there are no jobs, if the service is to blame; shown once that is certain. */
  #trouble: string | null = null;
  /** Why no sandbox can be given the filter. */
  #unproven: string | null = null;
  #told: string | null = null;
  #asking: Promise<unknown> = Promise.resolve();
  /** Whether a slot gets devices only for a job: here already for the question, because the answer is this host's job. */
  readonly #leases: boolean;
  /** Whether a lease is wanted to ask, and how many questions had no answer: each of them ends a turn. */
  #isInLine = false;
  #turns = 0;
  readonly #jobs: LateJobs<G, K>;
  readonly #source: JobSource;
  readonly common: LateCommon;

  constructor(parts: LateParts<G, K>) {
    this.#parts = parts;
    this.#pool = parts.pools[0];
    this.#signal = this.#closing.signal;
    this.#leases = this.#pool !== undefined && !this.#pool.standby && this.#pool.devices.count !== 0;
    this.#jobs = new LateJobs({ ...this.#parts, pool: this.#pool, emit: (event) => this.#emit(event) });
    this.#source = {
      next: (_pool, _slot, only) => {
        const fits = ({ admission, image }: LateJob<G, K>): boolean =>
          admission !== null && (only !== 'ownImage' || image !== null || hasOwnImage(this.#pool, admission));
        const one = this.#waiting().find(fits);
        return one === undefined ? null : { job: one.job, limit: this.#pool?.timeout ?? null, cold: this.#isCold(one) };
      },
      offer: (slot, offer) => {
        this.#offers.set(slot, offer);
        this.#wake();
      },
      recipeFor: (job, recipe) => this.#recipeFor(job, recipe),
      namesImage: (job) => (this.#jobs.of(job)?.image ?? null) !== null,
      ...whenCommitted((change) => this.#apply(change)),
    };
    this.common = {
      name: this.#parts.service,
      capabilities: { binds: 'late', standsForSlots: true, terms: 1, poolTimeout: true, jobOnStdout: false },
      observe: (send, outer) => this.#observe(send, outer),
      jobs: this.#source,
      register: (context, inner) => this.#register(context, inner),
      ending: async (ending) => this.#note(ending),
      settle: (context, _files, inner) => this.#settle(context, inner),
      listen: (agent) => (line) => this.#heard(agent, line),
      deregister: async ({ agent }) => {
        this.#parts.left.forget(this.#fileOf(agent));
        this.#parts.left.forget(cachesOf(this.#fileOf(agent)));
        return { ran: null };
      },
      retire: async () => null,
      turn: () => (this.#isInLine || this.#waiting().length > 0 ? String(this.#turns) : null),
      serviceJobs: () => this.#parts.rows.list(),
      forget: () => this.#leave(),
      close: (isLeaving) => this.#close(isLeaving),
    };
  }

  /** Why there are no jobs now; null: no problem is known. */
  get trouble(): string | null {
    return this.#trouble;
  }

  #wake(): void {
    this.#changed.abort();
  }

  #isTaken({ job }: LateJob<G, K>): boolean {
    return [...new Set([...this.#parts.known, ...this.#offers.keys()])].some((slot) =>
      this.#parts.slots.jobsOf(slot).includes(job),
    );
  }

  #waiting(): LateJob<G, K>[] {
    return this.#jobs.all().filter((one) => one.verdict === null && !one.hasBegun && !this.#isTaken(one));
  }

  #isCold(one: LateJob<G, K>): boolean {
    return (
      one.admission !== null &&
      (one.image !== null || wantsOther(this.#pool, one.admission, this.#parts.stateDir, this.#parts.places))
    );
  }

  #say(problem: string | null): void {
    this.#trouble = problem;
    this.#tellHold();
  }

  #tellHold(): void {
    const reason = this.#unproven ?? this.#trouble;
    if (this.#pool === undefined || this.#told === reason) return;
    this.#told = reason;
    this.#emit({ kind: 'hold', pool: this.#pool.name, reason });
  }

  #heardOfFilter(problem: OnejobError | null): void {
    const reason = problem === null ? null : toFailure(problem).message;
    if (this.#unproven === reason) return;
    this.#unproven = reason;
    if (problem !== null)
      this.#parts.log.error('no job is taken: the filter has not proved itself', { service: this.#parts.service, reason });
    this.#tellHold();
    this.#wake();
  }

  /** Joins or leaves the line of pools that wait for devices, in order to ask. */
  #setInLine(up: boolean): void {
    if (this.#pool === undefined || !this.#leases || this.#isInLine === up) return;
    this.#isInLine = up;
    this.#emit({ kind: 'waiting', pool: this.#pool.name });
  }

  #hasProgram(): boolean {
    return !['preparing', 'failed'].includes(this.#parts.program.state.kind);
  }

  /** A service in trouble is asked although it holds the pool, because only an answer ends that. */
  #mayAsk(): boolean {
    return (
      this.#hasProgram() &&
      this.#unproven === null &&
      this.#waiting().length === 0 &&
      ([...this.#offers.values()].includes('open') ||
        (this.#trouble !== null && [...this.#offers.values()].some((offer) => offer !== 'gone')))
    );
  }

  #endTurn(): void {
    this.#turns += 1;
    this.#setInLine(false);
  }

  /** A silent server keeps no devices from other pools: a job that it gives after all waits in line like any other. */
  async #ask(): Promise<G | null> {
    const callOff = this.#parts.clock.after(silence, () => this.#endTurn());
    try {
      return await this.#parts.port.request(!this.#leases, this.#signal);
    } finally {
      callOff();
    }
  }

  /** Asks for jobs until the end: at once after a job, else as often as config says. */
  async #follow(): Promise<void> {
    for (let failures = 0; !this.#signal.aborted; ) {
      this.#changed = new AbortController();
      if (!this.#mayAsk()) {
        this.#setInLine(this.#hasProgram() && this.#unproven === null && this.#waiting().length === 0);
        if (!this.#changed.signal.aborted)
          await new Promise((resolve) => this.#changed.signal.addEventListener('abort', resolve, { once: true }));
        continue;
      }
      const since = this.#parts.clock.now();
      try {
        const given = await this.#ask();
        failures = 0;
        this.#say(null);
        if (given !== null) {
          await this.#jobs.take(given, this.#signal);
          this.#setInLine(false);
          continue;
        }
        this.#endTurn();
        await sleep(this.#parts.clock, Math.max(0, since + this.#parts.pollEvery - this.#parts.clock.now()), this.#signal);
      } catch (error) {
        if (this.#signal.aborted) return;
        failures += 1;
        this.#endTurn();
        const { message, retry } = toFailure(error);
        if (!(error instanceof OnejobError)) this.#parts.log.error('cannot ask for jobs', { service: this.#parts.service, error });
        // A single failure is not an outage.
        if (!retry || failures > 1) this.#say(message);
        const wait = retry ? doubling(1_000, longest, failures) * (1 - this.#parts.random() / 5) : longest;
        await sleep(this.#parts.clock, Math.round(wait), this.#signal);
      }
    }
  }

  /** Looks at what waits or runs, so that no job of this host is forgotten, here or there. */
  async #look(one: LateJob<G, K>): Promise<void> {
    if (one.verdict !== null) return this.#jobs.tell(one, this.#signal);
    const isInSlot = this.#isTaken(one);
    // Between two managers its sandbox was forgotten.
    if (!isInSlot && one.hasBegun)
      return this.#offers.size === 0
        ? undefined
        : this.#jobs.end(one, this.#jobs.lost('its sandbox is gone, and nobody knows why.', null), this.#signal);
    const hasSlots =
      this.#pool !== undefined && (this.#offers.size === 0 || [...this.#offers.values()].some((offer) => offer !== 'gone'));
    if (!isInSlot && !hasSlots) return this.#jobs.end(one, this.#jobs.unable('its pool has no slot any more.'), this.#signal);
    const state = await this.#parts.port.look(one.key, !one.hasBegun, this.#signal);
    if (state === 'ours') {
      one.overSince = null;
      if (one.admission === null && !one.hasBegun) await this.#jobs.decide(one, this.#signal);
      return;
    }
    one.overSince ??= this.#parts.clock.now();
    const isCancelled = state === 'cancelled' || state.outcome === 'cancelled';
    if (one.hasBegun && this.#parts.clock.now() - one.overSince < this.#parts.port.pace[isCancelled ? 'cancelled' : 'over']) return;
    if (one.agent !== null && isInSlot) this.#emit({ kind: 'cancel', job: one.job, agent: one.agent, grace: 0 });
    else if (state !== 'cancelled') this.#jobs.forget(one, state);
    else await this.#jobs.end(one, this.#jobs.unable('it was cancelled.'), this.#signal);
  }

  async #lookAfter(): Promise<void> {
    while (!this.#signal.aborted) {
      await sleep(this.#parts.clock, this.#parts.port.pace.look, this.#signal);
      for (const one of this.#jobs.all()) {
        if (this.#signal.aborted) return;
        await this.#look(one).catch((error: unknown) => {
          if (!this.#signal.aborted)
            this.#parts.log.warn('cannot look at a job', { job: one.job, reason: toFailure(error).message });
        });
      }
      this.#wake();
    }
  }

  #apply(change: Change): void {
    const one = 'job' in change ? this.#jobs.of(change.job) : null;
    if (one === null || !('job' in change)) return;
    this.#wake();
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        one.agent = change.agent;
        return;
      case 'started':
        this.#parts.rows.runs(one.job, change.agent, this.#parts.clock.wall());
        void this.#jobs.begun(one);
        return;
      case 'returned':
        this.#jobs.returned(one, change.failure, this.#signal);
        return;
      case 'ended':
        this.#results.set(one.job, change.result);
        return;
      case 'settled':
        this.#results.delete(one.job);
        this.#unsaid.delete(one.job);
        return;
    }
  }

  /** Ends what waits here, because this manager ends. */
  async #leave(): Promise<void> {
    this.#closing.abort();
    this.#wake();
    await this.#asking;
    using limit = deadline(this.#parts.clock, leaving);
    const words = this.#jobs.unable('its host stopped onejob. Run it again.');
    const withdrawn = this.#parts.port.withdraw?.(limit.signal).catch((error: unknown) => {
      this.#parts.log.warn('something stays at the service', { service: this.#parts.service, reason: toFailure(error).message });
    });
    await Promise.all([withdrawn, ...this.#waiting().map((one) => this.#jobs.end(one, words, limit.signal))]);
  }

  /** Of what the filter gives to an agent. */
  #fileOf(agent: AgentId): string {
    return `${this.#parts.service}-${agent}`;
  }

  #observe(send: (event: CiEvent) => void, outer: AbortSignal): void {
    if (outer.aborted) return;
    const stop = (): void => {
      this.#emit = () => {};
      this.#closing.abort();
      this.#wake();
    };
    outer.addEventListener('abort', stop, { once: true });
    this.#parts.rows.resume();
    const begin: CiService['observe'] = (own) => {
      this.#emit = own;
      this.#parts.filter?.start(this.#signal, (found) => this.#heardOfFilter(found));
      this.#asking = Promise.all([this.#jobs.resume(this.#signal).then(() => this.#follow()), this.#lookAfter()]);
    };
    const tell: typeof send = (event) => {
      send(event);
      // The program may be there now.
      if (event.kind === 'hold') this.#wake();
    };
    untilProgram(
      { program: this.#parts.program, clock: this.#parts.clock, pools: this.#parts.pools.map(({ name }) => name) },
      begin,
      tell,
      outer,
    );
  }

  #recipeFor(job: JobId, recipe: Recipe): Recipe | null {
    const one = this.#jobs.of(job);
    // A job without admission gets nothing of the pool.
    if (one === null || one.admission === null || this.#pool === undefined) throw jobUndecided(job);
    const other = recipeOf(recipe, this.#pool, one.admission, this.#parts.stateDir, this.#parts.places);
    if (one.image === null) return other;
    return { ...(other ?? recipe), image: one.image, ...this.#jobs.imageRights(one.image, one.admission.trusted) };
  }

  async #register(context: AgentContext, inner: AbortSignal): Promise<Registration> {
    const { agent, job } = context;
    const one = this.#jobs.of(job);
    if (one === null || one.verdict !== null || one.given === null || this.#pool === undefined) throw jobGone(job);
    const { admission, notes, given } = one;
    if (admission === null || this.#parts.filter === null) throw jobUndecided(one.job);
    const { seal, ...way } = await this.#parts.filter.listenFor(context, inner);
    one.agent = agent;
    const file = this.#fileOf(agent);
    const { rules, endpoint } = this.#parts.port;
    const until = this.#parts.clock.wall() + (this.#pool.timeout ?? 30 * 86_400_000) + 3_600_000;
    const about = { rules, endpoint, use: 'job', job: this.#parts.port.idOf(one.key), build: null, file, until };
    const leave = (payload: string | Uint8Array, signs?: Sealed['signs']): string =>
      seal.close({ ...about, token: this.#parts.left.leave(file, payload), ...(signs !== undefined && { signs }) });
    const leaveApart = (payload: string | Uint8Array) => {
      const key = this.#parts.left.leave(file, payload);
      return { sealed: seal.close({ ...about, token: randomUUID() }), key };
    };
    const { secrets, trusted } = admission;
    const caches: JobHandover['caches'] = (as, token) => {
      // The programs that ask for them accept no certificate of the filter.
      const own = way.ca === null ? this.#cachesFor(admission, given) : null;
      if (own === null) return null;
      const endpoint = way.origin;
      // Only its being there counts: the token opens nothing once the agent has ended.
      this.#parts.left.leave(cachesOf(file), '');
      const sealed = seal.close({
        rules: cacheRulesOf,
        endpoint,
        token,
        use: 'caches',
        job: about.job,
        build: null,
        file: cachesOf(file),
        until,
        caches: { as, ...own },
      });
      return `${endpoint}/${cacheRoot}/${sealed}`;
    };
    const how = { way, notes, secrets, trusted, leave, leaveApart, caches };
    const script = await this.#parts.port.script(context, given, how, inner);
    return { id: null, script, files: null };
  }

  /** Which caches of this host the job may read and write; null: none. */
  #cachesFor(admission: Admitted, given: G): Omit<NonNullable<Sealed['caches']>, 'as'> | null {
    const pool = this.#pool;
    const project = projectOf(admission);
    if (pool === undefined || project === null) return null;
    const { port, service, minFree } = this.#parts;
    const pathOf = (trust: string): string => ownerPath({ service, project, trust });
    const limits = { bytes: pool.cacheLimit, minFree };
    const { all, of } = port.kinds ?? { all: [trustedCaches], of: () => trustedCaches };
    const key = cacheKeyOf(admission);
    const owns = admission.trusted
      ? of(given)
      : pool.trust.caches === 'private' && key !== null
        ? `${untrustedPrefix}-${key}`
        : null;
    const writes = owns === null ? null : pathOf(owns);
    if (writes !== null) return { writes, reads: [writes], limits };
    return pool.trust.caches === 'read' ? { writes: null, reads: all.map(pathOf), limits } : null;
  }

  #note({ job, why, released }: EndingAgent): void {
    const words = job === null || !released ? null : whyEnding(why, this.#pool);
    if (job === null || words === null) return;
    this.#parts.rows.note(job, words);
    this.#unsaid.set(job, words);
  }

  async #settle({ job, agent }: EndedContext, inner: AbortSignal): Promise<void> {
    const one = this.#jobs.of(job);
    if (one === null || (one.agent !== null && one.agent !== agent)) return;
    const known = this.#results.get(one.job) ?? this.#parts.exitOf(agent);
    await this.#jobs.finish(one, this.#jobs.lost(this.#unsaid.get(one.job) ?? whyLost(known, this.#pool), known), inner);
    this.#wake();
  }

  #heard(agent: AgentId, line: string): void {
    const isOutside = this.#parts.port.failsOutside?.(line) === true;
    const exit = this.#parts.port.exitIn?.(line) ?? null;
    if (!isOutside && exit === null) return;
    const one = this.#jobs.all().find((each) => each.agent === agent);
    if (one === undefined) return;
    if (isOutside) one.failedOutside ??= `Its runner said: ${line.slice(0, longestWords)}`;
    else one.exit = exit;
  }

  async #close(isLeaving: boolean): Promise<void> {
    if (isLeaving) this.#closing.abort();
    else await this.#leave();
    this.#wake();
    await this.#asking;
    await this.#parts.filter?.close(isLeaving);
  }
}
