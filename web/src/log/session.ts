/**
 * The output of one job as a window of bounded size over a log of any size. The window is at the end and follows, or anywhere
 * else; it is moved by reading again from a known place. What is searched for is read once from the start, and not kept.
 */
import { Problem } from '../api.ts';
import { pause } from '../live/connection.ts';
import { bytesText } from '../words/text.ts';
import { type Counts, createFrameReader, type Frame } from './frames.ts';
import { type Block, Blocks, createLineReader, type Limits, type Line, type LineReader, minus, nothing, plus } from './lines.ts';

/** The start of a line, and its number from 0. */
export interface Place {
  readonly at: Counts;
  readonly number: number;
}

export interface LogState {
  /** Changes when the window shows another part, unlike when it grows. */
  readonly window: number;
  readonly blocks: readonly Block[];
  /** Lines without an end yet. */
  readonly open: readonly Line[];
  /** Number of its first line; null if unknown. */
  readonly first: number | null;
  /** Bytes before it. */
  readonly before: Counts;
  /** Whether it reaches to the end of the output. */
  readonly atEnd: boolean;
  /** `waiting`: the connection was cut, and is tried again. */
  readonly state: 'loading' | 'following' | 'ended' | 'stopped' | 'waiting' | 'failed';
  readonly problem: string | null;
}

export interface Found {
  /** The first ones. */
  readonly matches: readonly Match[];
  readonly count: number;
}

export interface Match {
  readonly number: number;
  /** A known place at or before it. */
  readonly from: Place;
}

export interface LogOptions {
  /** Opens `/v1/logs` with a query; its body. */
  readonly read: (query: Readonly<Record<string, string | number>>, signal: AbortSignal) => Promise<ReadableStream<Uint8Array>>;
  readonly onState: (state: LogState) => void;
  readonly nextFrame: (draw: () => void) => void;
  readonly after: (ms: number, call: () => void) => () => void;
  readonly limits?: Limits;
}

/** Lines that are asked for at once, and at first, and between two places that are remembered. */
const page = 2_000;
const tailLines = 4_500;
const placeEvery = 1_000;
const matchesKept = 1_000;
/** ms until a cut connection is tried again. */
const retryAfter = 2_000;
const start: Place = { at: nothing, number: 0 };

export type LogSession = ReturnType<typeof openLog>;

export function openLog({ read, onState, nextFrame, after, limits = { lines: 5_000, size: 4 << 20 } }: LogOptions) {
  let [keys, windows] = [0, 0];
  const nextKey = () => keys++;
  let blocks = new Blocks(nextKey);
  let lines: LineReader | null = null;
  let state: Omit<LogState, 'blocks' | 'open'> = {
    window: 0,
    first: null,
    before: nothing,
    atEnd: false,
    state: 'loading',
    problem: null,
  };
  let reading = new AbortController();
  let held = false;
  /** Resolves when somebody looks again; null while somebody does. */
  let asleep: PromiseWithResolvers<void> | null = null;
  /** Aborted while nobody looks: each request that follows takes a connection, of which browsers have few. */
  let dozing = new AbortController();
  let drawing = false;
  /** Known places, in their order. */
  const places: Place[] = [start];

  const draw = () => {
    drawing = false;
    const open = (lines?.open ?? []).map((line, at): Line => ({ ...line, key: -1 - at, look: blocks.lookOf(line.stream) }));
    onState({ ...state, blocks: blocks.list(), open });
  };
  const change = (more: Partial<typeof state> = {}) => {
    state = { ...state, ...more };
    if (drawing) return;
    drawing = true;
    nextFrame(draw);
  };

  /** Passes on frames until the end, or until `take` returns true. True: the output has ended. @throws Problem, or when it is cut */
  async function frames(
    asked: Readonly<Record<string, string | number>>,
    take: (frame: Frame) => boolean,
    signal: AbortSignal,
  ): Promise<boolean> {
    const enough = new AbortController();
    const reader = (await read(asked, AbortSignal.any([signal, enough.signal]))).getReader();
    const parse = createFrameReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Problem(0, { code: 'E_DAEMON_CUT', message: 'The connection to the daemon was cut.', hint: null });
        for (const frame of parse(value)) {
          if (frame.kind === 'end') return true;
          if (frame.kind === 'error') throw new Problem(200, frame.error);
          if (take(frame)) return false;
        }
      }
    } finally {
      enough.abort();
    }
  }

  /** Makes the window empty; the next lines begin at `place`. */
  const restart = (more: Partial<typeof state>): AbortSignal => {
    reading.abort();
    reading = new AbortController();
    blocks = new Blocks(nextKey);
    windows += 1;
    change({ window: windows, first: null, before: nothing, atEnd: false, state: 'loading', problem: null, ...more });
    return reading.signal;
  };

  const trim = () => {
    const { counts, lines: gone } = blocks.trimFront(limits);
    if (gone === 0) return;
    change({ before: plus(state.before, counts), first: state.first === null ? null : state.first + gone });
  };

  /** Appends what is read. `enough` lines are one window; null: all, and further output. */
  async function append(
    asked: Readonly<Record<string, string | number>>,
    enough: number | null,
    signal: AbortSignal,
  ): Promise<void> {
    const reader = createLineReader((stream, text, bytes) => blocks.add(stream, text, { ...nothing, [stream]: bytes }));
    lines = reader;
    const take = (frame: Frame): boolean => {
      // What was left out comes first.
      if (frame.kind !== 'gap' && sameCounts(state.before, nothing)) change({ first: 0 });
      if (frame.kind === 'stdout' || frame.kind === 'stderr') reader.push(frame.kind, frame.bytes);
      else if (frame.kind === 'gap' && frame.asked) change({ before: plus(state.before, frame.missing) });
      else if (frame.kind === 'gap') blocks.add('note', gapText(frame), frame.missing);
      else if (frame.kind === 'note') blocks.add('note', frame.text.replace(/\n$/, ''), nothing);
      if (enough !== null) return blocks.lines >= enough || blocks.size > limits.size;
      // Somebody reads further up: nothing is taken away from there, so reading stops.
      if (held && (blocks.lines > limits.lines || blocks.size > limits.size)) return true;
      if (!held) trim();
      change({ state: 'following', atEnd: true });
      return false;
    };
    const ended = await frames(asked, take, enough === null ? AbortSignal.any([signal, dozing.signal]) : signal);
    if (signal.aborted) return;
    if (!ended) lines = null;
    if (ended && sameCounts(state.before, nothing)) change({ first: 0 });
    change(ended ? { state: 'ended', atEnd: true } : { state: 'stopped', atEnd: false });
  }

  /** Runs `work`, which begins again after what may pass by itself, and when somebody looks again. */
  async function guarded(work: () => Promise<void>, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const nobodyLooks = dozing.signal;
      try {
        return await work();
      } catch (error) {
        if (signal.aborted) return;
        lines = null;
        if (error instanceof Problem && !error.mayPass) {
          const hint = error.hint === null ? '' : ` ${error.hint}`;
          return change({ state: 'failed', problem: `${error.message}${hint}` });
        }
        if (nobodyLooks.aborted) await asleep?.promise;
        else {
          const why = error instanceof Problem && error.status !== 0 ? error.message : 'The connection was cut.';
          change({ state: 'waiting', problem: `${why} Trying again.` });
          await pause(retryAfter, after, signal);
        }
        if (!signal.aborted) change({ state: 'loading', problem: null });
      }
    }
  }

  const end = (): Counts => plus(state.before, blocks.counts);

  /** The last known place at or before these counts. */
  const placeBefore = ({ stdout, stderr }: Counts): Place =>
    places.findLast(({ at }) => at.stdout <= stdout && at.stderr <= stderr) ?? start;

  /**
   * Reads lines from a place on, remembers places, and stops where `take` returns true. `take` gets the place of each line.
   * True: to the end.
   */
  async function scan(
    from: Place,
    take: (line: { readonly stream: Line['stream']; readonly text: string; readonly counts: Counts }, place: Place) => boolean,
    onRead: (bytes: number) => void,
    signal: AbortSignal,
  ): Promise<boolean> {
    let { at, number } = from;
    let done = false;
    const line = (stream: Line['stream'], text: string, counts: Counts) => {
      if (done) return;
      const place = { at, number };
      if (number % placeEvery === 0 && (places.at(-1)?.number ?? 0) < number) places.push(place);
      done = take({ stream, text, counts }, place);
      at = plus(at, counts);
      number += 1;
    };
    const reader = createLineReader((stream, text, bytes) => line(stream, text, { ...nothing, [stream]: bytes }));
    const toEnd = await frames(
      { ...from.at },
      (frame) => {
        if (frame.kind === 'stdout' || frame.kind === 'stderr') reader.push(frame.kind, frame.bytes);
        else if (frame.kind === 'gap') line('note', gapText(frame), frame.missing);
        else if (frame.kind === 'note') line('note', frame.text.replace(/\n$/, ''), nothing);
        onRead(at.stdout + at.stderr);
        return done;
      },
      signal,
    );
    if (toEnd) for (const { stream, text } of reader.open) line(stream, text, nothing);
    return toEnd;
  }

  return {
    /** The end, and what comes then. */
    showEnd(): Promise<void> {
      const signal = restart({});
      held = false;
      // What was read before the connection was cut is not read again.
      const rest = () => (sameCounts(end(), nothing) ? { tail: tailLines } : end());
      return guarded(() => append({ ...rest(), follow: 'true' }, null, signal), signal);
    },
    showAt(place: Place = start): Promise<void> {
      const signal = restart({ before: place.at, first: place.number });
      return guarded(() => append({ ...end() }, limits.lines - page, signal), signal);
    },
    /** More below the window. */
    later(): Promise<void> {
      if (state.atEnd || state.state === 'loading') return Promise.resolve();
      const { signal } = reading;
      change({ state: 'loading' });
      return guarded(async () => {
        await append({ ...end() }, blocks.lines + page, signal);
        trim();
      }, signal);
    },
    /** More above the window. */
    async earlier(onRead: (bytes: number) => void = () => {}): Promise<void> {
      const { before } = state;
      if (sameCounts(before, nothing)) return;
      reading.abort();
      reading = new AbortController();
      const { signal } = reading;
      change({ state: 'loading' });
      await guarded(async () => {
        const above = new Blocks(nextKey);
        let first = 0;
        const isBelow = ({ stdout, stderr }: Counts) => stdout >= before.stdout && stderr >= before.stderr;
        const from = placeBefore(minus(before, { stdout: Math.min(before.stdout, 1), stderr: 0 }));
        await scan(
          from,
          ({ stream, text, counts }, { at, number }) => {
            first = number;
            if (isBelow(at)) return true;
            above.add(stream, text, counts);
            above.trimFront({ lines: page, size: limits.size / 2 });
            first = number + 1;
            return isBelow(plus(at, counts));
          },
          onRead,
          signal,
        );
        if (signal.aborted) return;
        const wasOpen = lines !== null;
        lines = null;
        const cut = blocks.prepend(above.list(), limits);
        change({
          before: minus(before, above.counts),
          first: first - above.lines,
          state: 'stopped',
          atEnd: state.atEnd && !cut && !wasOpen,
        });
      }, signal);
    },
    /** While it is held, nothing leaves the window. */
    hold(on: boolean): void {
      held = on;
    },
    /** Where `test` holds for a line; with `onlyFirst` it stops there. `onRead` gets the bytes read so far. */
    async find(
      test: (text: string) => boolean,
      { onlyFirst, onRead }: { readonly onlyFirst: boolean; readonly onRead: (bytes: number) => void },
      signal: AbortSignal,
    ): Promise<Found> {
      const matches: Match[] = [];
      let count = 0;
      const look = (text: string, { number }: Place): boolean => {
        if (!test(text)) return false;
        count += 1;
        if (matches.length < matchesKept)
          matches.push({ number, from: places.findLast((place) => place.number <= number) ?? start });
        return onlyFirst;
      };
      if (state.atEnd && sameCounts(state.before, nothing)) {
        // All of it is here.
        const all = [...blocks.list().flatMap((block) => block.lines), ...(lines?.open ?? [])];
        all.some(({ text }, number) => look(text, { at: nothing, number }));
      } else await scan(start, ({ text }, place) => look(text, place), onRead, signal);
      return { matches, count };
    },
    /** While nobody looks nothing is followed. What has come meanwhile is read when somebody looks again. */
    sleep(on: boolean): void {
      if (on === (asleep !== null)) return;
      if (on) {
        asleep = Promise.withResolvers();
        dozing.abort();
      } else {
        dozing = new AbortController();
        asleep?.resolve();
        asleep = null;
      }
    },
    close(): void {
      reading.abort();
      asleep?.resolve();
    },
  };
}

function sameCounts(a: Counts, b: Counts): boolean {
  return a.stdout === b.stdout && a.stderr === b.stderr;
}

function gapText({
  missing: { stdout, stderr },
  isUncounted,
}: {
  readonly missing: Counts;
  readonly isUncounted: boolean;
}): string {
  if (stdout + stderr === 0) return 'output may be missing here: it was deleted before it could be read or counted';
  const parts = [stdout > 0 ? `${bytesText(stdout)} of stdout` : '', stderr > 0 ? `${bytesText(stderr)} of stderr` : ''];
  return `output is not kept here: ${isUncounted ? 'at least ' : ''}${parts.filter((part) => part !== '').join(', ')}`;
}
