/**
 * Somebody with a stopwatch: while nothing goes wrong in the world, nothing may take long. What a slow second look would fix in
 * the end is found here: an event that was dropped, a timer that was not armed, a wait that nobody ends.
 */
import { isDiskFull } from './builtins.ts';
import type { SimHost } from './host.ts';
import type { Seen } from './runtime.ts';
import type { Outside } from './scenario.ts';

/** ms of peace after which nothing of a disturbance is left to wait for: first tries and second looks are over. */
const recovery = 45_000;
/** ms that an end, a free slot or a wish may go unnoticed. */
const unnoticed = 15_000;
/** ms between two looks; all of them are about seconds. */
const every = 500;
/** Timers that may fire within a minute: some for each call and each second look. */
const busy = 6_000;
/** ms by which a grace may be shorter than it was meant. */
const tolerance = 500;

export function stopwatch(host: SimHost): Outside {
  const { engine, time } = host;
  const broken: string[] = [];
  const grace = new Map<string, number>();
  let disturbedAt = time.now;
  let lookedAt = Number.NEGATIVE_INFINITY;
  let peace = 0;
  let waits = 0;
  let minute = { at: time.now, steps: time.steps };
  const ended = new Map<Seen, number>();
  const told = new WeakMap<Seen, number>();
  const free = new Map<string, number>();
  const said = new Set<string>();

  const isDisturbed = (): boolean =>
    host.up === null ||
    host.up.loop.reconciler.stopping ||
    !engine.isUp ||
    isDiskFull() ||
    Object.values(engine.faults).some((share) => share > 0);
  /** ms of peace since then. */
  const quietSince = (at: number): number => time.now - Math.max(at, disturbedAt + recovery);
  const complain = (what: string): void => {
    if (!said.has(what)) broken.push(what);
    said.add(what);
  };

  engine.watchers.add({
    signalled(sandbox, signal) {
      if (sandbox.exit !== null) return;
      const before = told.get(sandbox);
      if (signal === 'TERM') told.set(sandbox, before ?? time.now);
      else if (!isDisturbed() && sandbox.released && quietSince(sandbox.madeAt) > 0) {
        const had = before === undefined ? -1 : time.now - before;
        if (had < (grace.get(sandbox.spec.slot) ?? 0) - tolerance)
          complain(
            `S7: agent ${sandbox.spec.agent} was killed ${had < 0 ? 'without being told to end' : `${had} ms after it was told to end`}`,
          );
      }
    },
    removed: (sandbox) => void ended.delete(sandbox),
  });

  function look(): void {
    const { up } = host;
    if (up === null) return;
    for (const sandbox of engine.sandboxes.values()) if (sandbox.exit !== null && !ended.has(sandbox)) ended.set(sandbox, time.now);
    for (const [sandbox, at] of ended)
      if (quietSince(at) > unnoticed)
        complain(`S4: agent ${sandbox.spec.agent} ended ${time.now - at} ms ago, and its sandbox is still there`);
    const { reconciler } = up.loop;
    for (const slot of reconciler.slots) {
      grace.set(slot.key, slot.grace);
      const pool = reconciler.poolOf(slot.key);
      const { rollout } = pool;
      const isTrying = rollout.isCanary(slot.key) && rollout.backoff !== null && time.now <= rollout.backoff.until;
      const mayWork = !isTrying && (pool.backoff === null || time.now > pool.backoff.until);
      const isFree = slot.agent.kind === 'free' && slot.leaving.length === 0 && mayWork;
      if (!isFree) free.delete(slot.key);
      else if (!free.has(slot.key)) free.set(slot.key, time.now);
      const since = free.get(slot.key);
      if (since === undefined || quietSince(since) <= unnoticed) continue;
      if (slot.standby.kind === 'none' && pool.config.standby)
        complain(`S9: slot ${slot.key} has had no standby for ${time.now - since} ms`);
      const waiting = pool.service.jobs?.next(pool.config.name, slot.key) ?? null;
      if (waiting !== null)
        complain(`S7: job ${waiting.job} waits while slot ${slot.key} has been free for ${time.now - since} ms`);
    }
  }

  return {
    name: 'stopwatch',
    takes: {},
    broken() {
      if (time.now - minute.at >= 60_000) minute = { at: time.now, steps: time.steps };
      else if (time.steps - minute.steps > busy) complain(`S9: ${busy} timers fired within ${time.now - minute.at} ms`);
      if (isDisturbed()) disturbedAt = time.now;
      else if (time.now - lookedAt >= every) {
        if (Number.isFinite(lookedAt)) peace += Math.min(time.now - lookedAt, 60_000);
        lookedAt = time.now;
        waits += 1;
        look();
      }
      return broken.splice(0);
    },
    unsettled: () => null,
    census: () => [],
    counts: () => ({ peace, waits }),
  };
}
