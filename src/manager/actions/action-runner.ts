/**
 * Runs actions: one at a time per sandbox; the newest wins. An effect that is no longer wanted is aborted, and the next one of
 * the same sandbox waits for its end, so nothing is created after its removal.
 */
import { abortable } from '../../base/abortable.ts';
import { toFailure } from '../../base/errors.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { Action, ActionArgs, AgentId, SlotEvent } from '../../core/slot.ts';

/** One executor per kind of action. Each is idempotent, ends early when aborted, and returns events. */
export type Executors = { [K in keyof ActionArgs]: (action: Action<K>, key: string, signal: AbortSignal) => Promise<SlotEvent[]> };

/** `intent`: committed, nothing done. `effect`: done, nothing recorded. `record`: the outcome is committed. */
export type Boundary = `${keyof ActionArgs}.${'intent' | 'effect' | 'record'}`;

export interface ActionRunnerOptions {
  readonly executors: Executors;
  readonly clock: Clock;
  readonly post: (key: string, event: SlotEvent) => void;
  /** Called at each boundary. A test may end the manager there as with `kill -9`. */
  readonly boundary: (name: Boundary) => void;
  /** An action failed. It is tried again after `ms`, while the slot still asks for it. */
  readonly retrying: (key: string, action: Action, error: unknown, ms: number) => void;
}

/**
 * ms for which creating and clearing give way to a release. They keep an Engine's CPUs busy for hundreds of milliseconds, and a
 * waiting job should not wait for that.
 */
const yieldFor = 50;
const firstRetry = 500;
const longestRetry = 30_000;

export function createActionRunner({ boundary, executors, post, retrying, clock }: ActionRunnerOptions) {
  const running = new Map<string, { readonly act: Action['act']; readonly abort: AbortController; readonly done: Promise<void> }>();
  /** Why what is tried again failed, by subject. */
  const failures = new Map<string, { readonly act: Action['act']; readonly reason: string }>();
  let closed = false;

  /** Starts an action. An earlier one of the same sandbox is aborted first; the same action again changes nothing. */
  function start(key: string, action: Action): void {
    if (closed) return;
    const subject = subjectOf(action);
    const before = running.get(subject);
    if (before?.act === action.act && !before.abort.signal.aborted) return;
    before?.abort.abort();
    const abort = new AbortController();
    const done = run(key, action, before?.done ?? null, abort.signal).finally(() => {
      if (running.get(subject)?.abort !== abort) return;
      running.delete(subject);
      failures.delete(subject);
    });
    running.set(subject, { act: action.act, abort, done });
  }

  /** Aborts everything and waits for it to end. Nothing starts afterwards. */
  async function close(): Promise<void> {
    closed = true;
    const all = [...running.values()];
    for (const one of all) one.abort.abort();
    await Promise.allSettled(all.map((one) => one.done));
  }

  async function run(key: string, action: Action, before: Promise<void> | null, signal: AbortSignal): Promise<void> {
    if (before !== null) await before;
    if (action.act === 'prepare' || action.act === 'settle' || action.act === 'clear') await giveWay(signal);
    for (let wait = firstRetry; !signal.aborted; wait = Math.min(wait * 2, longestRetry)) {
      try {
        boundary(`${action.act}.intent`);
        const events = await execute(executors, action, key, signal);
        boundary(`${action.act}.effect`);
        for (const event of events) post(key, event);
        boundary(`${action.act}.record`);
        return;
      } catch (error) {
        if (signal.aborted) return;
        failures.set(subjectOf(action), { act: action.act, reason: toFailure(error).message });
        retrying(key, action, error, wait);
        await sleep(clock, wait, signal);
      }
    }
  }

  async function giveWay(signal: AbortSignal): Promise<void> {
    // The same step may start a release right after this action.
    await Promise.resolve();
    const releases = [...running.values()].filter((one) => one.act === 'release').map((one) => one.done);
    if (releases.length === 0) return;
    using limit = deadline(clock, yieldFor, signal);
    await abortable(Promise.all(releases), limit.signal).catch(() => {});
  }

  return {
    /** Number of running actions. */
    get size(): number {
      return running.size;
    },
    /** Why an agent's job cannot be settled: its last try failed; null: it did not. */
    unsettled(agent: AgentId): string | null {
      const failure = failures.get(agent);
      return failure?.act === 'settle' ? failure.reason : null;
    },
    start,
    close,
  };
}

/** The subject of an action: proving an agent's devices and clearing its sandbox are independent. */
export function subjectOf(action: Action): string {
  return action.act === 'prove' ? `devices of ${action.agent}` : action.agent;
}

function execute<K extends keyof ActionArgs>(
  executors: Executors,
  action: Action<K>,
  key: string,
  signal: AbortSignal,
): Promise<SlotEvent[]> {
  return executors[action.act](action, key, signal);
}
