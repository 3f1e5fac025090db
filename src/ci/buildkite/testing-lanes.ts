/** The loop's part in the contract of CI services: the slot has the job that was written down, unless the commit fails. */
import type { BuildkiteService } from './base.ts';

interface Bench {
  readonly service: BuildkiteService;
  /** Jobs by slot. */
  readonly lanes: Map<string, readonly string[]>;
  watch(): Promise<void>;
}

/** Keeps the lane of `ci/1`; `watched` begins to observe unless the contract does so itself. */
export function withLane({ service, lanes, watch }: Bench) {
  let isObserved = false;
  return {
    service: {
      ...service,
      observe(emit, signal) {
        isObserved = true;
        service.observe(emit, signal);
      },
      record(change) {
        // The service asks the slot itself what it has.
        if (change.change === 'assigned') lanes.set('ci/1', [change.job]);
        if (change.change === 'returned' || change.change === 'settled') lanes.delete('ci/1');
        service.record(change);
      },
    } satisfies BuildkiteService,
    async watched(): Promise<void> {
      if (!isObserved) await watch();
    },
    commit(write: () => void, outcome: 'committed' | 'rolledBack'): void {
      const before = new Map(lanes);
      write();
      if (outcome === 'committed') {
        service.committed();
        return;
      }
      lanes.clear();
      for (const [slot, had] of before) lanes.set(slot, had);
      service.rolledBack();
    },
  };
}
