/** All followers of one manager: at most one per agent, made when its sandbox is there, gone with it. */

import type { LogPiece } from '../api/manager.ts';
import { type Clock, sleep } from '../core/clock.ts';
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { GateState } from '../runtimes/gate.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import { LogFollower } from './follower.ts';
import type { LogFile, ReadOptions } from './log-file.ts';
import type { LogFolder } from './log-folder.ts';

/** How long a log that could not be written waits before it is tried again, in ms. */
const writeRetry = 1_000;

export interface LogFollowersOptions {
  readonly logs: Pick<LogFolder, 'open' | 'delete' | 'read'>;
  readonly clock: Clock;
  readonly state: (agent: AgentId, state: GateState) => void;
  readonly failed: (agent: AgentId, error: unknown) => void;
  /** Who is told each line that a released agent writes on its standard error; null: nobody. */
  readonly listener?: (agent: AgentId) => ((line: string) => void) | null;
}

export class LogFollowers {
  readonly #options: LogFollowersOptions;
  readonly #followers = new Map<AgentId, LogFollower>();
  readonly #waiting = new Map<AgentId, Set<() => void>>();
  /** Each resolves once all that is kept of the agent was told. */
  readonly #told = new Map<AgentId, Promise<void>>();

  constructor(options: LogFollowersOptions) {
    this.#options = options;
  }

  /** What is kept of an agent's output. With `follow`, also what comes while its sandbox is followed. */
  read(agent: AgentId, options: ReadOptions = {}): AsyncIterable<LogPiece> {
    return this.#followers.get(agent)?.file.read(options) ?? this.#options.logs.read(agent);
  }

  /** Follows the output of a sandbox; the second call for an agent gives the same follower. */
  follow(agent: AgentId, runtime: Runtime): LogFollower {
    const known = this.#followers.get(agent);
    if (known !== undefined) return known;
    const follower = new LogFollower(agent, this.#options.logs.open(agent), runtime, {
      state: (_, state) => {
        this.#options.state(agent, state);
        if (state === 'released') this.#tell(follower);
        this.#wake(agent);
      },
      failed: this.#options.failed,
      pause: (signal) => sleep(this.#options.clock, writeRetry, signal),
    });
    this.#followers.set(agent, follower);
    void follower.ended.then(() => this.#wake(agent));
    return follower;
  }

  /**
   * Waits until the gate has come as far as `state`, or its output has ended without. True when it has come so far.
   * @throws OnejobError E_GATE_SILENT after `ms`.
   */
  async until(agent: AgentId, state: 'ready' | 'released', ms: number, signal: AbortSignal): Promise<boolean> {
    const follower = this.#followers.get(agent);
    if (follower === undefined) return false;
    let ended = false;
    let late = false;
    void follower.ended.then(() => {
      ended = true;
    });
    const reached = (): boolean => follower.state === 'released' || follower.state === state;
    const cancel = this.#options.clock.after(ms, () => {
      late = true;
      this.#wake(agent);
    });
    try {
      while (!reached() && !ended && !late && !signal.aborted) await this.#next(agent, signal);
    } finally {
      cancel();
    }
    signal.throwIfAborted();
    if (late && !reached() && !ended) {
      throw new OnejobError('E_GATE_SILENT', `The gate of agent ${agent} did not report "${state}" within ${ms / 1000} s.`, {
        retry: true,
      });
    }
    return reached();
  }

  /** Waits until all output is kept, and told, as long as more comes within `ms`. True when it is. */
  async complete(agent: AgentId, ms: number): Promise<boolean> {
    const follower = this.#followers.get(agent);
    if (follower === undefined) return true;
    let cancel = (): void => {};
    const late = new Promise<boolean>((resolve) => {
      const look = (): void => {
        const { position } = follower.file;
        // A long log takes its time to be read: giving up in the middle would lose its end.
        cancel = this.#options.clock.after(ms, () => (follower.file.position === position ? resolve(false) : look()));
      };
      look();
    });
    try {
      return await Promise.race([follower.ended.then((whole) => this.#told.get(agent)?.then(() => whole) ?? whole), late]);
    } finally {
      cancel();
    }
  }

  /** Says in an agent's log that its end could not be read, and is not there. */
  lostEnd(agent: AgentId): void {
    const follower = this.#followers.get(agent);
    if (follower?.file.hasOutput !== true || follower.file.closed) return;
    try {
      follower.file.note('the end of the output is missing here: reading it failed');
    } catch (error) {
      this.#options.failed(agent, error);
    }
  }

  /** Stops following an agent that is gone. A log without output, as of a standby that was never released, goes too. */
  async drop(agent: AgentId): Promise<void> {
    const follower = this.#followers.get(agent);
    this.#followers.delete(agent);
    this.#told.delete(agent);
    await follower?.stop();
    if (follower?.file.hasOutput === false) this.#options.logs.delete(agent);
  }

  async close(): Promise<void> {
    const followers = [...this.#followers.values()];
    this.#followers.clear();
    await Promise.all(followers.map((follower) => follower.stop()));
  }

  #tell({ agent, file }: LogFollower): void {
    const hear = this.#options.listener?.(agent) ?? null;
    if (hear === null || this.#told.has(agent)) return;
    this.#told.set(
      agent,
      tellLines(file, hear).catch((error: unknown) => this.#options.failed(agent, error)),
    );
  }

  #next(agent: AgentId, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const waiting = this.#waiting.get(agent) ?? new Set();
      this.#waiting.set(agent, waiting);
      const done = (): void => {
        waiting.delete(done);
        if (waiting.size === 0) this.#waiting.delete(agent);
        signal.removeEventListener('abort', done);
        resolve();
      };
      waiting.add(done);
      signal.addEventListener('abort', done, { once: true });
    });
  }

  #wake(agent: AgentId): void {
    for (const done of [...(this.#waiting.get(agent) ?? [])]) done();
  }
}

/** Characters of one line that are told; the rest of it is left out. */
const longest = 4_096;

/** What an agent says itself: tells each line of standard error, from the first that is kept to the last before the log is closed. @throws OnejobError E_STATE_* */
async function tellLines(file: Pick<LogFile, 'read'>, tell: (line: string) => void): Promise<void> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const { stream, bytes } of file.read({ follow: true })) {
    if (stream !== 'stderr') continue;
    const lines = (rest + decoder.decode(bytes, { stream: true })).split('\n');
    rest = (lines.pop() ?? '').slice(0, longest);
    for (const line of lines) tell(line.slice(0, longest));
  }
  if (rest !== '') tell(rest);
}
