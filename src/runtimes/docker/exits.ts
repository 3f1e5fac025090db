/**
 * How a container ended, and by whom. An Engine without live-restore ends every container when it stops, and keeps exit
 * codes that look like the job's own, also 0 from a job that traps TERM. Such an end is the infrastructure's (S6), so an
 * exit code is believed only when the Engine was certainly there to stay.
 */

import { z } from 'zod';
import { deadline } from '../../core/clock.ts';
import type { Exit } from '../../core/slot.ts';
import { get } from '../../engine/call.ts';
import type { ContainerAnswer, Engine } from '../../engine/engine.ts';
import { unreachable } from '../../engine/failures.ts';
import { isPodman } from '../../engine/probe.ts';
import type { OnejobError } from '../../errors.ts';
import { labels } from './create.ts';

/** How long an Engine that takes a connection may be silent before it counts as stopping, in ms. */
const patience = 30_000;

export type Exits = ReturnType<typeof createExits>;

/** `bootId` is null when the Engine is not on this host. */
export function createExits(engine: Engine, bootId: string | null) {
  const known = new Map<string, Exit>();
  /** Whether containers outlive the Engine; null until it was asked. Asked anew after every interruption. */
  let outlive: boolean | null = null;
  /** Kept only while exits are seen as they happen: whoever asks in an interruption may be answered by the next Engine. */
  let startedAt: number | null = null;
  /** Since when exits are seen as they happen, in ms since the epoch; infinite while they are not. */
  let watchingSince = Number.POSITIVE_INFINITY;
  let isLiveRestore = false;

  /**
   * What an Engine with live-restore says of a container that ended while the Engine was away and left no record
   * (measured on 20.10 after a crash). It is a job's own only when it was seen to happen.
   */
  const isUnrecorded = (code: number, at: number): boolean => isLiveRestore && code === 255 && at < watchingSince;

  const containersOutlive = async (signal?: AbortSignal): Promise<boolean> => {
    if (outlive === null) {
      const [info, version] = await Promise.all([engine.info(signal), engine.version(signal)]);
      isLiveRestore = info.LiveRestoreEnabled;
      outlive = isLiveRestore || isPodman(version);
    }
    return outlive;
  };

  /** The default bridge is made anew at every start of an Engine without live-restore (measured on 20.10). */
  const engineStart = async (signal?: AbortSignal): Promise<number | null> => {
    if (startedAt !== null) return startedAt;
    const bridge = await engine.network('bridge', signal);
    const start = bridge === null ? null : Date.parse(bridge.Created);
    if (watchingSince !== Number.POSITIVE_INFINITY) startedAt = start;
    return start;
  };

  return {
    /** Exits are no longer seen as they happen. Whether containers outlived the Engine that is gone is still needed. */
    interrupted: (): void => {
      startedAt = null;
      watchingSince = Number.POSITIVE_INFINITY;
    },

    /** After an interruption: what was known of the Engine itself may no longer hold. */
    refresh: async (signal: AbortSignal): Promise<void> => {
      const before = outlive;
      outlive = null;
      startedAt = null;
      // Turned on just now, it says nothing about how the Engine went away.
      if (!(await containersOutlive(signal)) || before === false) outlive = false;
      watchingSince = engine.clock.wall();
    },

    /** At the *die* event; `at` is its time in ms since the epoch. `connection` aborts when the Engine hangs up. */
    atDeath: async (id: string, code: number, at: number, connection: AbortSignal): Promise<Exit> => {
      const before = known.get(id);
      if (before !== undefined) return before;
      const outlives = await containersOutlive(connection).catch(() => null);
      if (outlives !== true) {
        // Each in its own way: an Engine that comes back after a crash ends what it finds, before it makes its bridge.
        const start = await engineStart(connection).catch(() => null);
        if (start !== null && at < start) return remember(known, id, endedByEngine(code));
        if (!(await isStaying(engine, connection))) return remember(known, id, endedByEngine(code));
      }
      if (isUnrecorded(code, at)) return remember(known, id, unrecorded);
      const container = code === killed ? await engine.inspect(id, connection).catch(() => undefined) : undefined;
      return remember(known, id, ownEnd(code, container));
    },

    /** How ended containers look to one who was not there. @throws OnejobError while the Engine cannot be asked. */
    afterwards: async (containers: readonly ContainerAnswer[], signal: AbortSignal): Promise<Map<string, Exit>> => {
      const strangers = containers.filter((one) => !known.has(one.Id));
      if (strangers.length > 0 && !(await containersOutlive(signal))) {
        const start = await engineStart(signal);
        for (const { Id, State } of strangers) {
          if (start === null || Date.parse(State.FinishedAt) >= start) continue;
          known.set(Id, endedByEngine(State.ExitCode));
        }
        // Open connections are served while an Engine stops and ends its containers; only a new one tells.
        const why = await whyNotStaying(engine, signal);
        if (why !== null) throw why;
      }
      for (const { Id, State, Config } of strangers) {
        const boot = Config.Labels?.[labels.boot];
        if (boot !== undefined && bootId !== null && boot !== bootId) known.set(Id, lost('the host was rebooted meanwhile'));
        else if (isUnrecorded(State.ExitCode, Date.parse(State.FinishedAt))) known.set(Id, unrecorded);
        else if (!known.has(Id)) known.set(Id, ownEnd(State.ExitCode, { State }));
      }
      return new Map(containers.map(({ Id }) => [Id, known.get(Id) ?? lost('how it ended is unknown')]));
    },

    /** What was found out before; null when nothing was. */
    recall: (id: string): Exit | null => known.get(id) ?? null,

    forget: (id: string) => {
      known.delete(id);
    },
  };
}

/** Matches what an Engine sends of a *die* event. */
export const exitCodeOf = z.coerce.number().int().catch(255);

/** The exit code of what KILL ended. */
const killed = 137;

/** How a container ended whose Engine stayed. `container`: null when it is gone, undefined when nobody could look. */
function ownEnd(code: number, container: Pick<ContainerAnswer, 'State'> | null | undefined): Exit {
  if (code !== killed) return { kind: 'code', code };
  if (container?.State.OOMKilled === true) return { kind: 'oom' };
  // `docker rm -f` marks the container first, then kills what runs in it. We remove only what has ended.
  if (container === null || container?.State.Status === 'removing') return removed;
  return { kind: 'code', code };
}

function lost(reason: string): Exit {
  return { kind: 'lost', reason };
}

const removed = lost('somebody removed its container');
const unrecorded = lost('it ended while the Engine was away, which did not record its exit code');

function endedByEngine(code: number): Exit {
  return lost(`the Engine was stopped, and without live-restore it ends what runs (exit code ${code})`);
}

function remember(known: Map<string, Exit>, id: string, exit: Exit): Exit {
  known.set(id, exit);
  return exit;
}

/** An Engine closes its door first, then ends its containers, then hangs up (measured on 20.10). */
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
