/** What both ways of getting jobs share: what holds pools, what sandboxes are given, and what people are told. */

import { toFailure } from '../../base/errors.ts';
import { type Finding, problem } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { CiEvent, CiService, DiagnosticSandboxes } from '../../ports/ci-service.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { plainWord, UnfitWatch } from '../kit/unfit.ts';
import { equippedForBuildkite } from './agent/script.ts';
import type { JobCounter } from './job-counter.ts';
import type { JobRows } from './jobs/job-rows.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export interface FrontParts {
  readonly config: BuildkiteServiceConfig;
  readonly pools: readonly PoolConfig[];
  readonly rows: JobRows;
  readonly token: () => Promise<string>;
  /** The agent's checked program. @throws OnejobError E_AGENT_PACKAGE and others */
  readonly program: Pick<AgentProgram, 'folder' | 'ready'>;
  readonly counts: Pick<JobCounter, 'waiting' | 'unserved' | 'follow'>;
  readonly check: (signal: AbortSignal, sandboxes: DiagnosticSandboxes) => Promise<Finding[]>;
  readonly clock: Clock;
  readonly log: Log;
}

const howToFit = 'Compare "agents" of the step with "queue" and "tags" of the pools.';

/** ms between two tries to read the token and find the program. */
const readAgain = 30_000;

/** Since when pools have no agent or no token, from the first look on. */
interface Lack {
  readonly why: string;
  readonly beginning: boolean;
}

export interface FrontHooks {
  /** The token has changed. */
  changed?(): void;
  /** What else to do once somebody observes. */
  begin?(): void;
}

type FrontService = Required<Pick<CiService, 'name' | 'check' | 'observe' | 'equip' | 'waiting' | 'unfit' | 'serviceJobs'>>;

export class Front {
  /** By name. */
  readonly pools: ReadonlyMap<string, PoolConfig>;
  /** Aborts when the service is closed, or nobody observes it any more. */
  readonly signal: AbortSignal;
  /** Jobs that no pool of the config can run. */
  readonly unfit: UnfitWatch;
  /** The members of the service that both ways have in common. */
  readonly service: FrontService;
  readonly #parts: FrontParts;
  readonly #hooks: FrontHooks;
  readonly #closing = new AbortController();
  readonly #lacks = new Map<'program' | 'token', Lack>();
  /** Why queues have no jobs for us. */
  readonly #troubles = new Map<string, string>();
  /** What was emitted last for each pool: the reason of its hold, and how many jobs wait. */
  readonly #holds = new Map<string, string | null>();
  readonly #counted = new Map<string, number | null>();
  #token: string | null = null;
  #send: (event: CiEvent) => void = () => {};

  constructor(parts: FrontParts, hooks: FrontHooks = {}) {
    this.#parts = parts;
    this.#hooks = hooks;
    this.pools = new Map(parts.pools.map((pool) => [pool.name, pool]));
    this.signal = this.#closing.signal;
    this.unfit = new UnfitWatch(parts.clock, howToFit);
    this.service = {
      name: parts.config.name,
      check: (signal, sandboxes) => this.#check(signal, sandboxes),
      observe: (send, outer) => this.#observe(send, outer),
      equip: (recipe, pool) => equippedForBuildkite(recipe, this.pools.get(pool), parts.program.folder),
      waiting: (pool) => this.#waiting(pool),
      unfit: () => this.unfit.list(),
      serviceJobs: () => parts.rows.list(),
    };
  }

  /** As last read; null while it is unreadable. */
  get token(): string | null {
    return this.#token;
  }

  readonly emit = (event: CiEvent): void => this.#send(event);

  /** Why a queue has no jobs for us; null: no problem. */
  trouble(queue: string, why: string | null): void {
    if (why === null) this.#troubles.delete(queue);
    else this.#troubles.set(queue, why);
    this.#emitHolds();
  }

  close(): void {
    this.#closing.abort();
  }

  async #check(signal: AbortSignal, sandboxes: DiagnosticSandboxes): Promise<Finding[]> {
    const { config, check } = this.#parts;
    const hint = 'See what "onejob doctor" reports about the token and queues of the service.';
    const own = [...this.#troubles.values()].map((message) => problem(`service ${config.name}`, message, hint));
    return [...(await check(signal, sandboxes)), ...own];
  }

  #observe(send: (event: CiEvent) => void, outer: AbortSignal): void {
    if (outer.aborted) return;
    const { pools, program, counts } = this.#parts;
    this.#send = send;
    const stop = (): void => {
      this.#send = () => {};
      this.#closing.abort();
    };
    outer.addEventListener('abort', stop, { once: true });
    // Only agents of this host need it.
    const isNeeded = pools.some(({ elsewhere }) => elsewhere === undefined);
    if (isNeeded) this.#lacks.set('program', { why: 'looking for the agent', beginning: true });
    this.#emitHolds();
    void this.#follow('token', () => this.#readToken());
    if (isNeeded) void this.#follow('program', () => program.ready(this.signal));
    void counts.follow(this.signal, () => {
      this.#emitWaiting();
      this.#seeUnnamed();
    });
    this.#hooks.begin?.();
  }

  #waiting(pool: string): number | null {
    const queue = this.pools.get(pool)?.queue;
    return queue === undefined ? null : this.#parts.counts.waiting(queue);
  }

  /** Emits changes of holds. */
  #emitHolds(): void {
    const lack = this.#lacks.get('program') ?? this.#lacks.get('token') ?? null;
    for (const { name: pool, queue } of this.#parts.pools) {
      const why = lack?.why ?? this.#troubles.get(queue) ?? null;
      if (this.#holds.get(pool) === why) continue;
      this.#holds.set(pool, why);
      this.#send({ kind: 'hold', pool, reason: why, ...(lack?.beginning === true && { beginning: true }) });
    }
  }

  /** Emits pools of which another number of jobs waits than before: a host in a cloud has no slots here that would ask. */
  #emitWaiting(): void {
    for (const { name: pool, queue } of this.#parts.pools) {
      const now = this.#parts.counts.waiting(queue);
      if ((this.#counted.get(pool) ?? null) === now) continue;
      this.#counted.set(pool, now);
      this.#send({ kind: 'waiting', pool });
    }
  }

  /** Jobs of queues that no pool of the config names, and no agent of anybody serves. */
  #seeUnnamed(): void {
    const named = new Set(this.#parts.pools.map(({ queue }) => queue));
    const left = [...this.#parts.counts.unserved()].filter(([queue]) => !named.has(queue));
    const how = (queue: string): string =>
      `in queue ${JSON.stringify(plainWord(queue))}, which no pool here names and which has no agent at the service`;
    this.unfit.saw('', new Map(left.map(([queue, jobs]) => [queue, { jobs, how: how(queue) }])));
  }

  /** Looks again and again; pools are held while that fails. */
  async #follow(what: 'program' | 'token', look: () => Promise<unknown>): Promise<void> {
    const { signal } = this;
    while (!signal.aborted) {
      try {
        await look();
        this.#lacks.delete(what);
      } catch (error) {
        if (!signal.aborted) this.#lacks.set(what, { why: toFailure(error).message, beginning: false });
      }
      // After a hold ends, the new token is in use.
      if (!signal.aborted) this.#emitHolds();
      if (what === 'program' && !this.#lacks.has(what)) return;
      await sleep(this.#parts.clock, readAgain, signal);
    }
  }

  async #readToken(): Promise<void> {
    let token: string | null = null;
    try {
      token = (await this.#parts.token()).trim();
    } finally {
      const isOther = token !== this.#token;
      this.#token = token;
      if (isOther) this.#hooks.changed?.();
    }
  }
}
