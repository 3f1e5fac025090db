/** A release that a manager which is gone had begun, over keepers and a clock that a test moves by hand. */
import { expect, test } from 'vitest';
import type { SlotEvent } from '../core/slot.ts';
import { handClock } from '../core/testing.ts';
import { Keepers } from '../logs/keepers.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import { type ActParts, createExecutors } from './act.ts';

/** Whose log cannot be read: the gate may have said anything. */
function workbench() {
  const clock = handClock();
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  const advance = async (ms: number): Promise<void> => {
    for (const end = clock.now() + ms; clock.now() < end; await settled()) clock.advance(1_000);
  };
  const logs = () => {
    throw new Error('the Engine is away');
  };
  const runtime = { name: 'docker', logs, capabilities: { workspace: () => '/w' } } as unknown as Runtime;
  const file = { hasOutput: false, last: null, close: () => {} } as unknown as LogFile;
  const keepers = new Keepers({ open: () => file, forget: () => {}, clock, state: () => {}, failed: () => {} });
  const slot = { key: 'p/1', runtime: 'docker', devices: [], agent: { kind: 'releasing', since: 0, fingerprint: 'f' } };
  const pool = { config: { name: 'p' }, serviceOf: () => ({}) };
  const it = { isAway: true, posted: null as readonly SlotEvent[] | null };
  const parts = {
    ...{ clock, keepers, startedAt: 1, isAway: () => it.isAway, runtime: () => runtime },
    ...{ place: () => ({ slot, pool, name: 'n' }), devices: () => [], cuda: () => null, note: () => {} },
    registrations: { drop: async () => {} },
  } as unknown as ActParts;
  const stop = new AbortController();
  const released = createExecutors(parts).release({ act: 'release', agent: 'a', job: 'j' }, 'p/1', stop.signal);
  const done = released.then((events) => {
    it.posted = events;
  });
  return { it, advance, done };
}

test('what has begun is not given up while its runtime is away, nor as soon as it is back', async () => {
  const { it, advance, done } = workbench();
  await advance(600_000);
  expect(it.posted).toBeNull();
  it.isAway = false;
  await advance(50_000);
  expect(it.posted).toBeNull();
  await advance(20_000);
  await done;
  expect(it.posted).toMatchObject([{ kind: 'releaseFailed', failure: { code: 'E_GATE_SILENT' } }]);
});
