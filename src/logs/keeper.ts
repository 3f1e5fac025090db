/**
 * Keeps one sandbox's output: follows it from where its log file ends, takes the gate's markers out, and says when they
 * were seen. The file alone tells where to go on, so a new manager goes on without a hole or a repeat.
 */
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import { type GateState, MarkerFilter } from '../runtimes/gate.ts';
import type { LogChunk, LogPosition, Runtime } from '../runtimes/runtime.ts';
import type { LogFile } from './log-file.ts';

const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };

export interface KeeperEvents {
  /** The gate's state moved on to `ready` or `released`. */
  readonly state: (agent: AgentId, state: GateState) => void;
  /** Output could not be followed or kept any more; the log is incomplete. */
  readonly failed: (agent: AgentId, error: unknown) => void;
  /** Waits a moment before what failed is tried again. */
  readonly pause: (signal: AbortSignal) => Promise<void>;
}

interface Taken {
  readonly chunk: LogChunk;
  readonly kept: Uint8Array;
}

export class Keeper {
  readonly agent: AgentId;
  readonly file: LogFile;
  /** Resolves when the sandbox has ended and all its output is kept, or when following was given up. */
  readonly ended: Promise<void>;
  readonly #filter: MarkerFilter;
  readonly #events: KeeperEvents;
  readonly #abort = new AbortController();
  readonly #early: Taken[] = [];
  readonly #pending: Taken[] = [];
  #state: GateState = 'silent';

  constructor(agent: AgentId, file: LogFile, runtime: Runtime, events: KeeperEvents) {
    this.agent = agent;
    this.file = file;
    this.#filter = new MarkerFilter(agent);
    this.#events = events;
    // Output that was kept is a job's, so its gate had released it. Without any, reading again from the start costs nothing.
    const resumed = file.hasOutput;
    if (resumed) this.#state = 'released';
    else file.reset();
    this.ended = this.#follow(runtime, resumed ? file.position : start);
  }

  get state(): GateState {
    return this.#state;
  }

  /** Stops following; what was kept stays. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.ended;
  }

  async #follow(runtime: Runtime, from: LogPosition): Promise<void> {
    // Whoever made this keeper hears of what was in the file before it hears of what comes.
    await Promise.resolve();
    if (this.#state === 'released') this.#events.state(this.agent, 'released');
    try {
      for await (const chunks of runtime.logs(this.agent, from, this.#abort.signal)) {
        for (const chunk of chunks) this.#take(chunk);
        await this.#write();
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) this.#events.failed(this.agent, error);
    } finally {
      this.file.close();
    }
  }

  /** Sorts one chunk into what is to be kept, and tells when it carried a marker. */
  #take(chunk: LogChunk): void {
    if (this.#state === 'released') this.#pending.push({ chunk, kept: chunk.bytes });
    // The streams are read apart: a job's first words on stderr may come before the marker on stdout.
    else if (chunk.stream === 'stderr') this.#early.push({ chunk, kept: chunk.bytes });
    else {
      this.#pending.push({ chunk, kept: this.#filter.push(chunk.bytes) });
      const before = this.#state;
      this.#state = this.#filter.state;
      if (before === 'silent' && this.#state !== 'silent') this.#events.state(this.agent, 'ready');
      if (this.#state !== 'released') return;
      this.#pending.push(...this.#early.splice(0));
      this.#events.state(this.agent, 'released');
    }
  }

  /** A full disk holds the log up, not the job: the runtime keeps its output until there is room again. */
  async #write(): Promise<void> {
    for (let next = this.#pending[0]; next !== undefined; next = this.#pending[0]) {
      try {
        if (next.chunk.gap === true) this.file.note('some output was rotated away before it could be read');
        this.file.append(next.chunk, next.kept);
        this.#pending.shift();
      } catch (error) {
        if (!(error instanceof OnejobError && error.retry)) throw error;
        await this.#events.pause(this.#abort.signal);
        this.#abort.signal.throwIfAborted();
      }
    }
  }
}
