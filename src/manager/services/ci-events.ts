/** Turns the events of CI services into events of slots. The only place that does so. */

import type { Log } from '../../base/log.ts';
import type { SlotFacts } from '../../ci/parts.ts';
import type { Clock } from '../../core/clock.ts';
import { type AgentId, jobsIn } from '../../core/slot.ts';
import { type CiEvent, type CiService, withLastOutput } from '../../ports/ci-service.ts';
import type { Pool } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';

export interface CiEventParts {
  readonly reconciler: Reconciler;
  readonly clock: Clock;
  readonly log: Log;
  /** A job waits for a pool that leases devices per job. */
  readonly demanded: (pool: string) => void;
  /** Pools of machines in clouds, and why their services cannot serve them; null: they can. It is kept up to date. */
  readonly away: Map<string, string | null>;
  /** The end of an agent's output. */
  readonly outputTail: (agent: AgentId) => Promise<string>;
}

/** Holds a pool that its service cannot serve. */
const holder = 'service';

/** Why its service cannot serve the pool, as that says it; null if it can. */
export function serviceHold({ pause }: Pick<Pool, 'pause'>): string | null {
  return pause.held.find(([reason]) => reason === holder)?.[1] ?? null;
}

/** Follows the services until `signal` aborts. */
export function followServices(services: Iterable<CiService>, parts: CiEventParts, signal: AbortSignal): void {
  const { reconciler, clock, log, demanded, away, outputTail } = parts;
  const holdLog = createHoldLog(clock, log);

  const handle = (service: CiService, event: CiEvent): void => {
    if (event.kind === 'hold') {
      hold(event);
      return;
    }
    if (event.kind === 'waiting') {
      demanded(event.pool);
      const pool = reconciler.pools.find((one) => one.config.name === event.pool);
      if (pool?.borrows === true) reconciler.replanAll(pool);
      else if (event.slot === undefined) reconciler.offer(event.pool);
      else reconciler.replan(event.slot);
      return;
    }
    const { agent } = event;
    const slot = reconciler.slotOf(agent);
    // Two services may look at one list of agents; only the agent's own is heard.
    if (slot === undefined || reconciler.poolOf(slot.key).serviceOf(slot) !== service) return;
    const { key } = slot;
    switch (event.kind) {
      case 'cancel': {
        const grace = event.grace ?? slot.grace;
        reconciler.post(key, { kind: 'stop', agent, why: 'cancelled', grace });
        return;
      }
      case 'jobDone':
        // An agent may wait a second or two before it ends by itself.
        if (slot.agent.kind === 'busy' || slot.agent.kind === 'idle')
          reconciler.post(key, { kind: 'stop', agent, why: 'renewal', grace: slot.grace });
        return;
      case 'online':
        reconciler.post(key, { kind: 'online', agent });
        return;
      case 'jobSeen':
        reconciler.post(key, { kind: 'jobSeen', agent, job: event.job, limit: reconciler.poolOf(key).limitOf(slot) });
        return;
      case 'silent':
        void outputTail(agent).then(
          (words) => {
            const message = withLastOutput(event.failure.message, words);
            reconciler.post(key, { kind: 'releaseFailed', agent, failure: { ...event.failure, message }, countsAgainst: 'pool' });
          },
          () => reconciler.post(key, { kind: 'releaseFailed', agent, failure: event.failure, countsAgainst: 'pool' }),
        );
        return;
    }
  };

  const hold = ({ pool: name, reason, beginning = false }: Extract<CiEvent, { kind: 'hold' }>): void => {
    const known = away.get(name);
    if (known !== undefined) {
      away.set(name, reason);
      if (known !== reason) holdLog.tell(name, reason, beginning);
      return;
    }
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined) return;
    const changed = reason === null ? pool.pause.release(holder) : pool.pause.hold(holder, reason);
    if (!changed) return;
    holdLog.tell(name, reason, beginning);
    // Failed registrations are tried again at once.
    if (reason === null && pool.backoff?.last.code.startsWith('E_CI_') === true) pool.backoff = null;
    reconciler.replanAll(pool);
  };

  signal.addEventListener('abort', () => holdLog.close(), { once: true });

  for (const service of services) service.observe((event) => handle(service, event), signal);
}

/** What services may know of the loop. `loop` is called later, since services exist before it. */
export function slotFacts(loop: () => Reconciler, clock: Clock): SlotFacts {
  return {
    poolOf(agent) {
      const slot = loop().slotOf(agent);
      return slot === undefined ? null : loop().poolOf(slot.key).config.name;
    },
    silentFor(agent) {
      const lane = loop().slotOf(agent)?.agent;
      return lane?.kind === 'idle' && lane.agent === agent && !lane.online ? clock.now() - lane.since : null;
    },
    isBusy(agent) {
      const lane = loop().slotOf(agent)?.agent;
      return lane?.kind === 'busy' && lane.agent === agent;
    },
    sizeOf: (pool) => loop().slots.filter(({ key }) => loop().poolOf(key).config.name === pool).length,
    jobsOf(key) {
      const slot = loop().slot(key);
      return slot === undefined ? [] : jobsIn(slot);
    },
    agentOf(key, job) {
      const slot = loop().slot(key);
      if (slot === undefined) return null;
      const { agent, standby } = slot;
      if ('job' in agent && agent.job === job) return agent.agent;
      return standby.kind !== 'none' && standby.reserved?.job === job ? standby.agent : null;
    },
  };
}

/** ms that a service may take to get ready; a small busy host needs some seconds. */
const patience = 5_000;

/**
 * Logs that a pool waits for its CI service, and that it no longer does. A service that is just starting causes a warning only if
 * that takes long: a normal start must not look like trouble.
 */
export function createHoldLog(clock: Clock, log: Pick<Log, 'info' | 'warn'>) {
  const beginnings = new Map<string, { reason: string; readonly callOff: () => void }>();
  const told = new Set<string>();

  const drop = (pool: string): void => {
    beginnings.get(pool)?.callOff();
    beginnings.delete(pool);
  };
  const warn = (pool: string, reason: string): void => {
    drop(pool);
    told.add(pool);
    log.warn('pool waits for its CI service', { pool, reason });
  };

  return {
    /** `reason`: null: the pool waits no more. `beginning`: nothing is wrong so far. */
    tell(pool: string, reason: string | null, beginning: boolean): void {
      if (reason === null) {
        drop(pool);
        if (told.delete(pool)) log.info('CI service is back', { pool });
        return;
      }
      const begun = beginnings.get(pool);
      if (!beginning || told.has(pool)) warn(pool, reason);
      else if (begun !== undefined) begun.reason = reason;
      else {
        const late = (): void => warn(pool, beginnings.get(pool)?.reason ?? reason);
        beginnings.set(pool, { reason, callOff: clock.after(patience, late) });
      }
    },
    close(): void {
      for (const pool of [...beginnings.keys()]) drop(pool);
    },
  };
}
