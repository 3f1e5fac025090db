/**
 * Keeps one sandbox's output: follows it from where its log file ends, takes the gate's markers out, and says when they
 * were seen. The file alone tells where to go on, so a new manager goes on without a hole or a repeat.
 */
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import { type GateState, MarkerFilter, readyMarker, releasedMarker } from '../runtimes/gate.ts';
import type { LogChunk, LogPosition, Runtime } from '../runtimes/runtime.ts';
import type { LogFile } from './log-file.ts';

/** What a sandbox may write to stderr before its release and have kept, in bytes. */
const earlyLimit = 1 << 20;
const nothing = new Uint8Array(0);
const order: Readonly<Record<GateState, number>> = { silent: 0, ready: 1, released: 2 };

export interface LogFollowerEvents {
  /** The gate's state moved on to `ready` or `released`. */
  readonly state: (agent: AgentId, state: GateState) => void;
  /** Output cannot be followed or kept at the moment; it is tried again. */
  readonly failed: (agent: AgentId, error: unknown) => void;
  /** Waits a moment before what failed is tried again. */
  readonly pause: (signal: AbortSignal) => Promise<void>;
}

interface Taken {
  readonly chunk: LogChunk;
  readonly kept: Uint8Array;
  /** That output is missing before it was said; the chunk itself may still be refused, and is tried again. */
  isGapNoted?: boolean;
}

export class LogFollower {
  readonly agent: AgentId;
  readonly file: LogFile;
  /** Resolves with true when the sandbox has ended and all its output is kept, with false when it was stopped before. */
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
    // Output that was kept is a job's, so its gate had released it.
    if (file.hasOutput) this.#state = 'released';
    this.ended = this.#follow(runtime);
  }

  get state(): GateState {
    return this.#state;
  }

  /** Stops following; what was kept stays. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.ended;
  }

  /** Never gives up by itself: what cannot be read now is not at its end. */
  async #follow(runtime: Runtime): Promise<boolean> {
    const { signal } = this.#abort;
    // Whoever made this follower hears of what was in the file before it hears of what comes.
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

  /** Sorts one chunk into what is to be kept, and tells when it carried a marker. */
  #take(chunk: LogChunk): void {
    if (this.#state === 'released') this.#pending.push({ chunk, kept: chunk.bytes });
    // The streams are read apart: a job's first words on stderr may come before the marker on stdout.
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

  /** Does what a full disk may refuse, until it does not. */
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

  /** A full disk holds the log up, not the job: the runtime keeps its output until there is room again. */
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
        // Before the release there is next to nothing to keep, and what comes next may be the marker.
        if (this.#state !== 'released') return;
        await this.#events.pause(this.#abort.signal);
        this.#abort.signal.throwIfAborted();
      }
    }
  }
}

/** The line that stands where the runtime had thrown output away before it was read. */
function rotatedAway(agent: AgentId, { stdout, stderr }: LogPosition): string {
  const markers = readyMarker(agent).length + releasedMarker(agent).length + 2;
  const count = (bytes: number): string => Math.max(0, bytes).toLocaleString('en-US');
  return `output may be missing here, after ${count(stdout - markers)} bytes of stdout and ${count(stderr)} of stderr: it was rotated away before it was read`;
}
