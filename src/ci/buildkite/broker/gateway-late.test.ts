/** What the service answers to a job's start or result once the job is being ended from here: its last words are said on. */
import { expect, it } from 'vitest';
import type { RecordPatch } from './record.ts';
import { say, slotOffer } from './testing.ts';
import { begin, only } from './testing-begin.ts';
import { bodyOf, gatewayBench, jobId } from './testing-gateway.ts';

const passed = { exitStatus: '0', signal: null, signalReason: null };
const verdict = { reason: 'Its sandbox is gone.', signalReason: 'agent_stop' } as const;

/** A service that takes its time with its first answer. */
async function slowly() {
  const came = Promise.withResolvers<void>();
  const answered = Promise.withResolvers<void>();
  const bench = await gatewayBench(async (request, response) => {
    await bodyOf(request);
    came.resolve();
    await answered.promise;
    response.end('{}');
  });
  return {
    bench,
    /** What the agent hears to a call during which `meanwhile` becomes of it. */
    async during(call: string, body: unknown, ...meanwhile: readonly RecordPatch[]): Promise<number> {
      const told = bench.call('PUT', `/v3/jobs/${jobId}/${call}`, bench.token('job', 'a'), body);
      await came.promise;
      for (const patch of meanwhile) bench.book.update('a', patch);
      answered.resolve();
      return (await told).status;
    },
    [Symbol.asyncDispose]: () => bench[Symbol.asyncDispose](),
  };
}

it('a start that the service takes too late lets nothing begin', async () => {
  await using here = await slowly();
  here.bench.held('a', { shown: { phase: 'connected' } });
  const ending = { verdict, next: 'start' } as const;
  expect(await here.during('start', {}, { shown: { phase: 'ending' }, ending })).toBe(401);
  expect(here.bench.book.get('a')).toMatchObject({ shown: { phase: 'ending' }, ending });
});

it('a start that was said twice takes no result back', async () => {
  await using here = await slowly();
  here.bench.held('a', { shown: { phase: 'connected' } });
  expect(await here.during('start', {}, { shown: { phase: 'running' } }, { shown: { phase: 'finished', finished: passed } })).toBe(
    401,
  );
  expect(here.bench.book.get('a')?.shown).toMatchObject({ phase: 'finished', finished: passed });
});

it('a result that the service takes too late counts, and only the farewell is left', async () => {
  await using here = await slowly();
  here.bench.held('a', { shown: { phase: 'running' } });
  const meanwhile = { shown: { phase: 'ending' }, ending: { verdict, next: 'log' } } as const;
  expect(await here.during('finish', { exit_status: '0' }, meanwhile)).toBe(200);
  expect(here.bench.book.get('a')).toMatchObject({
    shown: { phase: 'ending', finished: passed },
    finishing: null,
    ending: { verdict: null, next: 'disconnect' },
  });
});

it('a result that is heard of after the one that was given to the job changes nothing', async () => {
  await using here = await slowly();
  here.bench.held('a', { shown: { phase: 'running' } });
  const finished = { exitStatus: '-1', signal: null, signalReason: 'agent_stop' };
  const ending = { verdict, next: 'disconnect' } as const;
  expect(await here.during('finish', { exit_status: '0' }, { shown: { phase: 'ending', finished }, ending })).toBe(200);
  expect(here.bench.book.get('a')).toMatchObject({ shown: { phase: 'ending', finished }, finishing: null, ending });
});

it('a result that arrives during a last word is not said again', async () => {
  const { running, service, pass } = begin();
  say(running, [slotOffer]);
  service.add('job-1');
  await pass(1_000);
  const { id } = only(running.book.all().filter(({ shown }) => shown.job !== null)).shown;
  running.book.update(id, { shown: { phase: 'running' } });
  // As the gateway writes it down.
  const arrived = { shown: { finished: passed }, ending: { verdict: null, next: 'disconnect' } } as const;
  service.fault = ({ path }) => {
    if (path.endsWith('/chunks')) running.book.update(id, arrived);
    return null;
  };
  running.control.end(id, verdict);
  await pass(1_000);
  expect(service.seen).toContain('POST jobs/job-1/chunks');
  expect(service.seen).not.toContain('PUT jobs/job-1/finish');
  expect(running.heard.findLast((each) => each.id === id)).toMatchObject({ phase: 'gone', finished: passed });
});
