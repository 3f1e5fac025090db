/** How Slurm's queue is looked at: by one look for all, and never by one that is too old. */
import { expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { parseJobs } from './commands.ts';
import { SlurmQueue } from './queue.ts';

const never = new AbortController().signal;

/** Each look waits for its text. */
function bench() {
  const clock = handClock();
  const looks: ((text: string) => void)[] = [];
  const jobs = async () => parseJobs(await new Promise<string>((resolve) => looks.push(resolve)));
  return { clock, looks, queue: new SlurmQueue({ clock, commands: { jobs }, every: 2_000 }) };
}

it('a look that was asked before Slurm was asked for a job is not taken for one after it', async () => {
  const { looks, queue } = bench();
  const before = queue.look();
  queue.hurry();
  looks[0]?.('');
  expect([...(await before)]).toEqual([]);
  const after = queue.look();
  looks[1]?.('7|PENDING|None||oj-a|onejob:me\n');
  expect([...(await after).keys()]).toEqual(['a']);
});

it('many wait for the same look, and nothing is left of those who have gone', async () => {
  const { clock, looks, queue } = bench();
  const stop = new AbortController();
  const gone = queue.next(stop.signal);
  const waiting = Array.from({ length: 500 }, () => queue.next(never).then(() => queue.look()));
  stop.abort();
  await gone;
  expect(clock.next()).toBe(2_000);
  clock.advance(2_000);
  await expect.poll(() => looks.length).toBe(1);
  looks[0]?.('');
  await Promise.all(waiting);
  expect([looks.length, clock.next()]).toEqual([1, null]);
});
