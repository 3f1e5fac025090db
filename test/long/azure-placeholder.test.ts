/**
 * A job whose demands no registered agent meets fails at once instead of waiting, so there must be one at every moment: 200 jobs are
 * queued at random moments while the only agent comes and goes, and its manager is stopped, killed, drained, paused, changed.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import type { QueuedJob } from '../standins/azure-devops/standin.ts';
import { azureBench, expectClean, isPlaceholder, works } from '../support/azure.ts';
import { azureImages } from '../support/azure-images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const count = 200;

/** What an agent of this pool says: by its tags, its environment, its image, by itself, and all of that together. */
const demands = [
  ['flavour -equals blue'],
  ['MARK -equals yes', 'flavour'],
  ['node', 'Agent.OS -equals Linux'],
  ['Agent.Version -gtVersion 2.182.1'],
  ['onejob.pool -equals ci', 'flavour -equals blue', 'MARK', 'sh', 'Agent.OSArchitecture'],
  [],
] as const;

test.skipIf(lacks('docker'))(
  '200 jobs come at random moments to a pool that is seldom at rest: none fails for want of an agent',
  async () => {
    // A job that is lost on its way is told of by its result, long before the test would run out of time.
    await using bench = await azureBench({ lockMs: 120_000 });
    const { azure, pool } = bench;
    const config = (image?: string) =>
      bench.config({ pool: 'tags: "flavour=blue", env: { MARK: "yes" }', ...(image === undefined ? {} : { image }) });
    await using here = await onejob({ config: config() });
    let daemon = await here.up();
    await azure.next('agentAdded');
    const jobs: QueuedJob[] = [];
    const queueing = (async () => {
      while (jobs.length < count) {
        const some = demands[jobs.length % demands.length] ?? [];
        jobs.push(azure.queue(pool, { demands: some, script: 'echo well' }));
        await sleep(Math.random() * 400);
      }
    })();
    const restarted = async (): Promise<void> => {
      daemon = await here.up();
    };
    const steps: Readonly<Record<string, () => Promise<unknown>>> = {
      stop: () => daemon.stop().then(restarted),
      kill: () => daemon.kill().then(restarted),
      'another image': async () => {
        here.configure(config(azureImages.seed));
        await daemon.stop();
        await restarted();
      },
      drain: async () => {
        await here.api.drain('ci');
        await sleep(1_500);
        await here.api.resume('ci', 'test');
      },
      'the first image again, after a kill': async () => {
        here.configure(config());
        await daemon.kill();
        await restarted();
      },
      pause: async () => {
        await here.api.pause('ci', 'test');
        await sleep(1_500);
        await here.api.resume('ci', 'test');
      },
      down: async () => {
        await here.cli(['down', '--drain']).ended;
        await sleep(1_000);
        await restarted();
      },
    };
    for (const step of Object.values(steps)) {
      await sleep(Math.random() * 2_000);
      await step();
      // Whatever was done to it, it goes on.
      for (let n = 0; n < 2; n++) await azure.next('requestFinished', ({ request }) => request.result === 'succeeded');
    }
    await queueing;
    expect(jobs.filter((job) => job.view().failedAtQueue).map((job) => job.view())).toEqual([]);
    // What still waits is taken back, so that the test has an end.
    const waiting = jobs.filter((job) => job.view().state === 'waiting');
    for (const { requestId } of waiting) azure.cancel(requestId);
    const results = await Promise.all(jobs.map(({ finished }) => finished));
    // A stop ends the job that runs.
    expect(results.filter(({ result }) => result !== 'succeeded' && result !== 'canceled')).toEqual([]);
    await works(bench);
    expect(azure.agents(pool).filter(({ name }) => isPlaceholder(name))).toHaveLength(1);
    await daemon.stop();
    expectClean(bench);
  },
);
