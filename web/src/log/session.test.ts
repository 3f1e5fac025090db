import { Readable } from 'node:stream';
import { afterEach, expect, test, vi } from 'vitest';
import { frame, pieceFrames } from '../../../src/contract/frames.ts';
import type { LogPiece } from '../../../src/contract/manager.ts';
import { lastLines, skip } from '../../../src/logs/select.ts';
import { Problem } from '../api.ts';
import { textOf } from './ansi.ts';
import { type LogSession, type LogState, openLog } from './session.ts';

/** A log as the daemon has it, answered as its route does. */
function daemon(lines: number, text = (n: number) => `line ${n}`) {
  const pieces: LogPiece[] = [];
  for (let n = 0; n < lines; n += 1) {
    pieces.push({ stream: n % 10 === 9 ? 'stderr' : 'stdout', bytes: Buffer.from(`${text(n)}\n`) });
  }
  const asked: Record<string, string | number>[] = [];
  let wake = () => {};
  let ended = false;
  let cuts = 0;
  let readers = 0;
  let refusals: Problem[] = [];
  async function* all(follow: boolean, signal: AbortSignal): AsyncGenerator<LogPiece> {
    for (let at = 0; !signal.aborted; at += 1) {
      while (at >= pieces.length) {
        if (ended || !follow || signal.aborted) return;
        await new Promise<void>((resolve) => {
          wake = resolve;
          signal.addEventListener('abort', () => resolve(), { once: true });
        });
      }
      const piece = pieces[at];
      if (piece !== undefined) yield piece;
    }
  }
  async function* frames(query: Record<string, string | number>, signal: AbortSignal): AsyncGenerator<Uint8Array> {
    const from = { stdout: Number(query.stdout ?? 0), stderr: Number(query.stderr ?? 0) };
    const follow = query.follow === 'true';
    const read = (more: boolean) => all(more, signal);
    const found = query.tail === undefined ? read(follow) : lastLines(read, Number(query.tail), follow);
    yield frame('stdout');
    readers += 1;
    try {
      for await (const piece of skip(found, from)) yield Buffer.concat([...pieceFrames(piece)]);
    } finally {
      readers -= 1;
    }
    if (cuts > 0) cuts -= 1;
    else if (!signal.aborted) yield frame('end');
  }
  return {
    asked,
    readers: () => readers,
    add(...more: string[]) {
      for (const line of more) pieces.push({ stream: 'stdout', bytes: Buffer.from(line) });
      wake();
    },
    end() {
      ended = true;
      wake();
    },
    /** The next answers end without their end. */
    cut(times: number) {
      cuts = times;
      wake();
    },
    /** The next requests are answered so. */
    refuse(...problems: Problem[]) {
      refusals = problems;
    },
    read: async (query: Record<string, string | number>, signal: AbortSignal) => {
      asked.push(query);
      const refusal = refusals.shift();
      if (refusal !== undefined) throw refusal;
      return Readable.toWeb(Readable.from(frames(query, signal))) as ReadableStream<Uint8Array>;
    },
  };
}

let session: LogSession;
let state: LogState;
const shown = () => [...state.blocks.flatMap(({ lines }) => lines), ...state.open].map(({ text }) => textOf(text));

function open(log: ReturnType<typeof daemon>, limits = { lines: 5_000, size: 4 << 20 }): void {
  session = openLog({
    read: log.read,
    onState: (next) => {
      state = next;
    },
    nextFrame: (draw) => queueMicrotask(draw),
    after(_ms, call) {
      const timer = setTimeout(call, 1);
      return () => clearTimeout(timer);
    },
    limits,
  });
}
afterEach(() => session.close());

test('a short log is there as a whole, with its numbers', async () => {
  const log = daemon(20);
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state).toMatchObject({ state: 'ended', first: 0, atEnd: true }));
  expect(shown()).toEqual(Array.from({ length: 20 }, (_, n) => `line ${n}`));
});

test('a log that grows is followed, with the line that has no end yet', async () => {
  const log = daemon(3);
  open(log);
  void session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('following'));
  log.add('more\nhal', 'f');
  await vi.waitFor(() => expect(shown()).toEqual(['line 0', 'line 1', 'line 2', 'more', 'half']));
  log.end();
  await vi.waitFor(() => expect(state.state).toBe('ended'));
});

test('the window stays small however much comes, unless somebody reads further up', async () => {
  const log = daemon(1);
  open(log, { lines: 3_000, size: 4 << 20 });
  void session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('following'));
  for (let n = 0; n < 100; n += 1) log.add(`${`${n}\n`.repeat(1_000)}`);
  log.add('the end\n');
  await vi.waitFor(() => expect(shown().at(-1)).toBe('the end'));
  expect(shown().length).toBeLessThanOrEqual(3_000);
  expect(state.first).toBe(100_002 - shown().length);
  session.hold(true);
  for (let n = 0; n < 10; n += 1) log.add('x\n'.repeat(1_000));
  await vi.waitFor(() => expect(state).toMatchObject({ state: 'stopped', atEnd: false }));
  expect(shown()).toContain('the end');
});

test('a large log opens at its end, and goes back line by line without a gap', async () => {
  const log = daemon(20_000);
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('ended'));
  expect(shown().at(-1)).toBe('line 19999');
  expect(state.first).toBe(null);
  const above = shown().at(0) ?? '';
  await session.earlier();
  await vi.waitFor(() => expect(state.first).not.toBe(null));
  const lines = shown();
  const at = lines.indexOf(above);
  expect(at).toBeGreaterThanOrEqual(1_900);
  expect(lines.slice(0, 3)).toEqual([0, 1, 2].map((n) => `line ${(state.first ?? 0) + n}`));
  expect(lines).toEqual(lines.map((_, n) => `line ${(state.first ?? 0) + n}`));
  expect(lines.length).toBeLessThanOrEqual(5_000);
  for (let turn = 0; turn < 20 && state.first !== 0; turn += 1) {
    await session.earlier();
    await vi.waitFor(() => expect(state.state).toBe('stopped'));
  }
  expect(shown()[0]).toBe('line 0');
  await session.later();
  await vi.waitFor(() => expect(state.state).toBe('stopped'));
  expect(shown()).toEqual(shown().map((_, n) => `line ${(state.first ?? 0) + n}`));
});

test('the first error of a large log is found and shown without keeping what is before it', async () => {
  const log = daemon(30_000, (n) => (n === 17_000 || n === 29_000 ? `error: at ${n}` : `line ${n}`));
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('ended'));
  const signal = new AbortController().signal;
  const how = { onlyFirst: true, onRead: () => {} };
  const { matches, count } = await session.find((text) => text.startsWith('error'), how, signal);
  expect([matches.length, count, matches[0]?.number]).toEqual([1, 1, 17_000]);
  await session.showAt(matches[0]?.from);
  await vi.waitFor(() => expect(state.state).toBe('stopped'));
  expect(shown()[17_000 - (state.first ?? 0)]).toBe('error: at 17000');
  const all = await session.find((text) => text.startsWith('error'), { ...how, onlyFirst: false }, signal);
  expect(all.matches.map(({ number }) => number)).toEqual([17_000, 29_000]);
});

test('a log that is there as a whole is searched without asking again', async () => {
  const log = daemon(20);
  log.add('last without an end');
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('ended'));
  const before = log.asked.length;
  const found = await session.find(
    (text) => /1|last/.test(text),
    { onlyFirst: false, onRead: () => {} },
    new AbortController().signal,
  );
  expect(found.matches.map(({ number }) => number)).toEqual([1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
  expect(log.asked).toHaveLength(before);
});

test('a cut connection continues where it was', async () => {
  const log = daemon(5);
  log.cut(1);
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('ended'));
  expect(shown()).toEqual(['line 0', 'line 1', 'line 2', 'line 3', 'line 4']);
  expect(log.asked.at(-1)).toEqual({ stdout: 35, stderr: 0, follow: 'true' });
});

test('a log that is refused says why', async () => {
  session = openLog({
    read: async () =>
      Readable.toWeb(
        Readable.from([frame('error', JSON.stringify({ code: 'E_LOG', message: 'No log.', hint: 'Look.' }))]),
      ) as ReadableStream<Uint8Array>,
    onState: (next) => {
      state = next;
    },
    nextFrame: (draw) => queueMicrotask(draw),
    after: () => () => {},
  });
  await session.showEnd();
  await vi.waitFor(() => expect(state).toMatchObject({ state: 'failed', problem: 'No log. Look.' }));
});

const refusal = (status: number, retry: boolean) => new Problem(status, { code: 'E_X', message: 'Not now.', hint: null, retry });

test.each([
  ['a proxy without a daemon behind it', refusal(502, false)],
  ['a daemon that is stopping', refusal(409, true)],
])('%s is asked again, for no more than at first', async (_, problem) => {
  const log = daemon(5);
  log.refuse(problem, problem);
  log.end();
  open(log);
  await session.showEnd();
  await vi.waitFor(() => expect(state).toMatchObject({ state: 'ended', problem: null }));
  expect(shown()).toHaveLength(5);
  expect(log.asked).toHaveLength(3);
  for (const query of log.asked) expect(query).toEqual({ tail: 4_500, follow: 'true' });
});

test('a log that nobody looks at is not followed, and continues where it was', async () => {
  const log = daemon(3);
  open(log);
  void session.showEnd();
  await vi.waitFor(() => expect(state.state).toBe('following'));
  session.sleep(true);
  await vi.waitFor(() => expect(log.readers()).toBe(0));
  log.add('more\n');
  session.sleep(false);
  await vi.waitFor(() => expect(shown()).toEqual(['line 0', 'line 1', 'line 2', 'more']));
  expect(log.asked).toEqual([
    { tail: 4_500, follow: 'true' },
    { stdout: 21, stderr: 0, follow: 'true' },
  ]);
  await vi.waitFor(() => expect(state.state).toBe('following'));
});
