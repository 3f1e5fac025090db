/**
 * The engine of one agent, as this host reaches it. Once its job has begun, it belongs to that job and may answer anything: so only small
 * answers are asked for, each in bounded time, and its socket is in a folder that no job can write.
 */
import { existsSync } from 'node:fs';
import { dirname } from 'node:path';
import { type ErrorCode, engineAway, OnejobError, toFailure } from '../../base/errors.ts';
import { deadline, sleep } from '../../core/clock.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type { LogChunk, LogPosition, SandboxSeen } from '../../ports/runtime.ts';
import { usualLimits } from '../engine/call.ts';
import type { ContainerAnswer } from '../engine/engine.ts';
import { DockerRuntime } from './docker.ts';
import { delegate, groupOf, hasReachedLimit } from './engine-group.ts';
import { outside } from './own-engine.ts';
import { keepExit, keptExit } from './own-exit.ts';
import { followOwnLog } from './own-log.ts';
import { giveWorkspace, type Owner } from './workspace.ts';

/** Of calls to it, in ms. */
const limits = { ...usualLimits, soon: 10_000, ping: 2_000 };
/** ms that it gets for one answer where it must not hold up others. */
const patience = 10_000;
/** ms until one that does not say how its sandbox is doing is asked again. */
const again = 1_000;
/** How what KILL has ended ends. */
const killed = 137;

/** What only says that this engine is away. It must not count for the Engine of the host. */
const away: readonly ErrorCode[] = [...engineAway, 'E_ENGINE_SILENT', 'E_ENGINE_ADDRESS'];

export class AgentEngine {
  readonly #agent: AgentId;
  readonly #outer: DockerRuntime;
  readonly #socket: string;
  readonly #gone = new AbortController();
  /** The runtime with this engine. */
  readonly runtime: DockerRuntime;
  #exit: Exit | null;

  /** Aborts when nothing more is written: the sandbox has ended, or it is gone. */
  readonly #over = new AbortController();
  #isWatched = false;
  #looking: Promise<SandboxSeen['state'] | null> | null = null;

  /** `outer`: with the Engine of the host. */
  constructor(agent: AgentId, outer: DockerRuntime, socket: string) {
    this.#agent = agent;
    this.#outer = outer;
    this.#socket = socket;
    this.#exit = keptExit(dirname(socket));
    if (this.#exit !== null) this.#over.abort();
    const give = async (_: AgentId, owner: Owner, signal: AbortSignal): Promise<void> => {
      const container = await outer.parts.containers.sure(agent, signal);
      await giveWorkspace(outer.parts.engine, container.Id, outside(owner, container), signal);
    };
    const endpoint = { kind: 'unix', path: socket, from: `agent ${agent}` } as const;
    this.runtime = new DockerRuntime(endpoint, { ...outer.options, grant: 'auto', limits, readFiles: false, inside: { give } });
  }

  /** How its sandbox has ended, as it is on disk; null while that is not known. */
  get exit(): Exit | null {
    return this.#exit;
  }

  /** Aborts when the engine answers nothing any more: its container has ended, or is gone. */
  get gone(): AbortSignal {
    return this.#gone.signal;
  }

  /** Its container has ended, or is gone. */
  lost(): void {
    this.#gone.abort();
    this.#over.abort();
  }

  /** Output of the sandbox after `from`, until it has ended and everything was read. Nothing of it depends on this engine. */
  logs(from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
    return followOwnLog(this.#outer.parts.engine.clock, dirname(this.#socket), from, this.#over.signal, signal);
  }

  close(): void {
    this.lost();
    this.runtime.close();
  }

  /** @throws OnejobError what `call` throws, but never that the Engine of the host is away */
  async ask<T>(call: (runtime: DockerRuntime) => Promise<T>): Promise<T> {
    return call(this.runtime).catch((error: unknown) => {
      if (!(error instanceof OnejobError && away.includes(error.code))) throw error;
      const message = `The engine of agent ${this.#agent} does not answer: ${toFailure(error).message}`;
      throw new OnejobError('E_SANDBOX_LOST', message, { retry: true, cause: error });
    });
  }

  /** The sandbox as its engine sees it; null if it does not say. Takes note of its end, and then ends all that the job has left. */
  look(): Promise<SandboxSeen['state'] | null> {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null;
    });
    return this.#looking;
  }

  async #look(): Promise<SandboxSeen['state'] | null> {
    const seen = await this.#within((signal) => this.runtime.list(signal)).catch(() => []);
    const state = seen.find(({ agent }) => agent === this.#agent)?.state ?? null;
    if (state?.kind !== 'exited') return state;
    if (this.#exit === null && !this.#keep(await this.#judged(state.exit))) return null;
    await this.end();
    return state;
  }

  /** False on a full disk: who looks again sees the same end. */
  #keep(exit: Exit): boolean {
    try {
      keepExit(dirname(this.#socket), exit);
    } catch {
      return false;
    }
    this.#exit = exit;
    this.#over.abort();
    return true;
  }

  /**
   * Ends the container of the engine once the sandbox has ended, and with it every container that the job has left running: they would keep
   * its devices. So the end of the sandbox is told when that container has ended. Where this fails, the next look does it.
   */
  async end(): Promise<void> {
    if (!this.gone.aborted) await this.#outer.signal(this.#agent, 'KILL').catch(() => {});
  }

  /** Ends the sandbox. Whether it did is not certain if this is false. */
  async kill(): Promise<boolean> {
    if (this.exit !== null) await this.end();
    // How it has ended by itself must be on disk before its engine is ended.
    if (this.exit !== null || (await this.look())?.kind === 'exited') return true;
    await this.runtime.signal(this.#agent, 'KILL').catch(() => {});
    const { containers, engine } = this.runtime.parts;
    const id = containers.recall(this.#agent);
    if (id !== null) await this.#within((signal) => engine.ended(id, signal)).catch(() => {});
    return (await this.look())?.kind === 'exited';
  }

  /** Waits for the end of the sandbox, which may not have been made yet. */
  async watch(): Promise<void> {
    if (this.#isWatched) return;
    this.#isWatched = true;
    const { containers, engine } = this.runtime.parts;
    const { clock } = this.#outer.parts.engine;
    let saidSo = false;
    while (!this.gone.aborted && this.exit === null) {
      const state = existsSync(this.#socket) ? await this.look() : null;
      const id = containers.recall(this.#agent);
      if (state?.kind === 'exited') return;
      // One that says that what it lists as running has ended is asked now and then.
      if (state?.kind !== 'running' || id === null || saidSo) await sleep(clock, again, this.gone);
      else {
        const code = await engine.ended(id, this.gone).catch(() => undefined);
        saidSo = code !== undefined;
        // Whatever else is known of an end is only looked up for what was killed: that takes Podman a tenth of a second.
        if (code == null || code === killed || this.exit !== null || !this.#keep({ kind: 'code', code })) continue;
        await this.end();
        return;
      }
    }
  }

  /** Lets its user divide the control group among the containers of its job, as far as this host and its user allow that. */
  async delegate(): Promise<void> {
    const container = await this.#within((signal) => this.#container(signal)).catch(() => null);
    const group = container === null ? null : await groupOf(container.Id, container.State.Pid);
    if (container !== null && group !== null) await delegate(group, outside({ uid: 0, gid: 0 }, container).uid).catch(() => {});
  }

  async #container(signal: AbortSignal): Promise<ContainerAnswer | null> {
    const { containers, engine } = this.#outer.parts;
    const id = containers.recall(this.#agent);
    return id === null ? null : engine.inspect(id, signal);
  }

  /** The control group of its container; null if it cannot be seen. */
  async #group(signal: AbortSignal): Promise<string | null> {
    const container = await this.#container(signal);
    return container === null ? null : groupOf(container.Id, container.State.Pid);
  }

  /** Podman does not know what the memory limit of its own container has ended. */
  async #judged(exit: Exit): Promise<Exit> {
    if (exit.kind !== 'code' || exit.code !== killed) return exit;
    const { containers, engine } = this.#outer.parts;
    const id = containers.recall(this.#agent);
    if (id === null) return exit;
    // An Engine also counts what the limit of a single container of the job has ended.
    const isOver = await this.#within(async (signal) => {
      const group = await this.#group(signal).catch(() => null);
      const isLimit = group === null ? null : await hasReachedLimit(group);
      return isLimit ?? engine.hasExceededMemory(id, signal);
    }).catch(() => false);
    return isOver ? { kind: 'oom' } : exit;
  }

  async #within<T>(call: (signal: AbortSignal) => Promise<T>): Promise<T> {
    using limit = deadline(this.#outer.parts.engine.clock, patience, this.gone);
    return await call(limit.signal);
  }
}
