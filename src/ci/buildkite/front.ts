/** What both ways of getting jobs share: what holds pools, what sandboxes are given, and what people are told. */

import { OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, problem } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, doubling, sleep } from '../../core/clock.ts';
import type { CiEvent, CiService, DiagnosticSandboxes } from '../../ports/ci-service.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { equippedForBuildkite } from './agent/script.ts';
import { LaterError, type QueueCounts, type ServiceApi } from './api.ts';
import type { JobRows } from './jobs/job-rows.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export interface FrontParts {
  readonly config: BuildkiteServiceConfig;
  readonly pools: readonly PoolConfig[];
  readonly rows: JobRows;
  readonly token: () => Promise<string>;
  /** The agent's checked program. @throws OnejobError E_AGENT_PACKAGE and others */
  readonly program: Pick<AgentProgram, 'folder' | 'ready'>;
  readonly counts: Counts;
  readonly check: (signal: AbortSignal, sandboxes: DiagnosticSandboxes) => Promise<Finding[]>;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms between two tries to read the token and find the program. */
const readAgain = 30_000;

/** `changed`: the token has changed. `begin`: what else to do once somebody observes. */
export function createFront(
  parts: FrontParts,
  { changed = () => {}, begin = () => {} }: { readonly changed?: () => void; readonly begin?: () => void } = {},
) {
  const { config, clock } = parts;
  const pools = new Map(parts.pools.map((pool) => [pool.name, pool]));
  const closing = new AbortController();
  const { signal } = closing;
  const reasons = new Map<'program' | 'token', { readonly why: string; readonly beginning: boolean }>();
  const troubles = new Map<string, string>();
  const held = new Map<string, string | null>();
  const counted = new Map<string, number | null>();
  let token: string | null = null;
  let emit: (event: CiEvent) => void = () => {};

  /** Emits changes of holds. */
  function tell(): void {
    for (const { name: pool, queue } of parts.pools) {
      const now = reasons.get('program') ?? reasons.get('token') ?? null;
      const why = now?.why ?? troubles.get(queue) ?? null;
      if (held.get(pool) === why) continue;
      held.set(pool, why);
      emit({ kind: 'hold', pool, reason: why, ...(now?.beginning === true && { beginning: true }) });
    }
  }

  /** Emits pools of which another number of jobs waits than before: a host in a cloud has no slots here that would ask. */
  function tellWaiting(): void {
    for (const { name: pool, queue } of parts.pools) {
      const now = parts.counts.waiting(queue);
      if ((counted.get(pool) ?? null) === now) continue;
      counted.set(pool, now);
      emit({ kind: 'waiting', pool });
    }
  }

  /** Looks again and again; pools are held while that fails. */
  async function follow(what: 'program' | 'token', look: () => Promise<unknown>): Promise<void> {
    while (!signal.aborted) {
      try {
        await look();
        reasons.delete(what);
      } catch (error) {
        if (!signal.aborted) reasons.set(what, { why: toFailure(error).message, beginning: false });
      }
      // After a hold ends, the new token is in use.
      if (!signal.aborted) tell();
      if (what === 'program' && !reasons.has(what)) return;
      await sleep(clock, readAgain, signal);
    }
  }

  async function readToken(): Promise<void> {
    let found: string | null = null;
    try {
      found = (await parts.token()).trim();
    } finally {
      const isOther = found !== token;
      token = found;
      if (isOther) changed();
    }
  }

  const service: Required<Pick<CiService, 'name' | 'check' | 'observe' | 'equip' | 'waiting' | 'serviceJobs'>> = {
    name: config.name,
    async check(inner, sandboxes) {
      const hint = 'See what "onejob doctor" reports about the token and queues of the service.';
      const own = [...troubles.values()].map((message) => problem(`service ${config.name}`, message, hint));
      return [...(await parts.check(inner, sandboxes)), ...own];
    },
    observe(send, outer) {
      if (outer.aborted) return;
      emit = send;
      const away = parts.pools.filter(({ elsewhere }) => elsewhere !== undefined);
      const stop = (): void => {
        emit = () => {};
        closing.abort();
      };
      outer.addEventListener('abort', stop, { once: true });
      // Only agents need it.
      const isNeeded = away.length < parts.pools.length;
      if (isNeeded) reasons.set('program', { why: 'looking for the agent', beginning: true });
      tell();
      void follow('token', readToken);
      if (isNeeded) void follow('program', () => parts.program.ready(signal));
      void parts.counts.follow(signal, tellWaiting);
      begin();
    },
    equip: (recipe, pool) => equippedForBuildkite(recipe, pools.get(pool), parts.program.folder),
    waiting(pool) {
      const queue = pools.get(pool)?.queue;
      return queue === undefined ? null : parts.counts.waiting(queue);
    },
    serviceJobs: () => parts.rows.list(),
  };

  return {
    pools,
    /** Aborts when the service is closed, or nobody observes it any more. */
    signal,
    /** As last read; null while it is unreadable. */
    get token() {
      return token;
    },
    emit: (event: CiEvent) => emit(event),
    /** Why a queue has no jobs for us; null: no problem. */
    trouble(queue: string, why: string | null): void {
      if (why === null) troubles.delete(queue);
      else troubles.set(queue, why);
      tell();
    },
    close: () => closing.abort(),
    service,
  };
}

/** `pollEvery` holds unless the service wants more. `random`: [0, 1), spreads the retries of many hosts. */
export interface CountsParts extends Pick<FrontParts, 'token' | 'clock' | 'log'> {
  readonly api: Pick<ServiceApi, 'counts'>;
  readonly config: Pick<BuildkiteServiceConfig, 'name' | 'pollEvery'>;
  readonly random?: () => number;
}

export type Counts = ReturnType<typeof createCounts>;

/** ms. Longest wait between two questions while the service is away. */
const longestWait = 5 * 60_000;
/** ms until a token that was refused is tried again; another one is at once. */
const refusedWait = 10 * 60_000;
/** Counts are shown for so many missed answers, and at least for so many ms. */
const [missed, youngest] = [3, 60_000];

/**
 * How many jobs wait in each queue, for people and for hosts in clouds, asked once for all pools of a service. The number is that of the whole queue:
 * all pools and hosts that use it show the same.
 */
export function createCounts(parts: CountsParts) {
  const { api, config, clock, log, random = Math.random } = parts;
  let heard: { readonly counts: QueueCounts; readonly at: number } | null = null;
  let failures = 0;
  /** A refused token, and until when it is not sent again. */
  let refused: { readonly token: string; readonly until: number } | null = null;
  /** Code of the failure that was logged last. */
  let said: string | null = null;

  const interval = (): number => Math.max(config.pollEvery, heard?.counts.pollAfter ?? 0);

  function failed(error: unknown, token: string | null): number {
    const { code, message } = error instanceof OnejobError ? error : toFailure(error);
    const isRefused = code === 'E_CI_CREDENTIAL' || code === 'E_CI_DENIED';
    if (isRefused && token !== null) refused = { token, until: clock.now() + refusedWait };
    const own = isRefused || code === 'E_SECRET' || code === 'E_CI_ANSWER';
    // The hold of its pools reports outages.
    if (own && said !== code) log.warn('failed to count the jobs', { service: config.name, reason: message });
    if (own) said = code;
    if (isRefused || code === 'E_SECRET') return interval();
    failures += 1;
    const backOff = doubling(interval(), longestWait, failures) * (1 + random() / 4);
    return Math.max(interval(), error instanceof LaterError ? error.retryAfter : backOff);
  }

  async function ask(signal: AbortSignal): Promise<number> {
    let token: string | null = null;
    try {
      token = (await parts.token()).trim();
      if (refused !== null && refused.token === token && clock.now() < refused.until) return interval();
      const { value } = await api.counts(token, signal);
      heard = { counts: value, at: clock.now() };
      if (said !== null) log.info('counting the jobs works again', { service: config.name });
      [failures, refused, said] = [0, null, null];
      return interval();
    } catch (error) {
      if (!signal.aborted && !(error instanceof OnejobError)) log.error('cannot count jobs', { service: config.name, error });
      return failed(error, token);
    }
  }

  return {
    /** null: unknown, or too old. */
    waiting(queue: string): number | null {
      if (heard === null || clock.now() - heard.at > Math.max(missed * interval(), youngest)) return null;
      const { scheduled, known } = heard.counts;
      return scheduled.get(queue) ?? (known.has(queue) ? 0 : null);
    },
    /** Asks until `signal` aborts; to be called once. `asked`: called after each answer or failure. */
    async follow(signal: AbortSignal, asked: () => void = () => {}): Promise<void> {
      while (!signal.aborted) {
        const wait = await ask(signal);
        if (!signal.aborted) asked();
        await sleep(clock, wait, signal);
      }
    },
  };
}
