import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { job, workingDay } from '../../test/world.ts';
import type { keepCurrent as KeepCurrent, Link } from './connection.ts';
import type { World } from './world.ts';

let keepCurrent: typeof KeepCurrent;

// Who answers, and for whom, is what tests in a real browser are about. Files share a worker, so the modules are read anew.
beforeAll(async () => {
  vi.resetModules();
  vi.doMock('../login.ts', () => ({
    readLogin: async () => ({}),
    newNonce: () => 'n',
    signed: async () => 'Onejob',
    isProof: async () => true,
  }));
  ({ keepCurrent } = await import('./connection.ts'));
});
afterAll(() => {
  vi.doUnmock('../login.ts');
  vi.resetModules();
});

/** A daemon in this process: what it answers, and its open event stream. */
let streams: ReadableStreamDefaultController<Uint8Array>[] = [];
let reads: string[] = [];
let status = 200;
/** The read that is answered by a proxy, counted from 1. */
let failAt = 0;
let links: Link[] = [];
let world: World | null = null;
let stop: AbortController;
let ended: Promise<void>;
const state = workingDay();

function respond(path: string, signal: AbortSignal): Response {
  if (path === '/v1/challenge') return new Response(JSON.stringify({ challenge: 'c', at: Date.now() }));
  reads.push(path);
  if (status !== 200) return new Response(JSON.stringify({ code: 'E_X', message: 'no', hint: null, retry: false }), { status });
  if (reads.length === failAt) return new Response('busy', { status: 502 });
  if (path !== '/v1/events') {
    const body = { '/v1/status': state.status, '/v1/jobs': state.jobs, '/v1/devices': state.devices }[path];
    return new Response(JSON.stringify(body));
  }
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      streams.push(controller);
      signal.addEventListener('abort', () => controller.error(signal.reason), { once: true });
    },
  });
  return new Response(body);
}

function send(text: string): void {
  streams.at(-1)?.enqueue(new TextEncoder().encode(text));
}
const event = (name: string, data: unknown) => send(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
const kinds = () => links.map(({ kind }) => kind);

beforeEach(() => {
  vi.useFakeTimers();
  [streams, reads, links, world, status, failAt] = [[], [], [], null, 200, 0];
  vi.stubGlobal('fetch', async (path: string, { signal }: { signal: AbortSignal }) => respond(path, signal));
  stop = new AbortController();
  ended = keepCurrent(
    {
      onLink: (link) => links.push(link),
      onWorld: (next) => {
        world = next;
      },
      nextFrame: (draw) => draw(),
      now: Date.now,
      after(ms, call) {
        const timer = setTimeout(call, ms);
        return () => clearTimeout(timer);
      },
    },
    stop.signal,
  );
});
afterEach(async () => {
  stop.abort();
  await ended;
  expect(vi.getTimerCount()).toBe(0);
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test('reads everything once, then follows events', async () => {
  await vi.waitFor(() => expect(kinds()).toEqual(['reading', 'live']));
  event('reset', { reason: 'new' });
  event('job', job('aa00aa00aa02', { state: 'running' }));
  await vi.waitFor(() => expect(world?.jobs.get('aa00aa00aa02')?.state).toBe('running'));
  expect(reads).toEqual(['/v1/events', '/v1/status', '/v1/jobs', '/v1/devices']);
});

test('a reset in the middle reads everything again, and nothing is live meanwhile', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  event('reset', { reason: 'new' });
  event('reset', { reason: 'missed' });
  await vi.waitFor(() => expect(kinds()).toEqual(['reading', 'live', 'reading', 'live']));
  expect(reads.filter((path) => path === '/v1/status')).toHaveLength(2);
});

test('a cut connection is lost at once, tried again, and read anew', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  streams.at(-1)?.close();
  await vi.waitFor(() => expect(links.at(-1)).toMatchObject({ kind: 'lost', why: 'The daemon ended the connection.' }));
  const since = links.at(-1);
  status = 503;
  await vi.advanceTimersByTimeAsync(500);
  await vi.waitFor(() => expect(links.at(-1)).toMatchObject({ kind: 'lost', why: 'no' }));
  expect(links.at(-1)).toMatchObject({ since: since?.kind === 'lost' ? since.since : null });
  status = 200;
  await vi.advanceTimersByTimeAsync(1_000);
  await vi.waitFor(() => expect(kinds().at(-1)).toBe('live'));
});

test('a daemon that gives no sign of life is lost', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  await vi.advanceTimersByTimeAsync(30_000);
  send(': alive\n\n');
  await vi.advanceTimersByTimeAsync(30_000);
  expect(kinds().at(-1)).toBe('live');
  await vi.advanceTimersByTimeAsync(11_000);
  expect(kinds()).toContain('lost');
});

test('a browser that the daemon does not know is not tried again', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  status = 401;
  streams.at(-1)?.close();
  await vi.advanceTimersByTimeAsync(500);
  await vi.waitFor(() => expect(kinds().at(-1)).toBe('login'));
  const asked = reads.length;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(reads).toHaveLength(asked);
});

test('why jobs wait is read again after a change of their pool', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  const [, , build] = state.status.pools;
  const { slots: _, ...view } = build ?? expect.fail();
  event('pool', view);
  event('pool', view);
  state.jobs = state.jobs.map((one) => (one.id === 'aa00aa00aa03' ? { ...one, reason: 'its pool is paused' } : one));
  await vi.advanceTimersByTimeAsync(2_000);
  await vi.waitFor(() => expect(world?.jobs.get('aa00aa00aa03')?.reason).toBe('its pool is paused'));
  expect(reads.filter((path) => path === '/v1/jobs')).toHaveLength(2);
});

test('why jobs wait is read again after a read that failed', async () => {
  await vi.waitFor(() => expect(kinds()).toContain('live'));
  failAt = reads.length + 1;
  state.jobs = state.jobs.map((one) => (one.id === 'aa00aa00aa03' ? { ...one, reason: 'its pool drains' } : one));
  for (let passed = 0; passed < 31_000; passed += 5_000) {
    send(': alive\n\n');
    await vi.advanceTimersByTimeAsync(5_000);
  }
  expect(world?.jobs.get('aa00aa00aa03')?.reason).toBe('its pool drains');
});
