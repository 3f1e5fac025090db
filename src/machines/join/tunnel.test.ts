/** The machine's end of its tunnel, in virtual time: the connections are in memory, its daemon is a real socket. */
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type Duplex, duplexPair } from 'node:stream';
import { afterEach, expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { openTunnel } from '../../api/tunnel.ts';
import { createTunnel } from './tunnel.ts';

const [second, minute] = [1_000, 60_000];
const endings: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

const turn = async () => {
  for (let at = 0; at < 20; at++) await new Promise((resolve) => setImmediate(resolve));
};

/** `answer`: what the controller makes of a call; null: it does not answer. */
async function bench(answer: () => Duplex) {
  const dir = scratch();
  endings.push(() => dir[Symbol.dispose]());
  const socket = join(dir.path, 'd.sock');
  const daemon = createServer((one) => one.on('error', () => {}).pipe(one)).listen(socket);
  await once(daemon, 'listening');
  endings.push(() => new Promise((resolve) => daemon.close(resolve)));
  const clock = handClock();
  const stop = new AbortController();
  const dials: { at: number; url: string; protocol: string; authorization: string | undefined }[] = [];
  const warnings: string[] = [];
  const tunnel = createTunnel({
    machine: { url: 'https://ci.example.org:7718/', run: 'onejob-0123456789abcdef' },
    credential: 'c',
    socket,
    clock,
    log: { warn: (text) => void warnings.push(text) },
    async upgrade(url, protocol, { authorization }, signal) {
      signal.throwIfAborted();
      dials.push({ at: clock.now() / second, url: url.href, protocol, authorization });
      return answer();
    },
  });
  const ended = tunnel.run(stop.signal);
  endings.push(() => {
    stop.abort();
    return ended;
  });
  await turn();
  return {
    tunnel,
    dials,
    warnings,
    clock,
    stop,
    ended,
    times: () => dials.map(({ at }) => at),
    async pass(ms: number) {
      await turn();
      for (let left = ms; left > 0; ) {
        const step = Math.min(left, Math.max(1, clock.next() ?? left));
        clock.advance(step);
        left -= step;
        await turn();
      }
    },
  };
}

/** Connections that a controller accepts. */
function controller() {
  const ends: Duplex[] = [];
  /** The machine's ends. */
  const fars: Duplex[] = [];
  const accept = (): Duplex => {
    const [near, far] = duplexPair();
    ends.push(near);
    fars.push(far);
    return far;
  };
  const last = (): Duplex => {
    const end = ends.at(-1);
    if (end === undefined) throw new Error('nothing was accepted');
    return end;
  };
  return { fars, accept, last };
}

it('dials the controller as this machine, and again with growing waits, and tells that once', async () => {
  const { dials, times, pass, warnings } = await bench(() => {
    throw new Error('refused');
  });
  expect(dials).toEqual([
    {
      at: 0,
      protocol: 'onejob-tunnel',
      authorization: 'Bearer c',
      url: 'https://ci.example.org:7718/cloud/tunnel?run=onejob-0123456789abcdef',
    },
  ]);
  await pass(2 * minute);
  expect(times()).toEqual([0, 1, 3, 7, 15, 31, 61, 91]);
  expect(warnings).toEqual(['cannot open the tunnel to the controller; trying again']);
});

it('dials a controller that accepts and closes at once, or soon, ever more slowly', async () => {
  for (const after of [0, 1_500]) {
    const { accept, last } = controller();
    const { times, pass, clock } = await bench(() => {
      const end = accept();
      if (after === 0) last().destroy();
      else clock.after(after, () => last().destroy());
      return end;
    });
    await pass(5 * minute);
    expect(times().length).toBeGreaterThan(5);
    expect(times().length, `after ${after} ms`).toBeLessThan(18);
  }
});

it('dials again at once when a connection ends that was good', async () => {
  const { accept, last } = controller();
  const { times, pass } = await bench(accept);
  await pass(50 * second);
  openTunnel(last())
    .dial()
    .on('error', () => {});
  await pass(50 * second);
  last().destroy();
  await turn();
  expect(times()).toEqual([0, 100]);
});

it('ends a connection that says nothing, and dials again', async () => {
  const { accept, fars } = controller();
  const { times, pass } = await bench(accept);
  await pass(74 * second);
  expect(times()).toEqual([0]);
  await pass(2 * second);
  expect(times()).toEqual([0, 75]);
  expect(fars.map(({ destroyed }) => destroyed)).toEqual([true, false]);
});

it('ends a connection that speaks something else', async () => {
  const { accept, last } = controller();
  const { times, pass } = await bench(accept);
  last().write(Buffer.alloc(9, 0xff));
  await pass(2 * second);
  expect(times()).toEqual([0, 1]);
});

it('is busy for a moment after its first dial, since the controller may have asked an earlier process', async () => {
  const { tunnel, pass } = await bench(controller().accept);
  expect(tunnel.isBusy()).toBe(true);
  await pass(6 * second);
  expect(tunnel.isBusy()).toBe(false);
  const refused = await bench(() => {
    throw new Error('nothing listens');
  });
  expect(refused.tunnel.isBusy()).toBe(false);
});

it('is busy while the controller asks something, and a moment longer', async () => {
  const { accept, last } = controller();
  const { tunnel, pass } = await bench(accept);
  await pass(6 * second);
  expect(tunnel.isBusy()).toBe(false);
  const asked = openTunnel(last()).dial();
  asked.on('error', () => {}).write('hello');
  await once(asked, 'data');
  expect(tunnel.isBusy()).toBe(true);
  await pass(20 * second);
  expect(tunnel.isBusy()).toBe(true);
  asked.destroy();
  await turn();
  expect(tunnel.isBusy()).toBe(true);
  await pass(6 * second);
  expect(tunnel.isBusy()).toBe(false);
});

it.each(['breaks', 'is closed in order'] as const)(
  'stays busy when the connection %s meanwhile, until the controller comes back',
  async (how) => {
    const { accept, last } = controller();
    let isThere = true;
    const { tunnel, pass } = await bench(() => {
      if (!isThere) throw new Error('nothing listens');
      return accept();
    });
    const near = openTunnel(last());
    const asked = near.dial();
    asked.on('error', () => {}).write('hello');
    await once(asked, 'data');
    await pass(20 * second);
    isThere = false;
    if (how === 'is closed in order') asked.destroy();
    near.close();
    if (how === 'breaks') last().destroy();
    else last().end();
    await pass(2 * minute);
    expect(tunnel.isBusy()).toBe(true);
    isThere = true;
    await pass(minute);
    expect(tunnel.isBusy()).toBe(false);
  },
);

it('ends with its connection, and leaves no timer', async () => {
  const { accept, fars } = controller();
  const { stop, ended, clock } = await bench(accept);
  stop.abort();
  await ended;
  expect([fars.map(({ destroyed }) => destroyed), clock.next()]).toEqual([[true], null]);
});
