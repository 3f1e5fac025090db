import { ciServiceContract } from '../contract.ts';
import { heldAgent } from './testing-broker.ts';
import { openManager, trustedEnv } from './testing-manager.ts';

ciServiceContract(
  'buildkite',
  async () => {
    const one = openManager();
    one.broker.up();
    let isObserved = false;
    let jobs = 0;
    return {
      service: {
        ...one.service,
        observe(emit, signal) {
          isObserved = true;
          one.service.observe(emit, signal);
        },
        record(change) {
          // The service asks the slot itself what it has.
          if (change.change === 'assigned') one.lanes.set('ci/1', [change.job]);
          if (change.change === 'returned' || change.change === 'settled') one.lanes.delete('ci/1');
          one.service.record(change);
        },
      },
      pool: 'ci',
      async enqueue() {
        if (!isObserved) await one.watch();
        await one.pass(200);
        jobs += 1;
        one.broker.put(heldAgent(`a${jobs}`, { env: trustedEnv }));
        await one.pass(0);
        return `job-a${jobs}`;
      },
      commit(write, outcome) {
        if (outcome === 'committed') {
          write();
          one.service.committed();
          return;
        }
        const before = new Map(one.lanes);
        write();
        one.lanes.clear();
        for (const [slot, had] of before) one.lanes.set(slot, had);
        one.service.rolledBack();
      },
      close: async () => one[Symbol.asyncDispose](),
    };
  },
  'late',
);
