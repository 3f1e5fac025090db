/**
 * Buildkite by job acquisition: onejob reserves jobs through the Stacks API for free slots, and decides about them before there is
 * an agent. A sandbox then becomes an agent with a token for that one job. The token of the cluster stays here.
 * A trusted job's agent talks to the service directly, so that onejob cannot disturb it (S5); an untrusted one's through the
 * filter.
 */

import { hasCode, type OnejobError, toFailure } from '../../base/errors.ts';
import { deadline } from '../../core/clock.ts';
import type { Change, JobId, JobResult } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { describeSecret, readSecret } from '../../schema/secret-reference.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { FilterProcess } from '../filter/filter.ts';
import type { Sealed } from '../filter/seal.ts';
import { cacheKeyOf, hasOwnImage, untrustedRecipe, wantsOther } from '../kit/admission.ts';
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
import { createCounts, createFront, type FrontParts } from './front.ts';
import { admit } from './jobs/admission.ts';
import { createJobRows } from './jobs/job-rows.ts';
import { buildkiteEnd } from './jobs/outcome.ts';
import type { BuildkiteParts } from './parts.ts';
import { share } from './shared.ts';
import { createJobReservations } from './stacks/job-reservations.ts';
import { watchQueue } from './stacks/queue-watch.ts';
import { createRuns } from './stacks/runs.ts';
import { createStackEntry, createStacks, stageOf } from './stacks/stacks.ts';
import type { Turns } from './stacks/turns.ts';
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
    counts: createCounts({ api, token: metricsToken, config, clock, log }),
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
    admit: (job, pool) => admit(job, { trust: pool.trust, keys, pins }),
  });
}

/** ms for a stack to leave at the end, and for the end of a job to wait until its reason is shown. */
const [leavePatience, sayPatience] = [5_000, 1_000];

export function createBuildkite(parts: BuildkiteParts): CiService {
  const { config, rows, stacks, entry, stateDir, places, filter, clock, log } = parts;
  const results = new Map<JobId, JobResult>();
  /** When their scripts began, wall clock, ms: a short job is over before the service was asked about it. */
  const began = new Map<JobId, number>();
  /** Why jobs are being ended, until their pages say it. */
  const unsaid = new Map<JobId, string>();
  const watches = new Map<string, Turns>();
  let filterTrouble: string | undefined;

  const wake = (): void => {
    for (const watch of watches.values()) watch.wake();
    runs.wake();
  };
  const front = createFront(parts, {
    changed: wake,
    begin() {
      filter?.start(signal, heardOfFilter);
      const here = parts.pools.filter(({ elsewhere }) => elsewhere === undefined);
      for (const queue of new Set(here.map((pool) => pool.queue))) follow(queue);
    },
  });
  const shared = share(parts, front, wake);
  const { emit, signal, expiry, poolOf, isTaken } = shared;
  const reservations = createJobReservations(shared);
  const runs = createRuns(shared, reservations);

  /** Trusted jobs do not need it, so it holds no pool: an untrusted job is refused its start. */
  function heardOfFilter(problem: OnejobError | null): void {
    if (filterTrouble === problem?.message) return;
    filterTrouble = problem?.message;
    if (problem !== null) log.error('no untrusted job is started: the filter has not proved itself', { reason: problem.message });
  }

  function follow(queue: string): void {
    // A stack may list ten times a second.
    const often = Math.max(1_000, watches.size * 125);
    const say = (problem: string | null): void => front.trouble(queue, problem);
    watches.set(queue, watchQueue(queue, { often, say }, { shared, reservations, runs }));
  }

  function apply(change: Change): void {
    if (!('job' in change)) return;
    const { job } = change;
    const one = reservations.of(job);
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        reservations.put(job, change.agent);
        return;
      case 'ended':
        results.set(job, change.result);
        return;
      case 'returned':
        began.delete(job);
        runs.drop(job);
        reservations.returned(job, change.failure);
        return;
      case 'settled':
        results.delete(job);
        began.delete(job);
        runs.drop(job);
        unsaid.delete(job);
        if (one !== null && one.verdict === null) queueMicrotask(() => emit({ kind: 'waiting', pool: one.pool, slot: one.slot }));
        return;
      case 'started':
        began.set(job, clock.wall());
        return;
    }
  }

  async function stateOf(job: JobId, isOfPool: boolean, inner: AbortSignal): Promise<string> {
    try {
      return (await stacks.states(entry.key, [job], inner)).get(job) ?? 'gone';
    } catch (error) {
      // The stack is gone, and no pool registers it again, so nobody can ask about its jobs.
      if (!isOfPool && hasCode(error, 'E_CI_DENIED')) return 'gone';
      throw error;
    }
  }

  /** Shows it on the job's page, if possible. */
  async function say(job: JobId, detail: string, inner: AbortSignal): Promise<void> {
    try {
      await stacks.notify(entry.key, [{ job, detail }], inner);
      unsaid.delete(job);
    } catch (error) {
      if (!signal.aborted) log.warn('failed to report why a job ended', { job, reason: toFailure(error).message });
    }
  }

  /** Valid as long as the job may run, plus an hour; `lasts` null: the service's limit of 30 days. */
  function sealed(about: Pick<Sealed, 'token' | 'job' | 'build'>, lasts: number | null): Sealed {
    const until = clock.wall() + (lasts ?? 30 * 86_400_000) + 3_600_000;
    return { ...about, rules: buildkiteRulesOf, endpoint: config.endpoint, use: 'register' satisfies Use, until };
  }

  async function leave(): Promise<void> {
    front.close();
    await Promise.all([runs.ended, ...[...watches.values()].map(({ ended }) => ended)]);
  }

  return {
    ...front.service,
    capabilities: { binds: 'late', standsForSlots: true, terms: 2, poolTimeout: true, jobOnStdout: true },
    jobs: {
      next(_pool, slot, only) {
        if (slot === null) return null;
        const pool = poolOf(slot);
        for (const { job, admission, verdict } of reservations.in(slot)) {
          if (admission === null || verdict !== null || isTaken(job, slot)) continue;
          if (only === 'ownImage' && !hasOwnImage(pool, admission)) continue;
          return { job, limit: pool?.timeout ?? null, cold: wantsOther(pool, admission, stateDir, places) };
        }
        return null;
      },
      offer(slot, offer) {
        reservations.offer(slot, offer);
        wake();
      },
      recipeFor(job, recipe) {
        const one = reservations.of(job);
        const pool = one === null ? undefined : poolOf(one.slot);
        // A job without admission gets nothing of the pool or another repository.
        if (one === null || one.admission === null || pool === undefined) throw jobUndecided(job);
        return one.admission.trusted ? null : untrustedRecipe(recipe, pool, cacheKeyOf(one.admission), stateDir, places);
      },
      ...whenCommitted(apply),
    },
    async register(context, inner) {
      const { agent, slot, job } = context;
      const one = job === null ? null : reservations.of(job);
      const pool = poolOf(slot);
      if (job === null || one === null || one.verdict !== null || pool === undefined) throw jobGone(job);
      if (one.admission === null) throw jobUndecided(job);
      const { secrets, trusted, why, facts } = one.admission;
      if (!trusted && filter === null) throw jobUndecided(job);
      const filtered = trusted || filter === null ? null : await filter.listenFor(context, inner);
      if (!(await reservations.renew(job))) throw jobGone(job);
      const once = await stacks.token(entry.key, job, expiry, inner);
      if (once === null) {
        reservations.forget(job, null);
        throw jobGone(job);
      }
      reservations.put(job, agent);
      runs.add({ job, agent, slot });
      const token =
        filtered === null ? once : filtered.seal.close(sealed({ token: once, job, build: facts.buildId }, pool.timeout));
      const endpoint = filtered === null ? config.endpoint : `http://${filtered.authority}/${buildkiteRules.root}`;
      const script = scriptFor(context, pool, { token, endpoint, isFiltered: filtered !== null, job }, { note: why, secrets });
      return { id: null, script, files: null };
    },
    async ending({ job, why, released }) {
      // A job that has not begun goes back.
      if (job === null || !released) return;
      const words = whyEnding(why, poolOf(runs.of(job)?.slot ?? ''));
      if (words === null) return;
      rows.note(job, words);
      unsaid.set(job, words);
      using limit = deadline(clock, sayPatience, signal);
      await say(job, words, limit.signal);
    },
    async settle({ job, agent, slot }, _files, inner) {
      if (job === null) return;
      // After a restart only what was written down is known.
      const known = results.get(job) ?? parts.exitOf(agent);
      const result = known ?? { kind: 'lost', reason: 'its agent ended while onejob was not running' };
      const state = await stateOf(job, poolOf(slot) !== undefined, inner);
      const stage = stageOf(state);
      const words = unsaid.get(job);
      const run = runs.of(job);
      if (stage === 'reserved') {
        const late = run?.agent === agent ? run.late : null;
        return reservations.notAcquired({ job, agent }, { result, late }, inner);
      }
      if (stage === 'waiting') return reservations.forget(job, null);
      // The agent reports with 27 that another agent was faster (`core/client.go`).
      if (stage !== 'over' && run?.wasAcquired !== true && result.kind === 'code' && result.code === 27) {
        reservations.forget(job);
        return rows.left(job, null);
      }
      if (state === 'finished') rows.runs(job, agent, began.get(job));
      reservations.forget(job);
      if (words !== undefined) await say(job, words, inner);
      else if (stage !== 'over') await say(job, whyLost(known, poolOf(slot)), inner);
      rows.left(job, buildkiteEnd(state, known));
    },
    deregister: async () => ({ ran: null }),
    retire: async () => null,
    async forget(inner) {
      await leave();
      await entry.forget(inner);
    },
    async close(leaving) {
      await leave();
      if (!leaving) {
        using limit = deadline(clock, leavePatience);
        await entry.forget(limit.signal).catch((error: unknown) => {
          const reason = toFailure(error).message;
          log.warn('the stack stays registered at the service, which ends it automatically', { service: config.name, reason });
        });
      }
      await filter?.close(leaving);
    },
  };
}
