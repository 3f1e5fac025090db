import { ciServiceContract } from '../contract.ts';
import { asCiService } from './base.ts';
import { heldAgent } from './testing-broker.ts';
import { withLane } from './testing-lanes.ts';
import { openManager, trustedEnv } from './testing-manager.ts';

ciServiceContract(
  'buildkite',
  async () => {
    const one = openManager();
    const lane = withLane(one);
    one.broker.up();
    let jobs = 0;
    return {
      service: asCiService(lane.service),
      pool: 'ci',
      async enqueue() {
        await lane.watched();
        await one.pass(200);
        jobs += 1;
        one.broker.put(heldAgent(`a${jobs}`, { env: trustedEnv }));
        await one.pass(0);
        return `job-a${jobs}`;
      },
      commit: lane.commit,
      close: async () => one[Symbol.asyncDispose](),
    };
  },
  'late',
);
