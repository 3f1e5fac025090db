/** Connections to a daemon on another host, through one pipe that begins with a line in which the other side says that it is there. */
import { connect } from 'node:net';
import { type Duplex, pipeline, type Readable } from 'node:stream';
import { z } from 'zod';
import { OnejobError } from '../base/errors.ts';
import { errorView } from '../contract/schema.ts';
import { createMux } from '../http/mux.ts';
import type { Pace } from '../http/pace.ts';
import { jsonOf } from '../system/json.ts';
import { checkSocketOwner } from './sockets.ts';

/** Begins the line of the greeting. What a login shell prints before it is skipped. */
const mark = 'onejob-relay ';
/** Bytes that may come before it. */
const mostNoise = 64 * 1024;

const greeting = z.union([
  z.object({ protocol: z.number(), version: z.string() }),
  z.object({ version: z.string(), error: errorView }),
]);

type Greeting = z.infer<typeof greeting>;

const protocol = 1;

/** The greeting of a relay that has found a daemon, or says why not. */
export function greetingLine(version: string, error: z.input<typeof errorView> | null): string {
  return `\n${mark}${JSON.stringify(error === null ? { protocol, version } : { version, error })}\n`;
}

/**
 * Reads up to the greeting and leaves the rest in the stream; null if the stream ends or has no greeting.
 * @throws OnejobError E_API_VERSION
 */
export async function readGreeting(from: Readable, signal: AbortSignal): Promise<Greeting | null> {
  let seen = Buffer.alloc(0);
  for (;;) {
    signal.throwIfAborted();
    const piece: Buffer | null = from.read();
    if (piece === null) {
      if (from.readableEnded || from.destroyed) return null;
      await readable(from, signal);
      continue;
    }
    seen = Buffer.concat([seen, piece]);
    for (let at = seen.indexOf(`\n${mark}`); at >= 0; at = seen.indexOf(`\n${mark}`, at + 1)) {
      const end = seen.indexOf('\n', at + 1);
      if (end < 0) break;
      const said = greeting.safeParse(jsonOf(seen.subarray(at + 1 + mark.length, end).toString()));
      if (!said.success) continue;
      from.unshift(seen.subarray(end + 1));
      if ('error' in said.data || said.data.protocol === protocol) return said.data;
      const message = 'The onejob of that host speaks another protocol than this one.';
      throw new OnejobError('E_API_VERSION', message, { hint: 'Install the same version on both.' });
    }
    if (seen.length > mostNoise) return null;
  }
}

function readable(from: Readable, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const events = ['readable', 'end', 'close', 'error'] as const;
    const done = (): void => {
      for (const event of events) from.off(event, done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    for (const event of events) from.on(event, done);
    signal.addEventListener('abort', done, { once: true });
  });
}

/** The near end. `pace`: for a far end that may take only so much of this process' time. */
export function openTunnel(pipe: Duplex, pace: Pace | null = null) {
  const mux = createMux(pipe, null, pace);
  return {
    get isOver(): boolean {
      return mux.isOver;
    },
    /** A connection to the daemon there. One that fails ends with an error. */
    dial: (): Duplex => mux.open(),
    close: mux.close,
  };
}

/** The far end: passes connections on to the socket that `find` names, if it is this user's or root's. `ended`: the near end has gone. */
export function serveTunnel(pipe: Duplex, find: () => Promise<string>) {
  return createMux(pipe, (stream) => void forward(stream, find));
}

async function forward(stream: Duplex, find: () => Promise<string>): Promise<void> {
  try {
    const path = await find();
    // The near end cannot see whose socket it is, and sends what only the daemon may get.
    checkSocketOwner(path);
    const socket = connect(path);
    // Either end that fails takes the other one with it.
    pipeline(stream, socket, stream, () => {});
  } catch {
    stream.destroy();
  }
}
