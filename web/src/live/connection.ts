/**
 * Keeps a `World` current: opens the event stream, reads everything, then applies events. Whenever the stream ends, everything is
 * read again. While it is down nothing counts as current; a stream without a sign of life is down too.
 */
import type { StatusView } from '../../../src/contract/schema.ts';
import { ask, clockOffset, get, meetAgain, Problem } from '../api.ts';
import type { Device, Job } from '../views.ts';
import { isWaiting } from '../words/words.ts';
import { createEventParser, type ServerEvent } from './sse.ts';
import { applied, type LiveEvent, reasonsRead, type World, worldOf } from './world.ts';

/**
 * `reading`: connected, and not yet current. `lost`: since `since`; the next try is at `retryAt`. Both on the browser's clock, ms.
 * `login`: the daemon does not know this browser. `asleep`: nobody looks at this tab.
 */
export type Link =
  | { readonly kind: 'reading' | 'live' | 'login' | 'asleep' }
  | { readonly kind: 'lost'; readonly since: number; readonly retryAt: number; readonly why: string };

export interface ConnectionOptions {
  readonly onLink: (link: Link) => void;
  /** `offset`: ms that the daemon's clock is ahead. */
  readonly onWorld: (world: World, offset: number) => void;
  /** Calls back when it is time to draw. */
  readonly nextFrame: (draw: () => void) => void;
  readonly now: () => number;
  readonly after: (ms: number, call: () => void) => () => void;
}

/** ms without a sign of life; the daemon gives one every 15 s. */
const silence = 40_000;
/** ms between two looks at why jobs wait and when they may start, which changes without an event of theirs: after events, and always. */
const [lookEvery, lookAnyway] = [2_000, 15_000];
/** A look at many jobs takes long, and is taken so much more rarely, but no reason is older than `lookAnyway`. */
const lookShare = 20;
/** ms between two tries, the last for all further ones. */
const tries = [500, 1_000, 2_000, 4_000];
const known: ReadonlySet<string> = new Set<LiveEvent['name']>(['job', 'slot', 'pool', 'device', 'host', 'gone']);

/** Runs until `signal` aborts. */
export async function keepCurrent(options: ConnectionOptions, signal: AbortSignal): Promise<void> {
  const { onLink, now, after } = options;
  let failures = 0;
  let since: number | null = null;
  let world: World | null = null;
  const heard = (next: World) => {
    world = next;
    since = null;
    failures = 0;
  };
  while (!signal.aborted) {
    let why = 'The daemon ended the connection.';
    try {
      if (since === null) onLink({ kind: 'reading' });
      meetAgain();
      await session(options, world, heard, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status === 401) return onLink({ kind: 'login' });
      why = error instanceof Problem ? error.message : 'The connection was cut.';
    }
    if (signal.aborted) return;
    since ??= now();
    const wait = tries[Math.min(failures, tries.length - 1)] ?? 0;
    failures += 1;
    onLink({ kind: 'lost', since, retryAt: now() + wait, why });
    await pause(wait, after, signal);
  }
}

/** One stream from its start to its end. */
async function session(
  options: ConnectionOptions,
  before: World | null,
  heard: (world: World) => void,
  outer: AbortSignal,
): Promise<void> {
  const { onLink, onWorld, nextFrame, now, after } = options;
  const cut = new AbortController();
  const signal = AbortSignal.any([outer, cut.signal]);
  let stopWaiting = after(silence, () => cut.abort());
  let world: World | null = null;
  let last = before;
  let offset = 0;
  let pending: LiveEvent[] = [];
  let drawing = false;
  let stopLooking = () => {};
  let [lookAt, lookedAt, lookTook] = [Number.POSITIVE_INFINITY, 0, 0];

  const draw = () => {
    drawing = false;
    if (world === null || signal.aborted) return;
    if (pending.length > 0) world = applied(world, pending, now() + offset);
    pending = [];
    last = world;
    heard(world);
    onWorld(world, offset);
  };
  /** Looks at jobs that wait in at most so many ms, and not before the last look is old enough. */
  const lookWithin = (ms: number) => {
    const at = Math.max(now() + ms, lookedAt + lookEvery, lookedAt + Math.min(lookAnyway, lookShare * lookTook));
    if (at >= lookAt) return;
    stopLooking();
    lookAt = at;
    stopLooking = after(at - now(), () => {
      lookedAt = now();
      const anybody = world !== null && [...world.jobs.values()].some(isWaiting);
      const read = anybody ? get<Job[]>('/v1/jobs', signal) : Promise.resolve(null);
      // One that failed is made up for by the next one: a busy daemon, or a proxy before it, may refuse one and keep the stream.
      const found = read.catch(() => null);
      void found.then((jobs) => {
        if (signal.aborted) return;
        lookTook = now() - lookedAt;
        lookAt = Number.POSITIVE_INFINITY;
        lookWithin(lookAnyway);
        if (world === null || jobs === null) return;
        world = reasonsRead(world, jobs);
        drawSoon();
      });
    });
  };
  const drawSoon = () => {
    if (drawing || world === null) return;
    drawing = true;
    nextFrame(draw);
  };
  /** Events that come meanwhile wait, and are applied to what was read. */
  const readAll = async (): Promise<void> => {
    world = null;
    const [status, jobs, devices] = await Promise.all([
      ask('/v1/status', { signal }),
      get<Job[]>('/v1/jobs', signal),
      get<Device[]>('/v1/devices', signal),
    ]);
    offset = clockOffset(status, now());
    world = worldOf((await status.json()) as StatusView, jobs, devices, now() + offset, last);
    draw();
    lookWithin(lookAnyway);
    onLink({ kind: 'live' });
  };

  try {
    const response = await ask('/v1/events', { signal, headers: { accept: 'text/event-stream' } });
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    if (reader === undefined) return;
    const parse = createEventParser();
    // What fails in there ends the stream, and with it this session.
    let failed: unknown = null;
    let reading = readAll().catch((error: unknown) => {
      failed = error;
      cut.abort();
    });
    let first = true;
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw failed ?? error;
      });
      if (done) return;
      stopWaiting();
      stopWaiting = after(silence, () => cut.abort());
      for (const event of parse(value)) {
        // The first one only says that this stream does not continue another. Everything is being read anyway.
        if (event.name === 'reset' && !first) {
          pending = [];
          onLink({ kind: 'reading' });
          reading = reading.then(readAll).catch((error: unknown) => {
            failed = error;
            cut.abort();
          });
        }
        const live = liveEvent(event);
        if (live !== null) pending.push(live);
        first = false;
      }
      if (pending.some(({ name }) => name === 'pool' || name === 'job')) lookWithin(lookEvery);
      if (pending.length > 0) drawSoon();
    }
  } finally {
    stopWaiting();
    stopLooking();
    cut.abort();
  }
}

/** Resolves after so many ms, or when `signal` aborts. */
export function pause(ms: number, after: ConnectionOptions['after'], signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const stop = after(ms, resolve);
    signal.addEventListener(
      'abort',
      () => {
        stop();
        resolve();
      },
      { once: true },
    );
  });
}

/** null for an event that this page does not know. */
function liveEvent({ name, data }: ServerEvent): LiveEvent | null {
  return known.has(name) ? ({ name, data: JSON.parse(data) } as LiveEvent) : null;
}
