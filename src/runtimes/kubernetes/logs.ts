/**
 * A sandbox's output, from the log that its node keeps. Each line comes with its time, in order, and a follower that stays loses
 * nothing; what its node has thrown away before it was read is a gap. Standard error is part of it.
 *
 * The end of an answer says nothing of the end of the job: the server may have ended it. What counts is the last line of the supervisor,
 * or that the container has ended.
 */
import type { Readable } from 'node:stream';
import { type ErrorCode, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import { advance, type LogChunk, type LogPosition } from '../../ports/runtime.ts';
import { type LogFrame, Rejoiner, stampReader } from '../rejoin.ts';
import type { KubeCall, KubeClient } from './client.ts';
import { container, podName } from './pods.ts';
import { endIn, endLength } from './script.ts';

/** Bytes of a frame, at most: longer lines are several of the same time. */
const pieceSize = 16 * 1024;
const [firstPause, longestPause] = [50, 5_000];

/** Errors that pass although the same call would fail again at once. */
const passing: readonly ErrorCode[] = ['E_ENGINE_PERMISSION', 'E_RECIPE'];

interface Whose {
  readonly client: KubeClient;
  readonly agent: AgentId;
}

export interface PodLog extends Whose {
  readonly clock: Clock;
  /** Whether its container has ended, or is gone; null: not known now. */
  readonly hasEnded: () => boolean | null;
  /** Its last line was read. */
  readonly ended: (exit: Exit) => void;
}

/** Output after `from`, until the job has ended and all was read. @throws OnejobError for errors that do not pass */
export async function* followLog(source: PodLog, from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
  const { clock, hasEnded } = source;
  let position = from;
  let since = 0n;
  let wait = firstPause;
  let isLast = false;
  while (!signal.aborted) {
    const rejoiner = new Rejoiner(position);
    const reader = new LineReader(source.agent);
    const take = (frames: readonly LogFrame[]): LogChunk[] => {
      const chunks = rejoiner.push(frames);
      position = chunks.reduce(advance, position);
      return chunks;
    };
    try {
      for await (const bytes of (await ask(source, since, signal)) ?? []) {
        const chunks = take(reader.push(bytes));
        if (chunks.length > 0) {
          since = rejoiner.since;
          wait = firstPause;
          yield chunks;
        }
        if (reader.exit !== null) return source.ended(reader.exit);
      }
      if (isLast) {
        // A line that was cut off comes again, unless nothing more comes.
        const last = take(reader.rest());
        if (last.length > 0) yield last;
        return;
      }
      // What came between the end of the answer and that of the container is asked for once more.
      isLast = hasEnded() === true;
      if (isLast) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && !error.retry && !passing.includes(error.code)) throw error;
      isLast = hasEnded() === true;
    }
    await sleep(clock, wait, signal);
    wait = Math.min(longestPause, wait * 2);
  }
}

/** The call for a log. It answers with null where there is none yet, or no longer. */
function callOf({ client, agent }: Whose, query: KubeCall['query']): KubeCall {
  const path = client.path('pods', podName(agent), 'log');
  return { path, query: { container, ...query }, doing: `read the log of agent ${agent}`, nothing: [400, 404] };
}

function ask(whose: Whose, since: bigint, signal: AbortSignal): Promise<Readable | null> {
  // Whole seconds: the server cuts off the rest.
  const sinceTime = since === 0n ? undefined : new Date(Number(since / 1_000_000_000n) * 1000).toISOString();
  return whose.client.flow({ ...callOf(whose, { follow: true, timestamps: true, sinceTime }), signal });
}

/** The last line of the log, if that is the supervisor's; null: the job has not ended, as far as the log says. */
export async function endOf(whose: Whose, signal?: AbortSignal): Promise<Exit | null> {
  const said = await whose.client.ask({ ...callOf(whose, { tailLines: 1 }), signal });
  return typeof said === 'string' ? (endIn(whose.agent, Buffer.from(said))?.exit ?? null) : null;
}

/** Splits an answer into frames: each line begins with its time and a space. Where it was cut into pieces makes no difference. */
export class LineReader {
  readonly #agent: AgentId;
  readonly #timeOf = stampReader();
  #left: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  /** The time of the line of which `#left` is the rest; null: it begins with a time. */
  #time: bigint | null = null;
  /** What the supervisor's last line says; nothing after it counts. */
  exit: Exit | null = null;

  constructor(agent: AgentId) {
    this.#agent = agent;
  }

  push(bytes: Buffer): LogFrame[] {
    let buffer = this.#left.length === 0 ? bytes : Buffer.concat([this.#left, bytes]);
    const frames: LogFrame[] = [];
    while (this.exit === null) {
      if (this.#time === null) {
        const space = buffer.indexOf(0x20);
        if (space === -1) break;
        this.#time = this.#timeOf(buffer.toString('latin1', 0, space));
        buffer = buffer.subarray(space + 1);
      }
      const end = buffer.indexOf(10);
      // The supervisor's last line may be at the end of a line of the job.
      if (end === -1 && buffer.length < pieceSize + endLength) break;
      const isWhole = end !== -1 && end < pieceSize + endLength;
      if (isWhole) frames.push(...this.#line(buffer.subarray(0, end + 1), this.#time));
      else frames.push({ stream: 'stdout', time: this.#time, bytes: buffer.subarray(0, pieceSize) });
      buffer = buffer.subarray(isWhole ? end + 1 : pieceSize);
      if (isWhole) this.#time = null;
    }
    this.#left = buffer;
    return frames;
  }

  /** A last line without an end. */
  rest(): LogFrame[] {
    const [time, bytes] = [this.#time, this.#left];
    this.#left = Buffer.alloc(0);
    return time === null || bytes.length === 0 ? [] : pieces(bytes, time);
  }

  #line(bytes: Buffer, time: bigint): LogFrame[] {
    const end = endIn(this.#agent, bytes);
    if (end === null) return pieces(bytes, time);
    this.exit = end.exit;
    return pieces(bytes.subarray(0, end.before), time);
  }
}

function pieces(bytes: Buffer, time: bigint): LogFrame[] {
  const frames: LogFrame[] = [];
  for (let at = 0; at < bytes.length; at += pieceSize)
    frames.push({ stream: 'stdout', time, bytes: bytes.subarray(at, at + pieceSize) });
  return frames;
}
