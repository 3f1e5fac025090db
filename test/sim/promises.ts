/** What the Engine can tell of the promises, whatever service a job is from. */
import type { SimHost } from './host.ts';
import { canary } from './own.ts';
import { noFaults, type Seen } from './runtime.ts';
import type { Outside } from './scenario.ts';

/** ms for which a standby may wait before it is released, by default; and ms by which that may be late. */
const standbyMaxAge = 12 * 3_600_000;
const lateness = 60_000;
/** ms between two looks at sandboxes that no slot knows, and ms for which one may be there while nothing is wrong. */
const [lookEvery, strayFor] = [10_000, 120_000];
/** Sandboxes of one slot that may be there at a time: an agent, a standby, and what of both is on its way out. */
const mostOfSlot = 6;

export function enginePromises(host: SimHost): Outside {
  const { engine, time } = host;
  const broken: string[] = [];
  const ofSlot = new Map<string, Set<Seen>>();
  let releases = 0;
  const of = (slot: string): Set<Seen> => {
    const known = ofSlot.get(slot) ?? new Set();
    ofSlot.set(slot, known);
    return known;
  };
  engine.watchers.add({
    made(sandbox) {
      if (JSON.stringify(sandbox.spec).includes(canary)) broken.push(`S8: a job's secret is in sandbox ${sandbox.spec.agent}`);
      host.tell(`sandbox ${sandbox.spec.agent} of ${sandbox.spec.slot} is made`);
      const all = of(sandbox.spec.slot);
      all.add(sandbox);
      if (all.size > mostOfSlot) broken.push(`S2: ${all.size} sandboxes of slot ${sandbox.spec.slot} are there at a time`);
    },
    removed(sandbox) {
      host.tell(`sandbox ${sandbox.spec.agent} is removed`);
      of(sandbox.spec.slot).delete(sandbox);
    },
    signalled: (sandbox, signal) => host.tell(`sandbox ${sandbox.spec.agent} gets ${signal}`),
    released(sandbox) {
      releases += 1;
      const { agent, slot } = sandbox.spec;
      if (host.isProbe(agent)) return;
      host.tell(`agent ${agent} of ${slot} is released`);
      for (const other of of(slot))
        if (other !== sandbox && other.released && other.exit === null && !host.isProbe(other.spec.agent))
          broken.push(`S2: agent ${agent} was released in slot ${slot} beside ${other.spec.agent}, which runs`);
      const age = time.now - sandbox.madeAt;
      if (age > standbyMaxAge + lateness) broken.push(`S11: agent ${agent} was released at the age of ${age / 3_600_000} h`);
    },
  });
  /** Sandboxes that an engine has granted, and since when no job has waited for them. */
  const idle = new Map<string, number>();
  function lookForIdle(): void {
    const { up } = host;
    if (up === null || !engine.startsItself || !engine.isUp || engine.faults !== noFaults || host.isHeld) {
      idle.clear();
      return;
    }
    for (const agent of idle.keys()) if (!engine.sandboxes.has(agent)) idle.delete(agent);
    const isWaiting = (pool: string): boolean => (up.services.own.waiting?.(pool) ?? 1) > 0;
    for (const [agent, { spec, isStarted, released, exit }] of engine.sandboxes) {
      const isIdle = isStarted && !released && exit === null && !isWaiting(spec.pool) && !host.isProbe(agent);
      if (!isIdle) idle.delete(agent);
      else if (!idle.has(agent)) idle.set(agent, time.now);
      const since = idle.get(agent) ?? time.now;
      if (time.now - since > strayFor)
        broken.push(`S9: sandbox ${agent} keeps a grant for ${time.now - since} ms, and no job waits for it`);
    }
  }
  /** Sandboxes that are ours, and since when no slot knows them. */
  const strays = new Map<string, number>();
  let lookedAt = 0;
  function lookForStrays(): void {
    const { up } = host;
    if (up === null || !engine.isUp || engine.faults !== noFaults) {
      strays.clear();
      return;
    }
    if (time.now - lookedAt < lookEvery) return;
    lookedAt = time.now;
    lookForIdle();
    const { reconciler } = up.loop;
    for (const agent of strays.keys()) if (!engine.sandboxes.has(agent)) strays.delete(agent);
    for (const agent of engine.sandboxes.keys()) {
      if (reconciler.placeOf(agent) !== undefined || host.isProbe(agent)) {
        strays.delete(agent);
        continue;
      }
      const since = strays.get(agent) ?? time.now;
      strays.set(agent, since);
      if (time.now - since > strayFor) broken.push(`S4: sandbox ${agent} is in no slot for ${time.now - since} ms`);
    }
  }

  return {
    name: 'engine',
    takes: {},
    broken() {
      lookForStrays();
      return broken.splice(0);
    },
    unsettled: () => null,
    census: () => [],
    counts: () => ({ releases }),
  };
}
