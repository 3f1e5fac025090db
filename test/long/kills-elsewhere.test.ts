/** What `kills.test.ts` shows where a job begins and ends, at the other boundaries and at random moments. */
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/pools/executors.ts';
import { dice } from '../support/dice.ts';
import { homeOfRuns, job, killAt, members } from '../support/kills.ts';

// Not `register` and `prove`: the own queue does not bind early, and none of its pools here has devices.
const acts = ['prepare', 'terminate', 'kill', 'clear'] as const;
const boundaries: Boundary[] = acts.flatMap((act) => [`${act}.intent`, `${act}.effect`, `${act}.record`] as const);

describe.each(members)('on $name', ({ missing, pool }) => {
  test.skipIf(missing).each(boundaries)('killed at %s', (boundary) => killAt(boundary, pool));

  test.skipIf(missing)('killed at 25 random moments under a stream of jobs', async () => {
    const random = dice();
    const { here, runs } = await homeOfRuns(pool);
    await using _ = here;
    const ids: string[] = [];
    let daemon = await here.up();
    for (let i = 0; i < 25; i++) {
      for (let n = 0; n < 3; n++) {
        const detached = await here.run('--no-workspace', '--detach', '--', 'sh', '-c', job.plain).ended;
        ids.push(detached.stdout.trim());
      }
      await new Promise((resolve) => setTimeout(resolve, random() * 300));
      await daemon.kill();
      daemon = await here.up();
    }
    const jobs = await Promise.all(ids.map((id) => here.api.settled(id)));
    expect(jobs.map((one) => one.result)).toEqual(ids.map(() => ({ kind: 'code', code: 0 })));
    expect(runs()).toBe(ids.length);
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
  });
});
