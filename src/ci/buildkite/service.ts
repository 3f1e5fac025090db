/**
 * Buildkite by job acquisition: onejob reserves jobs through the Stacks API for free slots, and decides about them before there is
 * an agent. A sandbox then becomes an agent with a token for that one job. The token of the cluster stays here.
 * A trusted job's agent talks to the service directly, so that onejob cannot disturb it (S5); an untrusted one's through the
 * filter.
 */

import { hasCode, type OnejobError, toFailure } from '../../base/errors.ts';
import { deadline } from '../../core/clock.ts';
import type { Change, JobId, JobResult, Reserved } from '../../core/slot.ts';
import type { AgentContext, CiService, EndedContext, EndingAgent, Registration } from '../../ports/ci-service.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { describeSecret, readSecret } from '../../schema/secret-reference.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { FilterProcess } from '../filter/filter.ts';
import type { Sealed } from '../filter/seal.ts';
import { hasOwnImage, recipeOf, wantsOther } from '../kit/admission.ts';
import { openAgentProgram } from '../kit/agent-program.ts';
import { whyEnding, whyLost } from '../kit/last-words.ts';
import { jobGone, jobUndecided, whenCommitted } from '../kit/late-bound.ts';
import type { OpenParts } from '../parts.ts';
import { buildkiteAgent } from './agent/agent-release.ts';
import { buildkiteRules, buildkiteRulesOf, type Use } from './agent/filter-rules.ts';
import { createInAgent } from './agent/in-agent.ts';
import { scriptFor } from './agent/script.ts';
import { createServiceApi } from './api.ts';
import { buildkiteFindings } from './doctor/doctor.ts';
import { isOpenToUntrusted } from './doctor/doctor-pools.ts';
import { Front, type FrontParts } from './front.ts';
import { JobCounter } from './job-counter.ts';
import { admit } from './jobs/admission.ts';
import { createJobRows } from './jobs/job-rows.ts';
import { buildkiteEnd } from './jobs/outcome.ts';
import type { BuildkiteParts } from './parts.ts';
import { type Shared, share } from './shared.ts';
import { JobReservations } from './stacks/job-reservations.ts';
import type { PollLoop } from './stacks/poll-loop.ts';
import { watchQueue } from './stacks/queue-watch.ts';
import { createRuns, type Runs } from './stacks/runs.ts';
import { createStackEntry, createStacks, stageOf } from './stacks/stacks.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export function openBuildkite(config: BuildkiteServiceConfig, parts: OpenParts): CiService {
  const { store, clock, log, variables, slots, onejob, env, pools, fetch } = parts;
  const { name, endpoint, registration } = config;
  const { secretsKey, host, places } = parts.config;
  const { version, self } = onejob;
  const token = () => readSecret(config.token, variables);
  const metricsToken = () => readSecret(config.metricsToken ?? config.token, variables);
  const isInAgent = registration === 'in-agent';
  // onejob decrypts no secrets for agents that take their jobs themselves.
  const keys = async () =>
    secretsKey === null || isInAgent
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const api = createServiceApi({ endpoint, version, clock, fetch });
  const program = openAgentProgram(name, buildkiteAgent(), config.agentPackage, parts);
  // A temporary manager makes no agents.
  const isFiltered = !isInAgent && pools.some(isOpenToUntrusted) && onejob.temporary !== true;
  const filterParts = { stateDir: store.dir, self, given: env?.handedOn ?? {}, version, clock, log };
  const filter = isFiltered ? (parts.filter ?? new FilterProcess(filterParts)) : null;
  const doctor = { config, pools, places, stateDir: store.dir, api, tokens: { service: token, metrics: metricsToken } };
  const front: FrontParts = {
    config,
    pools,
    token,
    program,
    clock,
    log,
    rows: createJobRows(name, parts),
    counts: new JobCounter({ api, token: metricsToken, config, clock, log }),
    check: (signal, sandboxes) => buildkiteFindings({ ...doctor, keys, filter, program, clock }, sandboxes, signal),
  };
  if (isInAgent) return createInAgent({ ...front, slots });
  const stacks = createStacks({ endpoint, version, clock, token, fetch });
  const pins = createPinStore(store, clock);
  return createBuildkite({
    ...front,
    host,
    stacks,
    filter,
    slots,
    stateDir: store.dir,
    random: Math.random,
    places,
    exitOf: (agent) => store.history.get(agent)?.exit ?? null,
    entry: createStackEntry(name, stacks, { host, version, store, clock }),
    admit: (job, { trust, recipe }) => admit(job, { trust, containers: recipe.containers !== undefined, keys, pins }),
  });
}

/** ms for a stack to leave at the end, and for the end of a job to wait until its reason is shown. */
const [leavePatience, sayPatience] = [5_000, 1_000];

export function createBuildkite(parts: BuildkiteParts): CiService {
  return new BuildkiteService(parts).asService();
}

class BuildkiteService {
  readonly #parts: BuildkiteParts;
  readonly #results = new Map<JobId, JobResult>();
  /** When their scripts began, wall clock, ms: a short job is over before the service was asked about it. */
  readonly #began = new Map<JobId, number>();
  /** Why jobs are being ended, until their pages say it. */
  readonly #unsaid = new Map<JobId, string>();
  /** By queue. */
  readonly #watches = new Map<string, PollLoop>();
  readonly #front: Front;
  readonly #shared: Shared;
  readonly #reservations: JobReservations;
  readonly #runs: Runs;
  #filterTrouble: string | undefined;

  constructor(parts: BuildkiteParts) {
    this.#parts = parts;
    this.#front = new Front(parts, { changed: () => this.#wake(), begin: () => this.#begin() });
    this.#shared = share(parts, this.#front, () => this.#wake());
    this.#reservations = new JobReservations(this.#shared);
    this.#runs = createRuns(this.#shared, this.#reservations);
  }

  asService(): CiService {
    return {
      ...this.#front.service,
      capabilities: { binds: 'late', standsForSlots: true, terms: 2, poolTimeout: true, jobOnStdout: true },
      jobs: {
        next: (_pool, slot, only) => this.#next(slot, only),
        offer: (slot, offer) => {
          this.#reservations.offer(slot, offer);
          this.#wake();
        },
        recipeFor: (job, recipe) => this.#recipeFor(job, recipe),
        ...whenCommitted((change) => this.#apply(change)),
      },
      register: (context, signal) => this.#register(context, signal),
      ending: (ending) => this.#ending(ending),
      settle: (settling, _files, signal) => this.#settle(settling, signal),
      deregister: async () => ({ ran: null }),
      retire: async () => null,
      forget: async (signal) => {
        await this.#leave();
        await this.#parts.entry.forget(signal);
      },
      close: (leaving) => this.#close(leaving),
    };
  }

  #wake(): void {
    for (const watch of this.#watches.values()) watch.wake();
    this.#runs.wake();
  }

  #begin(): void {
    this.#parts.rows.resume();
    this.#parts.filter?.start(this.#front.signal, (problem) => this.#heardOfFilter(problem));
    const here = this.#parts.pools.filter(({ elsewhere }) => elsewhere === undefined);
    for (const queue of new Set(here.map((pool) => pool.queue))) this.#follow(queue);
  }

  /** Trusted jobs do not need it, so it holds no pool: an untrusted job is refused its start. */
  #heardOfFilter(problem: OnejobError | null): void {
    if (this.#filterTrouble === problem?.message) return;
    this.#filterTrouble = problem?.message;
    if (problem !== null)
      this.#parts.log.error('no untrusted job is started: the filter has not proved itself', { reason: problem.message });
  }

  #follow(queue: string): void {
    // A stack may list ten times a second.
    const often = Math.max(1_000, this.#watches.size * 125);
    const say = (problem: string | null): void => this.#front.trouble(queue, problem);
    const parts = {
      often,
      say,
      unfit: this.#front.unfit,
      shared: this.#shared,
      reservations: this.#reservations,
      runs: this.#runs,
    };
    this.#watches.set(queue, watchQueue(queue, parts));
  }

  #next(slot: string | null, only: 'ownImage' | undefined): Reserved | null {
    const { stateDir, places } = this.#parts;
    if (slot === null) return null;
    const pool = this.#shared.poolOf(slot);
    for (const { job, admission, verdict } of this.#reservations.in(slot)) {
      if (admission === null || verdict !== null || this.#shared.isTaken(job, slot)) continue;
      if (only === 'ownImage' && !hasOwnImage(pool, admission)) continue;
      return { job, limit: pool?.timeout ?? null, cold: wantsOther(pool, admission, stateDir, places) };
    }
    return null;
  }

  #recipeFor(job: JobId, recipe: Recipe): Recipe | null {
    const { stateDir, places } = this.#parts;
    const reservation = this.#reservations.of(job);
    const pool = reservation === null ? undefined : this.#shared.poolOf(reservation.slot);
    // A job without admission gets nothing of the pool or another repository.
    if (reservation === null || reservation.admission === null || pool === undefined) throw jobUndecided(job);
    return recipeOf(recipe, pool, reservation.admission, stateDir, places);
  }

  #apply(change: Change): void {
    if (!('job' in change)) return;
    const { job } = change;
    const reservation = this.#reservations.of(job);
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        this.#reservations.put(job, change.agent);
        return;
      case 'ended':
        this.#results.set(job, change.result);
        return;
      case 'returned':
        this.#began.delete(job);
        this.#runs.drop(job);
        this.#reservations.returned(job, change.failure);
        return;
      case 'settled':
        this.#results.delete(job);
        this.#began.delete(job);
        this.#runs.drop(job);
        this.#unsaid.delete(job);
        if (reservation !== null && reservation.verdict === null) {
          const { pool, slot } = reservation;
          queueMicrotask(() => this.#shared.emit({ kind: 'waiting', pool, slot }));
        }
        return;
      case 'started':
        this.#began.set(job, this.#parts.clock.wall());
        return;
    }
  }

  async #register(context: AgentContext, signal: AbortSignal): Promise<Registration> {
    const { config, stacks, entry, filter } = this.#parts;
    const { agent, slot, job } = context;
    const reservation = job === null ? null : this.#reservations.of(job);
    const pool = this.#shared.poolOf(slot);
    if (job === null || reservation === null || reservation.verdict !== null || pool === undefined) throw jobGone(job);
    if (reservation.admission === null) throw jobUndecided(job);
    const { secrets, trusted, why, facts } = reservation.admission;
    if (!trusted && filter === null) throw jobUndecided(job);
    const filtered = trusted || filter === null ? null : await filter.listenFor(context, signal);
    if (!(await this.#reservations.renew(job))) throw jobGone(job);
    const once = await stacks.token(entry.key, job, this.#shared.expiry, signal);
    if (once === null) {
      this.#reservations.forget(job, null);
      throw jobGone(job);
    }
    this.#reservations.put(job, agent);
    this.#runs.add({ job, agent, slot });
    const token =
      filtered === null ? once : filtered.seal.close(this.#sealed({ token: once, job, build: facts.buildId }, pool.timeout));
    const endpoint = filtered === null ? config.endpoint : `${filtered.origin}/${buildkiteRules.root}`;
    const script = scriptFor(
      context,
      pool,
      { token, endpoint, isFiltered: filtered !== null, ca: filtered?.ca ?? null, job },
      { note: why, secrets },
    );
    return { id: null, script, files: null };
  }

  /** Valid as long as the job may run, plus an hour; `lasts` null: the service's limit of 30 days. */
  #sealed(about: Pick<Sealed, 'token' | 'job' | 'build'>, lasts: number | null): Sealed {
    const { config, clock } = this.#parts;
    const until = clock.wall() + (lasts ?? 30 * 86_400_000) + 3_600_000;
    return { ...about, rules: buildkiteRulesOf, endpoint: config.endpoint, use: 'register' satisfies Use, until };
  }

  async #ending({ job, why, released }: EndingAgent): Promise<void> {
    // A job that has not begun goes back.
    if (job === null || !released) return;
    const words = whyEnding(why, this.#shared.poolOf(this.#runs.of(job)?.slot ?? ''));
    if (words === null) return;
    this.#parts.rows.note(job, words);
    this.#unsaid.set(job, words);
    using limit = deadline(this.#parts.clock, sayPatience, this.#front.signal);
    await this.#say(job, words, limit.signal);
  }

  /** Shows it on the job's page, if possible. */
  async #say(job: JobId, detail: string, signal: AbortSignal): Promise<void> {
    const { stacks, entry, log } = this.#parts;
    try {
      await stacks.notify(entry.key, [{ job, detail }], signal);
      this.#unsaid.delete(job);
    } catch (error) {
      if (!this.#front.signal.aborted) log.warn('failed to report why a job ended', { job, reason: toFailure(error).message });
    }
  }

  async #settle({ job, agent, slot }: EndedContext, signal: AbortSignal): Promise<void> {
    if (job === null) return;
    const { rows, exitOf } = this.#parts;
    const { poolOf } = this.#shared;
    // After a restart only what was written down is known.
    const known = this.#results.get(job) ?? exitOf(agent);
    const result = known ?? { kind: 'lost', reason: 'its agent ended while onejob was not running' };
    const state = await this.#stateOf(job, poolOf(slot) !== undefined, signal);
    const stage = stageOf(state);
    const words = this.#unsaid.get(job);
    const run = this.#runs.of(job);
    if (stage === 'reserved') {
      const late = run?.agent === agent ? run.late : null;
      return this.#reservations.notAcquired({ job, agent }, { result, late }, signal);
    }
    if (stage === 'waiting') return this.#reservations.forget(job, null);
    // The agent reports with 27 that another agent was faster (`core/client.go`).
    if (stage !== 'over' && run?.wasAcquired !== true && result.kind === 'code' && result.code === 27) {
      this.#reservations.forget(job);
      return rows.left(job, null);
    }
    if (state === 'finished') rows.runs(job, agent, this.#began.get(job));
    this.#reservations.forget(job);
    if (words !== undefined) await this.#say(job, words, signal);
    else if (stage !== 'over') await this.#say(job, whyLost(known, poolOf(slot)), signal);
    rows.left(job, buildkiteEnd(state, known));
  }

  async #stateOf(job: JobId, isOfPool: boolean, signal: AbortSignal): Promise<string> {
    const { stacks, entry } = this.#parts;
    try {
      return (await stacks.states(entry.key, [job], signal)).get(job) ?? 'gone';
    } catch (error) {
      // The stack is gone, and no pool registers it again, so nobody can ask about its jobs.
      if (!isOfPool && hasCode(error, 'E_CI_DENIED')) return 'gone';
      throw error;
    }
  }

  async #leave(): Promise<void> {
    this.#front.close();
    await Promise.all([this.#runs.ended, ...[...this.#watches.values()].map(({ ended }) => ended)]);
  }

  async #close(leaving: boolean): Promise<void> {
    const { config, entry, filter, clock, log } = this.#parts;
    await this.#leave();
    if (!leaving) {
      using limit = deadline(clock, leavePatience);
      await entry.forget(limit.signal).catch((error: unknown) => {
        const reason = toFailure(error).message;
        log.warn('the stack stays registered at the service, which ends it automatically', { service: config.name, reason });
      });
    }
    await filter?.close(leaving);
  }
}
