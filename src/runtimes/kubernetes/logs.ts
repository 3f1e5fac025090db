/**
 * A sandbox's output, from the log that its node keeps. Each line comes with its time, in order, and a follower that stays loses
 * nothing; what its node has thrown away before it was read is a gap. Standard error is part of it.
 *
 * The end of an answer says nothing of the end of the job: the server may have ended it. What counts is the last line of the supervisor,
 * or that the container has ended.
 */
import { type ErrorCode, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import { advance, type LogChunk, type LogPosition } from '../../ports/runtime.ts';
import { MarkerFilter } from '../gate.ts';
import { type LogFrame, Rejoiner, stampReader } from '../rejoin.ts';
import type { KubeCall, KubeClient } from './client.ts';
import { container, podName } from './pods.ts';
import { endIn, endLength, unfitLines } from './script.ts';
import type { Change } from './watch.ts';

/** Bytes of a frame, at most: longer lines are several of the same time. */
const pieceSize = 16 * 1024;
const [firstPause, longestPause] = [50, 5_000];
/** Bytes of one look at a log: what is said before the gate is less. */
const lookBytes = 1 << 20;
/** ms between two looks at the log of an agent that is about to reach its gate. */
const lookSoon = 500;
/** ms between two looks at one that waits at its gate; first, if another onejob may have opened it just before it died; at most. */
const [firstLook, soonLook, longestLook] = [60_000, 5_000, 600_000];

/** Errors that pass although the same call would fail again at once. */
const passing: readonly ErrorCode[] = ['E_ENGINE_PERMISSION', 'E_RECIPE'];

interface Whose {
  readonly client: KubeClient;
  readonly agent: AgentId;
}

export interface PodLog extends Whose {
  readonly clock: Clock;
  /** Whether its gate was opened, or its end is wanted. Until then nothing is followed. null: another onejob may have done so. */
  readonly isReleased: () => boolean | null;
  /** The next change of that, or of its container. */
  readonly change: () => Change;
  /** Whether its container has ended, or is gone; null: not known now. */
  readonly hasEnded: () => boolean | null;
  /** Its last line was read. */
  readonly ended: (exit: Exit) => void;
}

/** Output after `from`, until the job has ended and all was read. @throws OnejobError for errors that do not pass */
export async function* followLog(source: PodLog, from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
  const { agent, clock, hasEnded, isReleased } = source;
  let position = from;
  let since = 0n;
  let wait = firstPause;
  let looks = 0;
  let isLast = false;
  const gate = new MarkerFilter(agent);
  const waits = (): boolean => from.time === 0n && isReleased() !== true && gate.state !== 'released';
  while (!signal.aborted) {
    const isFollowed = isLast || !waits();
    const rejoiner = new Rejoiner(position);
    const reader = new LineReader(agent);
    const take = (frames: readonly LogFrame[]): LogChunk[] => {
      const chunks = rejoiner.push(frames);
      position = chunks.reduce(advance, position);
      if (!isFollowed) for (const { bytes } of chunks) gate.push(bytes);
      return chunks;
    };
    try {
      for await (const bytes of await ask(source, { since, follow: isFollowed }, signal)) {
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
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && !error.retry && !passing.includes(error.code)) throw error;
      isLast = hasEnded() === true;
      await sleep(clock, wait, signal);
      wait = Math.min(longestPause, wait * 2);
      continue;
    }
    // What came between the end of the answer and that of the container is asked for once more.
    isLast = hasEnded() === true;
    if (isLast || (!isFollowed && !waits())) continue;
    if (!isFollowed && gate.state === 'ready') {
      looks += 1;
      await rest(source, doubling(isReleased() === null ? soonLook : firstLook, longestLook, looks), signal);
    } else {
      await sleep(clock, wait, signal);
      wait = Math.min(isFollowed ? longestPause : lookSoon, wait * 2);
    }
  }
}

/** Waits for what may make it say more: its release, or its end. Other news of its pod are many. `atMost`: in ms. */
async function rest({ clock, isReleased, hasEnded, change }: PodLog, atMost: number, signal: AbortSignal): Promise<void> {
  using limit = deadline(clock, atMost, signal);
  while (!limit.signal.aborted) {
    using changed = change();
    if (isReleased() === true || hasEnded() === true) return;
    await changed.next(limit.signal);
  }
}

/** The call that reads a log. Its answer is null while there is no log yet, and once the log is gone. */
function callOf({ client, agent }: Whose, query: KubeCall['query']): KubeCall {
  const path = client.path('pods', podName(agent), 'log');
  return { path, query: { container, ...query }, doing: `read the log of agent ${agent}`, nothing: [400, 404] };
}

interface Part {
  /** ns since the epoch. */
  readonly since: bigint;
  readonly follow: boolean;
}

/** What continues, or what is there now. Nothing: there is no log yet, or no longer. */
async function ask(whose: Whose, { since, follow }: Part, signal: AbortSignal): Promise<AsyncIterable<Buffer> | Buffer[]> {
  // Whole seconds: the server cuts off the rest.
  const sinceTime = since === 0n ? undefined : new Date(Number(since / 1_000_000_000n) * 1000).toISOString();
  const query = { timestamps: true, sinceTime };
  if (follow) return (await whose.client.flow({ ...callOf(whose, { ...query, follow }), signal })) ?? [];
  const now = await whose.client.bytes({ ...callOf(whose, { ...query, limitBytes: lookBytes }), signal });
  return now === null ? [] : [now];
}

/** What is said before the gate; empty: nothing yet. */
export async function firstWords(whose: Whose, signal: AbortSignal): Promise<string> {
  return (await whose.client.bytes({ ...callOf(whose, { limitBytes: 1_024 }), signal }))?.toString() ?? '';
}

/** What a container says last that did not begin; null: its node does not tell. */
export async function lastWords(whose: Whose, signal: AbortSignal): Promise<string | null> {
  return (await whose.client.bytes({ ...callOf(whose, { tailLines: unfitLines }), signal }))?.toString() ?? null;
}

/** The last line of the log, if that is the supervisor's; null: the job has not ended, as far as the log says. */
export async function endOf(whose: Whose, signal?: AbortSignal): Promise<Exit | null> {
  const said = await whose.client.bytes({ ...callOf(whose, { tailLines: 1 }), signal });
  return said === null ? null : (endIn(whose.agent, said)?.exit ?? null);
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
