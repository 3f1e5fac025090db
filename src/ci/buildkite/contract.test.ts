import { openManager, trustedEnv } from '../../../test/kit/buildkite-manager.ts';
import { ciServiceContract } from '../../../test/kit/ci-contract.ts';
import type { JobSource } from '../../ports/ci-service.ts';

ciServiceContract(
  'buildkite',
  async () => {
    const one = openManager();
    const { service, lanes } = one;
    one.jobs.offer('ci/1', 'open');
    let jobs = 0;
    let isObserved = false;
    return {
      pool: 'ci',
      // The loop's part: the slot has the job that was written down, unless the commit fails.
      service: {
        ...service,
        observe(emit, signal) {
          isObserved = true;
          service.observe(emit, signal);
        },
        jobs: {
          ...(service.jobs as JobSource),
          record(change) {
            if (change.change === 'assigned') lanes.set('ci/1', [change.job]);
            if (change.change === 'returned' || change.change === 'settled') lanes.delete('ci/1');
            // Its agent has told the service.
            if (change.change === 'ended') Object.assign(one.stacks.jobs.get(change.job) ?? {}, { state: 'finished' });
            one.jobs.record(change);
          },
        },
      },
      async enqueue() {
        if (!isObserved) await one.watch();
        jobs += 1;
        one.stacks.add(`job-${jobs}`, trustedEnv);
        await one.pass(1_500);
        return `job-${jobs}`;
      },
      commit(write, outcome) {
        const before = new Map(lanes);
        write();
        if (outcome === 'committed') return one.jobs.committed();
        lanes.clear();
        for (const [slot, had] of before) lanes.set(slot, had);
        one.jobs.rolledBack();
      },
      close: async () => one[Symbol.asyncDispose](),
    };
  },
  'late',
);
