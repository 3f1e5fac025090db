/** What both ways of getting jobs share: what holds pools, what sandboxes are given, and what people are told. */
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { toFailure } from '../../errors.ts';
import { type Finding, problem } from '../../finding.ts';
import type { Log } from '../../log.ts';
import type { CiEvent, CiService, DiagnosticSandboxes } from '../ci-service.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { equipped } from './agent/script.ts';
import type { JobRows } from './jobs/job-rows.ts';
import type { Counts } from './metrics.ts';
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
      const stop = (): void => {
        emit = () => {};
        closing.abort();
      };
      outer.addEventListener('abort', stop, { once: true });
      reasons.set('program', { why: 'looking for the agent', beginning: true });
      tell();
      void follow('token', readToken);
      void follow('program', () => parts.program.ready(signal));
      void parts.counts.follow(signal);
      begin();
    },
    equip: (recipe, pool) => equipped(recipe, pools.get(pool), parts.program.folder),
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
