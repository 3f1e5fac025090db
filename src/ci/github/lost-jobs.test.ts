/** What stays known of jobs whose agents are gone. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';

it('nothing says that jobs wait for a set that another program serves now', async () => {
  const clock = handClock();
  const bench = githubService({ clock, config: { mode: 'scale-set' }, tags: ['gpu'] });
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  const soon = <T>(what: () => T) =>
    expect.poll(
      () => {
        clock.advance(1_000);
        return what();
      },
      { timeout: 30_000, interval: 5 },
    );
  await soon(() => bench.github.sets[0]?.session ?? null).not.toBeNull();
  for (let n = 0; n < 3; n++) bench.github.queue({ labels: ['gpu'] });
  await soon(() => bench.service.waiting('ci')).toBe(3);
  const set = bench.github.sets[0];
  if (set !== undefined) {
    set.session = { id: 'x', owner: 'other' };
    set.queueToken = 'gone';
  }
  await soon(() => bench.service.waiting('ci')).toBeNull();
  on.abort();
  await bench.service.close?.();
  bench.close();
});

it('a job whose runner GitHub lists twenty minutes as busy after its death is recorded as lost, not as a job without a result', async () => {
  const clock = handClock();
  const bench = githubService({ clock });
  bench.live.add('a1');
  const { script } = await bench.service.register(contextOf('a1'), patient);
  const runner = bench.github.connect(jitIn(script));
  bench.github.queue({ labels: ['ci'], name: 'build' });
  runner.take();
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  const hear = bench.service.listen('a1');
  hear(
    `onejob: job ${JSON.stringify({ repository: 'acme/demo', run: 7_000, attempt: 1, number: 12, workflow: 'CI', name: 'build', event: 'push', ref: 'refs/heads/main', actor: 'o', refused: null })}`,
  );
  const id = `hub-${runner.row.id}`;
  await expect.poll(() => bench.store.serviceJobs.get(id)?.repository).toBe('acme/demo');
  runner.die();
  bench.live.delete('a1');
  await bench.service.deregister(contextOf('a1'), patient);
  await expect
    .poll(
      () => {
        clock.advance(5_000);
        return bench.github.jobs[0]?.conclusion;
      },
      { timeout: 30_000, interval: 5 },
    )
    .toBe('failure');
  for (let n = 0; n < 200; n++) {
    clock.advance(5_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
  on.abort();
  const row = bench.store.serviceJobs.get(id);
  bench.close();
  // GitHub says "failure" by now.
  expect(row).toMatchObject({ state: 'done', result: 'failure', outcome: 'failed' });
});
