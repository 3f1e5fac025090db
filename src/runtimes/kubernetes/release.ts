/** Hands a frame to the gate of an agent, through the input of its container. */
import type { WebSocket } from 'ws';
import { deadline, sleep } from '../../core/clock.ts';
import { refusalOf } from './client.ts';
import { endOf } from './logs.ts';
import { container, gateEnded, isOver, podName } from './pods.ts';
import { programOver, send } from './stream.ts';
import type { PodWatch, WatchParts } from './watch.ts';

/** ms in which a gate takes a frame; after that it is sent again. */
const takenWithin = 2_000;
/** ms between two tries to hand over a frame. */
const betweenFrames = 200;
/** ms that a release may take in all. */
const releaseLimit = 15_000;
/** ms that a look at a log may take. */
const lookLimit = 5_000;

interface Frame {
  readonly agent: string;
  readonly bytes: Uint8Array;
}

type Parts = Pick<WatchParts, 'client' | 'clock'> & { readonly watch: PodWatch };

/** @throws OnejobError E_GATE_ENDED if nobody is at the gate any more, E_ENGINE_* */
export async function releaseGate(parts: Parts, frame: Frame, signal: AbortSignal): Promise<void> {
  const { client, clock } = parts;
  const { agent } = frame;
  using limit = deadline(clock, releaseLimit, signal);
  try {
    // What was cut off may not have arrived, and a gate takes the same frame once.
    while (!(await handOver(parts, frame, limit.signal))) await sleep(clock, betweenFrames, limit.signal);
  } catch (error) {
    signal.throwIfAborted();
    if (limit.passed) throw client.silent(`release agent ${agent}`, releaseLimit);
    if (refusalOf(error)?.status === 404 || (await hasLeft(parts, agent, signal))) throw gateEnded(agent, 'its gate has ended');
    throw error;
  }
}

/** Returns whether the other end was there after all was sent. @throws as `KubeClient.socket` */
async function handOver(parts: Parts, { agent, bytes }: Frame, signal: AbortSignal): Promise<boolean> {
  const { client } = parts;
  const doing = `release agent ${agent}`;
  const query = { container, stdin: true, stdout: false, stderr: false };
  const socket = await client.socket({ path: client.path('pods', podName(agent), 'attach'), query, doing, signal });
  const { stop } = programOver(socket, doing, signal);
  try {
    return await send(socket, bytes).then(
      () => isTaken(parts, socket, signal),
      () => false,
    );
  } finally {
    stop();
  }
}

/** Asks the other end whether it is there after what was sent: the answer comes after it was passed on. */
async function isTaken({ clock }: Parts, socket: WebSocket, signal: AbortSignal): Promise<boolean> {
  using limit = deadline(clock, takenWithin, signal);
  return await new Promise((resolve) => {
    socket.once('pong', () => resolve(true));
    socket.once('close', () => resolve(false));
    limit.signal.addEventListener('abort', () => resolve(false), { once: true });
    if (socket.readyState === socket.OPEN) socket.ping();
    else resolve(false);
  });
}

/** Whether nobody is at its gate any more, as far as can be seen now. */
async function hasLeft({ client, clock, watch }: Parts, agent: string, signal: AbortSignal): Promise<boolean> {
  using limit = deadline(clock, lookLimit, signal);
  try {
    const now = await watch.find(agent, limit.signal);
    return now === null || isOver(now) || (await endOf({ client, agent }, limit.signal)) !== null;
  } catch {
    signal.throwIfAborted();
    return false;
  }
}
