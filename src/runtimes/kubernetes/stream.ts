/**
 * Programs next to a container's first process, and its input, over a WebSocket. Each message begins with the number of a channel:
 * https://github.com/kubernetes/kubernetes/blob/v1.37.0/staging/src/k8s.io/apimachinery/pkg/util/httpstream/wsstream/conn.go
 */
import { PassThrough, Writable } from 'node:stream';
import type { WebSocket } from 'ws';
import { OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import { jsonOf } from '../../system/json.ts';
import type { KubeClient } from './client.ts';
import { container, podName } from './pods.ts';

const channels = { stdin: 0, stdout: 1, stderr: 2, status: 3, close: 255 } as const;
/** Bytes of one message, and of what may wait to be sent. */
const piece = 64 * 1024;
/** Bytes that are kept of what a program says of its own failure. */
const wordsKept = 4096;

/** A program that runs. */
export interface Running {
  readonly stdin: Writable;
  readonly stdout: PassThrough;
  /** The exit code and its last words. Rejects if the connection ended before the program did. */
  readonly ended: Promise<{ readonly code: number; readonly words: string }>;
  /** Ends the connection. The program may continue. */
  stop(): void;
}

interface Alongside {
  readonly agent: AgentId;
  readonly script: string;
  /** In words: `Cannot <doing>`. */
  readonly doing: string;
}

/** Runs a shell script next to the first process of an agent's container, until it ends or `signal` aborts. */
export async function runAlongside(client: KubeClient, { agent, script, doing }: Alongside, signal: AbortSignal): Promise<Running> {
  const query = { container, command: ['sh', '-c', script], stdin: true, stdout: true, stderr: true };
  const socket = await client.socket({ path: client.path('pods', podName(agent), 'exec'), query, doing, signal });
  return programOver(socket, doing, signal);
}

/** Takes what comes over an open socket that is paused, until it ends or `signal` aborts. */
export function programOver(socket: WebSocket, doing: string, signal?: AbortSignal): Running {
  const stdout = new PassThrough();
  const ended = Promise.withResolvers<{ readonly code: number; readonly words: string }>();
  ended.promise.catch(() => {});
  let words = '';
  let status: unknown;
  socket.on('message', (data: Buffer) => {
    const bytes = data.subarray(1);
    if (data[0] === channels.stdout) {
      if (!stdout.write(bytes) && !stdout.destroyed) socket.pause();
    } else if (data[0] === channels.stderr) words = (words + bytes.toString('utf8')).slice(-wordsKept);
    else if (data[0] === channels.status) status = jsonOf(bytes.toString('utf8'));
  });
  const stop = (): void => socket.terminate();
  signal?.addEventListener('abort', stop, { once: true });
  socket.on('close', () => {
    signal?.removeEventListener('abort', stop);
    const code = codeOf(status);
    if (code === null) {
      const error = new OnejobError('E_ENGINE_FAILED', `Cannot ${doing}: ${failure(status)}.`, { retry: true });
      ended.reject(error);
      stdout.destroy(error);
    } else {
      ended.resolve({ code, words: words.trim() });
      stdout.end();
    }
  });
  stdout.on('error', () => {});
  for (const event of ['drain', 'close'] as const) stdout.on(event, () => socket.resume());
  socket.resume();
  return { stdin: inputOf(socket), stdout, ended: ended.promise, stop };
}

/** Writes all of it to the container's input, and waits until it was sent. */
export async function send(socket: WebSocket, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length; at += piece) await sendTo(channels.stdin, socket, bytes.subarray(at, at + piece));
}

function sendTo(channel: number, socket: WebSocket, bytes: Uint8Array): Promise<void> {
  const message = Buffer.concat([Buffer.of(channel), bytes]);
  return new Promise((resolve, reject) => socket.send(message, (error) => (error == null ? resolve() : reject(error))));
}

/** The container's input. Its end closes that, too. */
function inputOf(socket: WebSocket): Writable {
  const stdin = new Writable({
    highWaterMark: piece,
    write(bytes: Buffer, _encoding, done) {
      send(socket, bytes).then(() => done(), done);
    },
    final(done) {
      if (socket.readyState !== socket.OPEN) return done();
      sendTo(channels.close, socket, Buffer.of(channels.stdin)).then(() => done(), done);
    },
  });
  stdin.on('error', () => {});
  return stdin;
}

/** The exit code that a `v1.Status` tells; null: it tells none. */
function codeOf(status: unknown): number | null {
  const { status: word, reason, details } = Object(status);
  if (word === 'Success') return 0;
  if (reason !== 'NonZeroExitCode') return null;
  const causes: readonly { readonly reason?: string; readonly message?: string }[] = Object(details).causes ?? [];
  const code = Number(causes.find((cause) => cause.reason === 'ExitCode')?.message);
  return Number.isInteger(code) ? code : null;
}

function failure(status: unknown): string {
  const { message } = Object(status);
  return typeof message === 'string' && message !== '' ? message.replace(/\.$/, '') : 'the connection ended early';
}
