/** Shared work: done once, for as long as somebody waits for it. And turns: at most so many at a time. */
import { expect, test } from 'vitest';
import { createShared, type Progress, Turns } from './abortable.ts';

function work() {
  const done = Promise.withResolvers<string>();
  const begun: { say: Progress; signal: AbortSignal }[] = [];
  const shared = createShared<string>();
  const join = (signal = new AbortController().signal, heard: string[] = []) =>
    shared(
      'key',
      (say, until) => {
        begun.push({ say, signal: until });
        return done.promise;
      },
      (line) => heard.push(line),
      signal,
    );
  return { done, begun, join, shared };
}

/** Until everything that is under way has come to its end. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('callers that join wait for the same result, and get the progress so far', async () => {
  const { done, begun, join, shared } = work();
  const [first, second]: [string[], string[]] = [[], []];
  const one = join(undefined, first);
  await settled();
  begun[0]?.say('step 1');
  const other = join(undefined, second);
  begun[0]?.say('step 2');
  expect([first, second, begun.length, shared.isBusy()]).toEqual([['step 1', 'step 2'], ['step 1', 'step 2'], 1, true]);
  done.resolve('made');
  expect([await one, await other]).toEqual(['made', 'made']);
  await settled();
  expect(shared.isBusy()).toBe(false);
});

test('work continues while one caller waits, and is aborted when the last one leaves', async () => {
  const { begun, join } = work();
  const [a, b] = [new AbortController(), new AbortController()];
  const [one, other] = [join(a.signal), join(b.signal)];
  await settled();
  a.abort(new Error('enough'));
  await expect(one).rejects.toThrow('enough');
  expect(begun[0]?.signal.aborted).toBe(false);
  b.abort(new Error('me too'));
  await expect(other).rejects.toThrow('me too');
  expect(begun[0]?.signal.aborted).toBe(true);
});

test('work that is being aborted is not joined: it starts again', async () => {
  const { begun, join } = work();
  const gone = new AbortController();
  const first = join(gone.signal);
  await settled();
  gone.abort(new Error('gone'));
  await expect(first).rejects.toThrow('gone');
  void join();
  await settled();
  expect(begun.length).toBe(2);
});

test('a failure goes to all callers, and is not remembered', async () => {
  const { done, begun, join } = work();
  const both = Promise.allSettled([join(), join()]);
  done.reject(new Error('no'));
  expect((await both).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  await settled();
  await expect(join()).rejects.toThrow('no');
  expect(begun.length).toBe(2);
});

test('turns: the next one begins when one ends, in their order; one that gives up takes none', async () => {
  const turns = new Turns(2);
  const began: string[] = [];
  const take = async (name: string, signal?: AbortSignal): Promise<Disposable> => {
    const turn = await turns.take(signal);
    began.push(name);
    return turn;
  };
  const [first, second] = [await take('first'), await take('second')];
  const stop = new AbortController();
  const third = take('third', stop.signal);
  const fourth = take('fourth');
  const fifth = take('fifth');
  stop.abort(new Error('no more'));
  await expect(third).rejects.toThrow('no more');
  first[Symbol.dispose]();
  await fourth;
  await settled();
  expect(began).toEqual(['first', 'second', 'fourth']);
  second[Symbol.dispose]();
  (await fourth)[Symbol.dispose]();
  (await fifth)[Symbol.dispose]();
  expect(began).toEqual(['first', 'second', 'fourth', 'fifth']);
  for (const turn of [await take('sixth'), await take('seventh')]) turn[Symbol.dispose]();
});
