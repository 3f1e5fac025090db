/** All followers of one manager: at most one per agent, created with its sandbox and dropped with it. */
import type { LogPiece } from '../api/manager.ts';
import { type Clock, sleep } from '../core/clock.ts';
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { GateState } from '../runtimes/gate.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import { LogFollower } from './follower.ts';
import type { LogFile, ReadOptions } from './log-file.ts';
import type { LogFolder } from './log-folder.ts';

/** ms until a failed write of a log is tried again. */
const writeRetry = 1_000;

export interface LogFollowersOptions {
  readonly logs: Pick<LogFolder, 'open' | 'delete' | 'read'>;
  readonly clock: Clock;
  readonly state: (agent: AgentId, state: GateState) => void;
  readonly failed: (agent: AgentId, error: unknown) => void;
  /** Receives each line that a released agent writes to standard error; null: nobody. */
  readonly listener?: (agent: AgentId) => ((line: string) => void) | null;
}

export class LogFollowers {
  readonly #options: LogFollowersOptions;
  readonly #followers = new Map<AgentId, LogFollower>();
  /** By agent: resolves once all kept lines were passed to the listener. */
  readonly #told = new Map<AgentId, Promise<void>>();

  constructor(options: LogFollowersOptions) {
    this.#options = options;
  }

  /** What is kept of an agent's output. With `follow`, also what comes while its sandbox is followed. */
  read(agent: AgentId, options: ReadOptions = {}): AsyncIterable<LogPiece> {
    return this.#followers.get(agent)?.file.read(options) ?? this.#options.logs.read(agent);
  }

  /** Follows the output of a sandbox. A second call for an agent returns the same follower. */
  follow(agent: AgentId, runtime: Runtime): LogFollower {
    const known = this.#followers.get(agent);
    if (known !== undefined) return known;
    const follower = new LogFollower(agent, this.#options.logs.open(agent), runtime, {
      state: (_, state) => {
        this.#options.state(agent, state);
        if (state === 'released') this.#tell(follower);
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
    let ended = false;
    let late = false;
    void follower.ended.then(() => {
      ended = true;
    });
    const reached = (): boolean => follower.state === 'released' || follower.state === state;
    const cancel = this.#options.clock.after(ms, () => {
      late = true;
      follower.waiters.wake();
    });
    try {
      while (!reached() && !ended && !late && !signal.aborted) await follower.waiters.next(signal);
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

  /** Waits until all output is kept and passed to the listener, as long as more arrives within `ms`. True if it is complete. */
  async complete(agent: AgentId, ms: number): Promise<boolean> {
    const follower = this.#followers.get(agent);
    if (follower === undefined) return true;
    let cancel = (): void => {};
    const late = new Promise<boolean>((resolve) => {
      const look = (): void => {
        const { position } = follower.file;
        // A long log takes time: giving up midway would lose its end.
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
}

/** Maximum characters of one line that is passed on. */
const longest = 4_096;

/** Passes on each line of standard error, from the first kept one until the log is closed. @throws OnejobError E_STATE_* */
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
