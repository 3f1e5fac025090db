/**
 * Keeps one sandbox's output: follows it from the end of its log file, removes the gate's markers, and reports them. The file
 * alone says where to continue, so a new manager continues without a gap or a repeat.
 */
import { Waiters } from '../abortable.ts';
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import { type GateState, MarkerFilter, readyMarker, releasedMarker } from '../runtimes/gate.ts';
import type { LogChunk, LogPosition, Runtime } from '../runtimes/runtime.ts';
import type { LogFile } from './log-file.ts';

/** Bytes of stderr before the release that are kept. */
const earlyLimit = 1 << 20;
const nothing = new Uint8Array(0);
const order: Readonly<Record<GateState, number>> = { silent: 0, ready: 1, released: 2 };

export interface LogFollowerEvents {
  /** The gate reached `ready` or `released`. */
  readonly state: (agent: AgentId, state: GateState) => void;
  /** Output cannot be followed or kept at the moment; it is tried again. */
  readonly failed: (agent: AgentId, error: unknown) => void;
  readonly pause: (signal: AbortSignal) => Promise<void>;
}

interface Taken {
  readonly chunk: LogChunk;
  readonly kept: Uint8Array;
  /** The note about missing output was written. The chunk itself may still be refused and tried again. */
  isGapNoted?: boolean;
}

export class LogFollower {
  readonly agent: AgentId;
  readonly file: LogFile;
  /** Those who wait for its state. */
  readonly waiters = new Waiters();
  /** Resolves to true when the sandbox has ended and all its output is kept, to false if it was stopped before. */
  readonly ended: Promise<boolean>;
  #filter: MarkerFilter;
  readonly #events: LogFollowerEvents;
  readonly #abort = new AbortController();
  readonly #early: Taken[] = [];
  readonly #pending: Taken[] = [];
  #earlyBytes = 0;
  #state: GateState = 'silent';

  constructor(agent: AgentId, file: LogFile, runtime: Runtime, events: LogFollowerEvents) {
    this.agent = agent;
    this.file = file;
    this.#filter = new MarkerFilter(agent);
    this.#events = events;
    // Kept output is a job's, so its gate had released it.
    if (file.hasOutput) this.#state = 'released';
    this.ended = this.#follow(runtime);
  }

  get state(): GateState {
    return this.#state;
  }

  /** Stops following. Kept output stays. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.ended;
  }

  /** Never gives up: a failed read is not the end. */
  async #follow(runtime: Runtime): Promise<boolean> {
    const { signal } = this.#abort;
    // The creator hears about the file's state first, then about new output.
    await Promise.resolve();
    if (this.#state === 'released') this.#events.state(this.agent, 'released');
    try {
      while (!signal.aborted) {
        try {
          await this.#read(runtime);
          return !signal.aborted;
        } catch (error) {
          if (signal.aborted) return false;
          this.#events.failed(this.agent, error);
          await this.#events.pause(signal);
        }
      }
      return false;
    } finally {
      this.file.close();
    }
  }

  async #read(runtime: Runtime): Promise<void> {
    this.#early.length = 0;
    this.#pending.length = 0;
    if (this.#state !== 'released') {
      // Without any output, reading again from the start costs nothing.
      this.file.reset();
      this.#filter = new MarkerFilter(this.agent);
    }
    for await (const chunks of runtime.logs(this.agent, this.file.position, this.#abort.signal)) {
      for (const chunk of chunks) this.#take(chunk);
      await this.#write();
    }
    await this.#write();
    await this.#persist(() => this.file.finish());
  }

  /** Queues the part of a chunk that is kept, and reports markers in it. */
  #take(chunk: LogChunk): void {
    if (this.#state === 'released') this.#pending.push({ chunk, kept: chunk.bytes });
    // The streams are read separately: a job's first words on stderr may come before the marker on stdout.
    else if (chunk.stream === 'stderr') {
      this.#earlyBytes += chunk.bytes.length;
      if (this.#earlyBytes <= earlyLimit) this.#early.push({ chunk, kept: chunk.bytes });
      else this.#pending.push({ chunk, kept: nothing });
    } else {
      this.#pending.push({ chunk, kept: this.#filter.push(chunk.bytes) });
      this.#advance(this.#filter.state);
    }
  }

  #advance(state: GateState): void {
    const before = this.#state;
    if (order[state] <= order[before]) return;
    this.#state = state;
    if (before === 'silent') this.#events.state(this.agent, 'ready');
    if (state !== 'released') return;
    this.#pending.push(...this.#early.splice(0));
    this.#events.state(this.agent, 'released');
  }

  /** Repeats `work` while a full disk refuses it. */
  async #persist(work: () => void): Promise<void> {
    for (;;) {
      try {
        return work();
      } catch (error) {
        if (!(error instanceof OnejobError && error.retry)) throw error;
        await this.#events.pause(this.#abort.signal);
        this.#abort.signal.throwIfAborted();
      }
    }
  }

  /** A full disk delays the log, not the job: the runtime keeps its output until there is room. */
  async #write(): Promise<void> {
    for (let next = this.#pending[0]; next !== undefined; next = this.#pending[0]) {
      try {
        if (next.chunk.gap === true && next.isGapNoted !== true) {
          this.file.note(rotatedAway(this.agent, this.file.position));
          next.isGapNoted = true;
        }
        this.file.append(next.chunk, next.kept);
        this.#pending.shift();
      } catch (error) {
        if (!(error instanceof OnejobError && error.retry)) throw error;
        // Before the release little is kept, and the next chunk may contain the marker.
        if (this.#state !== 'released') return;
        await this.#events.pause(this.#abort.signal);
        this.#abort.signal.throwIfAborted();
      }
    }
  }
}

/** The line where the runtime had deleted output before it was read. */
function rotatedAway(agent: AgentId, { stdout, stderr }: LogPosition): string {
  const markers = readyMarker(agent).length + releasedMarker(agent).length + 2;
  const count = (bytes: number): string => Math.max(0, bytes).toLocaleString('en-US');
  return `output may be missing here, after ${count(stdout - markers)} bytes of stdout and ${count(stderr)} of stderr: it was rotated away before it was read`;
}
