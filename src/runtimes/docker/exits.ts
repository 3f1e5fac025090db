/**
 * How a container ended, and who ended it. An Engine without live-restore ends every container when it stops. Those exit codes
 * look like the job's own, even 0 from a job that traps TERM, but such an end is the infrastructure's (S6). So an exit code
 * counts only if the Engine was certain to stay. What came first is never read from times of day: a clock may be set back.
 */
import { z } from 'zod';
import type { OnejobError } from '../../base/errors.ts';
import { deadline } from '../../core/clock.ts';
import { type Exit, hostRestarted } from '../../core/slot.ts';
import { hasKernelEnded } from '../../system/oom-log.ts';
import type { ContainerAnswer, Engine } from '../engine/engine.ts';
import { unreachable } from '../engine/failures.ts';
import { get } from '../engine/wire.ts';
import { labels } from './create.ts';
import { userLabel } from './own-engine.ts';

/** ms that an Engine which accepts a connection may be silent before it counts as stopping. */
const patience = 30_000;

export class Exits {
  readonly #engine: Engine;
  readonly #bootId: string | null;
  readonly #dies: (id: string) => void;
  readonly #kernelEnded: (id: string) => Promise<boolean>;
  readonly #known = new Map<string, Exit>();
  /** Whether containers outlive the Engine; null until it was asked. It is asked again after every interruption. */
  #outlive: boolean | null = null;
  #isLiveRestore = false;
  /** Kept only while exits are seen as they happen: during an interruption the next Engine may answer. */
  #start: string | null = null;
  /** Whether exits are seen as they happen. */
  #isWatching = false;
  /** Containers that were alive since then. */
  readonly #alive = new Set<string>();

  /**
   * `bootId` is null if the Engine is not on this host. `dies` is called with the id of each container when its end is reported.
   * `kernelEnded`: whether the kernel says that a container's memory limit has ended something in it. By default its log is read.
   */
  constructor(
    engine: Engine,
    bootId: string | null,
    dies: (id: string) => void = () => {},
    kernelEnded = bootId === null ? async () => false : (id: string) => hasKernelEnded(id),
  ) {
    this.#engine = engine;
    this.#bootId = bootId;
    this.#dies = dies;
    this.#kernelEnded = kernelEnded;
  }

  /** When exits are no longer seen as they happen. Whether containers outlived the previous Engine is still needed. */
  interrupted(): void {
    this.#start = null;
    this.#isWatching = false;
    this.#alive.clear();
  }

  /** These were alive in an answer of the Engine. */
  sawAlive(ids: Iterable<string>): void {
    if (this.#isWatching) for (const id of ids) this.#alive.add(id);
  }

  /**
   * Names one start of the Engine: without live-restore it creates the default bridge anew each time (measured on 20.10). null if
   * it has none.
   */
  async engineStart(signal?: AbortSignal): Promise<string | null> {
    if (this.#start !== null) return this.#start;
    const bridge = (await this.#engine.network('bridge', signal))?.Id ?? null;
    if (this.#isWatching) this.#start = bridge;
    return bridge;
  }

  /** After an interruption: what was known of the Engine may no longer hold. */
  async refresh(signal: AbortSignal): Promise<void> {
    const before = this.#outlive;
    this.#outlive = null;
    this.#start = null;
    // If live-restore was turned on only now, it says nothing about how the Engine stopped.
    if (!(await this.#containersOutlive(signal)) || before === false) this.#outlive = false;
    this.#isWatching = true;
  }

  /** At the *die* event. `made`: the start of the Engine that made it; `connection` aborts when the Engine closes the connection. */
  async atDeath(id: string, code: number, made: string | undefined, connection: AbortSignal): Promise<Exit> {
    this.#dies(id);
    const before = this.#known.get(id);
    if (before !== undefined) return before;
    const outlives = await this.#containersOutlive(connection).catch(() => null);
    if (outlives !== true) {
      // Two checks, because an Engine that restarts after a crash ends what it finds before it creates its bridge.
      if (isOfEarlier(made, await this.engineStart(connection).catch(() => null))) return this.#remember(id, endedByEngine(code));
      if (!(await isStaying(this.#engine, connection))) return this.#remember(id, endedByEngine(code));
    }
    if (this.#isUnrecorded(code, id)) return this.#remember(id, unrecorded);
    const container = code === killed ? await this.#engine.inspect(id, connection).catch(() => undefined) : undefined;
    return this.#remember(id, await this.#ownEnd(id, code, container));
  }

  /** How containers ended that nobody saw end. @throws OnejobError while the Engine cannot be asked */
  async afterwards(containers: readonly ContainerAnswer[], signal: AbortSignal): Promise<Map<string, Exit>> {
    const strangers = containers.filter(({ Id }) => !this.#known.has(Id));
    if (strangers.length > 0 && !(await this.#containersOutlive(signal))) {
      const now = await this.engineStart(signal);
      for (const { Id, State, Config } of strangers)
        if (isOfEarlier(Config.Labels?.[labels.engine], now)) this.#known.set(Id, endedByEngine(State.ExitCode));
      // A stopping Engine serves open connections while it ends its containers; only a new connection shows that it stops.
      const why = await whyNotStaying(this.#engine, signal);
      if (why !== null) throw why;
    }
    for (const container of strangers) {
      const { Id, State, Config } = container;
      const boot = Config.Labels?.[labels.boot] ?? '';
      if (boot !== '' && this.#bootId !== null && boot !== this.#bootId) this.#known.set(Id, hostRestarted);
      else if (this.#isUnrecorded(State.ExitCode, Id)) this.#known.set(Id, unrecorded);
      else if (!this.#known.has(Id)) {
        const own = await this.#ownEnd(Id, State.ExitCode, container);
        // Somebody may have seen it end meanwhile.
        if (!this.#known.has(Id)) this.#known.set(Id, own);
      }
    }
    return new Map(containers.map(({ Id }) => [Id, this.#known.get(Id) ?? lost('how it ended is unknown')]));
  }

  /** The result of an earlier look; null if there was no look. */
  recall(id: string): Exit | null {
    return this.#known.get(id) ?? null;
  }

  forget(id: string): void {
    this.#known.delete(id);
    this.#alive.delete(id);
  }

  /**
   * An Engine with live-restore reports 255 for a container that ended while the Engine was away (measured on 20.10 after a
   * crash). It is the job's own code only if the Engine did not go away since the container was seen alive.
   */
  #isUnrecorded(code: number, id: string): boolean {
    return this.#isLiveRestore && code === 255 && !this.#alive.has(id);
  }

  /** How a container ended if the Engine stayed. `container`: null if it is gone, undefined if it could not be inspected. */
  async #ownEnd(id: string, code: number, container: ContainerAnswer | null | undefined): Promise<Exit> {
    if (code !== killed) return { kind: 'code', code };
    // That of an agent's engine is killed at the end of every job, and how the sandbox in it has ended is known.
    const isEngine = container?.Config.Labels?.[userLabel] !== undefined;
    if (container?.State.OOMKilled === true || (!isEngine && (await this.#kernelEnded(id)))) return { kind: 'oom' };
    // `docker rm -f` first marks a container, then kills its processes. onejob removes only containers that have ended.
    if (container === null || container?.State.Status === 'removing') return removed;
    return { kind: 'code', code };
  }

  #remember(id: string, exit: Exit): Exit {
    this.#known.set(id, exit);
    return exit;
  }

  async #containersOutlive(signal?: AbortSignal): Promise<boolean> {
    if (this.#outlive === null) {
      this.#isLiveRestore = (await this.#engine.info(signal)).LiveRestoreEnabled;
      this.#outlive = this.#isLiveRestore || (await this.#engine.isPodman(signal));
    }
    return this.#outlive;
  }
}

/** Whether an Engine was started since the container was made, which has ended all containers of the one before. */
function isOfEarlier(made = '', now: string | null): boolean {
  return made !== '' && now !== null && made !== now;
}

/** Parses the exit code of a *die* event. */
export const exitCodeOf = z.coerce.number().int().catch(255);

/** Exit code of a process that KILL ended. */
const killed = 137;

function lost(reason: string): Exit {
  return { kind: 'lost', reason };
}

const removed = lost('somebody removed its container');
const unrecorded = lost('it ended while the Engine was away, which did not record its exit code');

function endedByEngine(code: number): Exit {
  return lost(`the Engine was stopped, and without live-restore it ends what runs (exit code ${code})`);
}

/** An Engine first refuses connections, then ends its containers, then closes open connections (measured on 20.10). */
async function isStaying(engine: Engine, connection: AbortSignal): Promise<boolean> {
  return (await whyNotStaying(engine, connection).catch(() => 'it closed the connection')) === null;
}

async function whyNotStaying(engine: Engine, signal: AbortSignal): Promise<OnejobError | null> {
  try {
    using limit = deadline(engine.clock, patience, signal);
    await get(engine.endpoint, '/_ping', limit.signal);
    return null;
  } catch (error) {
    signal.throwIfAborted();
    return unreachable(error, 'ask how containers ended', engine.endpoint);
  }
}
