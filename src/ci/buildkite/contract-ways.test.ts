/** The contract of CI services, held against the other two ways to take jobs of Buildkite. */
import { ciServiceContract } from '../contract.ts';
import { asCiService } from './base.ts';
import { createEarly } from './early.ts';
import { openAcquiring } from './testing-acquire.ts';
import { carriedAgent } from './testing-broker.ts';
import { withLane } from './testing-lanes.ts';
import { openManager, trustedEnv } from './testing-manager.ts';

ciServiceContract(
  'buildkite, bound early',
  async () => {
    const one = openManager({ make: (parts) => createEarly({ ...parts, isLive: () => true, silentFor: () => null }) });
    one.broker.up();
    return {
      service: asCiService(one.service),
      pool: 'ci',
      async enqueue() {
        one.broker.put(carriedAgent('a1', { phase: 'accepted', env: trustedEnv }));
        await one.pass(0);
        return 'job-c-a1';
      },
      commit(write, outcome) {
        write();
        if (outcome === 'committed') one.service.committed();
        else one.service.rolledBack();
      },
      close: () => one[Symbol.asyncDispose]() as Promise<void>,
    };
  },
  'early',
);

ciServiceContract(
  'buildkite, by its stacks',
  async () => {
    const one = openAcquiring();
    const lane = withLane(one);
    let jobs = 0;
    return {
      service: asCiService({
        ...lane.service,
        record(change) {
          lane.service.record(change);
          if (change.change !== 'started') return;
          // Its agent has acquired it.
          Object.assign(one.stacks.jobs.get(change.job) ?? {}, { state: 'running' });
          one.broker.put(carriedAgent(change.agent, { phase: 'running', job: { id: change.job, env: trustedEnv } }));
        },
      }),
      pool: 'ci',
      async enqueue() {
        one.service.offer('ci/1', 'open');
        await lane.watched();
        jobs += 1;
        one.stacks.add(`job-${jobs}`, trustedEnv);
        await one.pass(2_500);
        return `job-${jobs}`;
      },
      commit: lane.commit,
      close: () => one[Symbol.asyncDispose]() as Promise<void>,
    };
  },
  'late',
);
