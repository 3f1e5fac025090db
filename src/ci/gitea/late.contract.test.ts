import { ciServiceContract } from '../../../test/kit/ci-contract.ts';
import { lateGitea } from '../../../test/kit/gitea-late.ts';

ciServiceContract(
  'Gitea bound late, in memory',
  async () => {
    const one = lateGitea();
    one.jobs.offer('ci/1', 'open');
    let isObserved = false;
    return {
      pool: 'ci',
      // The loop's part: the slot has the job that was written down, unless the commit fails.
      service: {
        ...one.service,
        observe(emit, signal) {
          isObserved = true;
          one.service.observe(emit, signal);
        },
        jobs: {
          ...one.jobs,
          syncing: () => () => {},
          record(change) {
            if (change.change === 'assigned') one.lanes.set('ci/1', [change.job]);
            if (change.change === 'returned' || change.change === 'settled') one.lanes.delete('ci/1');
            one.jobs.record(change);
          },
        },
      },
      async enqueue() {
        if (!isObserved) await one.watch();
        isObserved = true;
        const { task } = one.gitea.queue(['ci']);
        await one.pass(3_000);
        return `forge-task-${task}`;
      },
      commit(write, outcome) {
        const before = new Map(one.lanes);
        write();
        if (outcome === 'committed') return one.jobs.committed();
        one.lanes.clear();
        for (const [slot, had] of before) one.lanes.set(slot, had);
        one.jobs.rolledBack();
      },
      close: async () => one[Symbol.asyncDispose](),
    };
  },
  'late',
);
