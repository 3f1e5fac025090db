/** All followers of one manager: at most one per agent, created with its sandbox and dropped with it. */
import { Waiters } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { LogPiece } from '../contract/manager.ts';
import { type Clock, deadline, sleep } from '../core/clock.ts';
import type { AgentId } from '../core/slot.ts';
import type { LogChunk, Runtime } from '../ports/runtime.ts';
import { type GateState, MarkerFilter, readyMarker } from '../runtimes/gate.ts';
import type { LogFile, LogFolder, ReadOptions } from './log-file.ts';
import { linesIn } from './select.ts';

/** ms until a failed write of a log is tried again. */
const writeRetry = 1_000;

interface LogFollowersOptions {
  readonly logs: Pick<LogFolder, 'open' | 'delete' | 'read'>;
  readonly clock: Clock;
  /** The gate reached `ready` or `released`. */
  readonly state: (agent: AgentId, state: GateState) => void;
  /** Output cannot be followed or kept at the moment; it is tried again. */
  readonly failed: (agent: AgentId, error: unknown) => void;
  /** Receives each line that a released agent writes to standard error; null: nobody. */
  readonly listener?: (agent: AgentId) => ((line: string) => void) | null;
}

export class LogFollowers {
  readonly #options: LogFollowersOptions;
  readonly #followers = new Map<AgentId, LogFollower>();
  /** Logs whose output comes from other hosts. */
  readonly #fed = new Map<AgentId, LogFile>();
  /** By agent: resolves once all kept lines were passed to the listener. */
  readonly #told = new Map<AgentId, Promise<void>>();

  constructor(options: LogFollowersOptions) {
    this.#options = options;
  }

  /** What is kept of an agent's output. With `follow`, also what comes while its sandbox is followed. */
  read(agent: AgentId, options: ReadOptions = {}): AsyncIterable<LogPiece> {
    const file = this.#followers.get(agent)?.file ?? this.#fed.get(agent);
    return file?.read(options) ?? this.#options.logs.read(agent);
  }

  /**
   * The log of an agent on another host, for the caller to append to. Readers follow it until `unfeed`.
   * @throws OnejobError E_STATE_FULL, E_STATE_DIR
   */
  feed(agent: AgentId): LogFile {
    const file = this.#fed.get(agent) ?? this.#options.logs.open(agent);
    this.#fed.set(agent, file);
    return file;
  }

  /** Nothing more comes. Idempotent. */
  unfeed(agent: AgentId): void {
    this.#fed.get(agent)?.close();
    this.#fed.delete(agent);
  }

  /** Follows the output of a sandbox. A second call for an agent returns the same follower. */
  follow(agent: AgentId, runtime: Runtime): LogFollower {
    const known = this.#followers.get(agent);
    if (known !== undefined) return known;
    const follower = new LogFollower(agent, this.#options.logs.open(agent), runtime, {
      state: (_, state) => {
        this.#options.state(agent, state);
        if (state === 'released') this.#tell(follower, runtime);
        follower.waiters.wake();
      },
      failed: this.#options.failed,
      pause: (signal) => sleep(this.#options.clock, writeRetry, signal),
    });
    this.#followers.set(agent, follower);
    void follower.ended.then(() => follower.waiters.wake());
    return follower;
  }

  /**
   * Waits until the gate has reached `state`, or its output has ended before. True if it has reached it.
   * @throws OnejobError E_GATE_SILENT after `ms`
   */
  async until(agent: AgentId, state: 'ready' | 'released', ms: number, signal: AbortSignal): Promise<boolean> {
    const follower = this.#followers.get(agent);
    if (follower === undefined) return false;
    using timeout = deadline(this.#options.clock, ms, signal);
    const reached = (): boolean => follower.state === 'released' || follower.state === state;
    const isOver = (): boolean => reached() || follower.file.closed;
    while (!isOver() && !timeout.signal.aborted) await follower.waiters.next(timeout.signal);
    signal.throwIfAborted();
    if (isOver()) return reached();
    const message = `The gate of agent ${agent} did not report "${state}" within ${ms / 1000} s.`;
    throw new OnejobError('E_GATE_SILENT', message, { retry: true });
  }

  /** Whether its script was seen to begin. */
  hasBegun(agent: AgentId): boolean {
    return this.#followers.get(agent)?.state === 'released';
  }

  /** Waits until all output is kept and passed to the listener, as long as more arrives within `ms`. True if it is complete. */
  async complete(agent: AgentId, ms: number): Promise<boolean> {
    const follower = this.#followers.get(agent);
    if (follower === undefined) return true;
    const whole = follower.ended.then((isWhole) => this.#told.get(agent)?.then(() => isWhole) ?? isWhole);
    for (;;) {
      const { position } = follower.file;
      const late = Promise.withResolvers<null>();
      const cancel = this.#options.clock.after(ms, () => late.resolve(null));
      const isWhole = await Promise.race([whole, late.promise]).finally(cancel);
      // A long log takes time: giving up midway would lose its end.
      if (isWhole !== null || follower.file.position === position) return isWhole ?? false;
    }
  }

  /** Notes in an agent's log that its end could not be read. */
  lostEnd(agent: AgentId): void {
    const follower = this.#followers.get(agent);
    if (follower?.file.hasOutput !== true || follower.file.closed) return;
    try {
      follower.file.note('the end of the output is missing here: reading it failed');
    } catch (error) {
      this.#options.failed(agent, error);
    }
  }

  /** Stops following an agent that is gone. A log without output, for example of a standby, is deleted. */
  async drop(agent: AgentId): Promise<void> {
    const follower = this.#followers.get(agent);
    this.#followers.delete(agent);
    this.#told.delete(agent);
    await follower?.stop();
    if (follower?.file.hasOutput === false) this.#options.logs.delete(agent);
  }

  async close(): Promise<void> {
    for (const agent of this.#fed.keys()) this.unfeed(agent);
    const followers = [...this.#followers.values()];
    this.#followers.clear();
    await Promise.all(followers.map((follower) => follower.stop()));
  }

  #tell({ agent, file }: LogFollower, { capabilities }: Runtime): void {
    const hear = this.#options.listener?.(agent) ?? null;
    if (hear === null || this.#told.has(agent)) return;
    const its = capabilities.oneStream === true ? 'stdout' : 'stderr';
    const told = tellLines(file, its, hear).catch((error: unknown) => this.#options.failed(agent, error));
    this.#told.set(agent, told);
  }
}

/** Maximum characters of one line that is passed on. */
const longest = 4_096;

/** Passes on each line of a stream, from the first kept one until the log is closed. @throws OnejobError E_STATE_* */
async function tellLines(file: Pick<LogFile, 'read'>, of: 'stdout' | 'stderr', tell: (line: string) => void): Promise<void> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const { stream, bytes } of file.read({ follow: true })) {
    if (stream !== of) continue;
    const lines = (rest + decoder.decode(bytes, { stream: true })).split('\n');
    rest = (lines.pop() ?? '').slice(0, longest);
    for (const line of lines) tell(line.slice(0, longest));
  }
  if (rest !== '') tell(rest);
}

/** Bytes of `lastWords`, at most. */
const wordsLimit = 400;
/** Bytes of stderr before the release that are kept. */
const earlyLimit = 1 << 20;
/**
 * Bytes of a log without the gate's lines after which these were deleted: less than the least that an Engine keeps, two files of 16
 * MiB (`logLimits`). What an image prints before its gate is never so much.
 */
const lostLimit = 16 << 20;
/** The least that an Engine adds to a line in its file. Of blank lines, which are one byte each, it keeps little. */
const addedToLine = 25;
const nothing = new Uint8Array(0);
const order: Readonly<Record<GateState, number>> = { silent: 0, ready: 1, released: 2 };

type LogFollowerEvents = Pick<LogFollowersOptions, 'state' | 'failed'> & { readonly pause: (signal: AbortSignal) => Promise<void> };

interface Taken {
  readonly chunk: LogChunk;
  readonly kept: Uint8Array;
}

/**
 * Keeps one sandbox's output: follows it from the end of its log file, removes the gate's markers, and reports them. The file
 * alone says where to continue, so a new manager continues without a gap or a repeat.
 */
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
  /** The end of what was printed before the release. */
  #before: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  #unmarkedBytes = 0;
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

  /** Its log, once read as a whole, proves that the script has not begun. A log without the gate's first line proves nothing. */
  get showsNothingBegan(): boolean {
    return this.#state === 'ready' && this.#filter.waits;
  }

  /** The last line before the release that is not the gate's, for one line of a message; empty: none. */
  get lastWords(): string {
    const lines = this.#before.toString('utf8').split('\n');
    const words = lines
      .filter((line) => !line.includes(readyMarker(this.agent)))
      .map((line) => line.replace(/\p{Cc}+/gu, ' ').trim());
    return words.findLast((line) => line !== '') ?? '';
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
      this.#unmarkedBytes = 0;
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
    if (this.#state === 'released') {
      this.#pending.push({ chunk, kept: chunk.bytes });
      return;
    }
    this.#before = Buffer.concat([this.#before, chunk.bytes]).subarray(-wordsLimit);
    this.#unmarkedBytes += chunk.bytes.length + addedToLine * linesIn(chunk.bytes);
    // A gate prints two short lines. A log without its beginning does not show that the script has not begun.
    if ((chunk.missing ?? 0) > 0 || chunk.gap === true || this.#unmarkedBytes > lostLimit) {
      this.#advance('released');
      const after: LogChunk = chunk.missing === undefined ? { ...chunk, gap: true } : chunk;
      this.#pending.push({ chunk: after, kept: chunk.bytes });
    }
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

  #write(): Promise<void> {
    return this.#persist(() => {
      for (let next = this.#pending[0]; next !== undefined; next = this.#pending[0]) {
        this.file.append(next.chunk, next.kept);
        this.#pending.shift();
      }
    });
  }

  /** A full disk delays the log, not the job: the runtime keeps its output until there is room. */
  async #persist(work: () => void): Promise<void> {
    for (;;) {
      try {
        return work();
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
