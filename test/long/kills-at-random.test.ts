/** What `kills.test.ts` shows at each boundary of a job's begin and end, at random moments under a stream of jobs. */
import { describe, expect, test } from 'vitest';
import { dice } from '../support/dice.ts';
import { homeOfRuns, job, members } from '../support/kills.ts';

describe.each(members)('on $name', ({ missing, pool }) => {
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
