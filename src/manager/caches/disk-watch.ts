/** Ends jobs whose files exceed their pool's `disk`, which no storage enforces everywhere: until the next check they may grow. */

import type { Log } from '../../base/log.ts';
import { type Clock, every } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Runtime } from '../../ports/runtime.ts';
import type { Reconciler } from '../loop/reconciler.ts';

export interface DiskWatchParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly reconciler: Pick<Reconciler, 'slots' | 'poolOf' | 'post'>;
  readonly runtime: (name: string) => Runtime;
}

/** ms between two checks of the same agent, at least. */
const between = 10_000;
/** Checks take no more than this share of the time, however many files there are. */
const share = 0.05;

export function createDiskWatch({ clock, log, reconciler, runtime }: DiskWatchParts) {
  const abort = new AbortController();
  const { signal } = abort;
  /** When each agent is checked again, monotonic ms. */
  const due = new Map<AgentId, number>();
  let stop = (): void => {};
  let looking: Promise<void> = Promise.resolve();

  /** Checks every released agent whose pool has a limit and whose time has come, one after the other. Never fails. */
  const look = async (): Promise<void> => {
    const there = new Set(reconciler.slots.flatMap(({ agent }) => (agent.kind === 'free' ? [] : [agent.agent])));
    for (const agent of due.keys()) if (!there.has(agent)) due.delete(agent);
    for (const { key, agent: lane, runtime: name, grace } of reconciler.slots) {
      if (signal.aborted) return;
      const limit = reconciler.poolOf(key).config.disk;
      if (limit === null || (lane.kind !== 'busy' && lane.kind !== 'idle') || clock.now() < (due.get(lane.agent) ?? 0)) continue;
      const { agent } = lane;
      const begun = clock.now();
      const usage = runtime(name).usage?.(agent, signal);
      const used = (await usage?.catch(() => null)) ?? null;
      due.set(agent, clock.now() + Math.max(between, (clock.now() - begun) / share));
      if (used === null || used <= limit || signal.aborted) continue;
      log.warn('ending a job whose files take too much disk space', { slot: key, agent, bytes: used, limit });
      reconciler.post(key, { kind: 'stop', agent, why: 'disk', grace });
    }
  };

  return {
    look,
    start(): void {
      const again = () => (looking = look());
      stop = every(clock, between, again, () => {});
    },
    async close(): Promise<void> {
      stop();
      abort.abort();
      await looking;
    },
  };
}
