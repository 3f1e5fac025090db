import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { gpu, instance } from '../../../test/support/devices.ts';
import { varianceText } from '../../contract/variance.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { type Device, noGpus } from '../../gpu/inventory.ts';
import type { ToolReply } from '../../gpu/run.ts';
import { DeviceUses } from './device-use.ts';

const [uuid, other] = ['GPU-5eed0000-0000-4000-8000-000000000000', 'GPU-5eed0000-0000-4000-8000-000000000001'];
const card = { ...gpu(0), uuid, memoryUsedMiB: 3 };
const answered = { tool: 'nvidia-smi', args: [], code: 0, hung: false, missing: false, cut: false };

let clock: ReturnType<typeof handClock>;
let slots: Slot[];
let looking: boolean;
let uses: DeviceUses;
/** Calls that have not ended yet. */
let calls: { readonly limit: number; readonly signal: AbortSignal | undefined; end(reply: Partial<ToolReply>): Promise<void> }[];
let called: number;

beforeEach(() => {
  clock = handClock();
  slots = [];
  looking = false;
  calls = [];
  called = 0;
  uses = new DeviceUses({
    clock,
    isLooking: () => looking,
    slots: () => slots,
    isMeasuring: (key) => key === 'bench/1',
    runner: {
      run(_tool, _args, { limit, signal }) {
        called += 1;
        const { promise, resolve } = Promise.withResolvers<ToolReply>();
        const end = async (reply: Partial<ToolReply>) => {
          resolve({ ...answered, output: '', ...reply });
          await settled();
        };
        calls.push({ limit, signal, end });
        return promise;
      },
    },
  });
});
afterEach(() => uses.close());

async function settled(): Promise<void> {
  for (let turns = 0; turns < 10; turns += 1) await Promise.resolve();
}

const looked = (devices: readonly Device[] = [card]) => uses.looked({ ...noGpus, devices });
const prints = (lines: Readonly<Record<string, string>>) => ({
  output: Object.entries(lines)
    .map(([name, values]) => `${name}, ${values}${values.split(',').length < 5 ? ', 1410, 1215, 0x0' : ''}\n`)
    .join(''),
});
/** Time passes, and the tool answers at once whenever it is called. */
async function passes(ms: number, reply: Partial<ToolReply> = prints({ [uuid]: '100, 50, 40, 70.5' })): Promise<void> {
  for (let left = ms; left > 0; left -= 1_000) {
    clock.advance(Math.min(1_000, left));
    await settled();
    await calls.shift()?.end(reply);
  }
}

function busy(agent: string, devices: readonly string[], key = 'lab/1'): Slot {
  return {
    ...emptySlot({ key, runtime: 'sim', grace: 0, devices }),
    agent: { kind: 'busy', agent, job: 'j', since: 0, due: null },
  };
}

describe('when the tool runs', () => {
  test('never while nobody needs it', async () => {
    looked();
    await passes(600_000);
    expect(called).toBe(0);
    expect(clock.next()).toBeNull();
  });

  test('every five seconds for a minute after somebody has asked', async () => {
    looked();
    uses.asked();
    await passes(120_000);
    expect(called).toBe(12);
    expect(clock.next()).toBeNull();
  });

  test('while an agent has a job, not while it waits for one', async () => {
    looked();
    const slot = busy('a1', [uuid]);
    const idle: Slot = { ...slot, agent: { kind: 'idle', agent: 'a1', fingerprint: '', online: true, since: 0 } };
    slots = [idle];
    uses.slotChanged(idle);
    await passes(60_000);
    expect(called).toBe(0);
    slots = [slot];
    uses.slotChanged(slot);
    await passes(61_000);
    expect(called).toBe(13);
    slots = [];
    await passes(60_000);
    expect(called).toBe(13);
  });

  test('jobs that come and go do not make it run more often', async () => {
    looked();
    for (let n = 0; n < 60; n += 1) {
      slots = n % 2 === 0 ? [busy(`a${n}`, [uuid])] : [];
      for (const slot of slots) uses.slotChanged(slot);
      await passes(1_000);
    }
    expect(called).toBeLessThanOrEqual(12);
  });

  test('not on a host without NVIDIA cards', async () => {
    looked([{ ...card, vendor: 'amd' }]);
    uses.asked();
    await passes(60_000);
    expect(called).toBe(0);
  });

  test('one call at a time, as patient as a look', async () => {
    looked();
    uses.asked();
    clock.advance(1_000);
    clock.advance(60_000);
    uses.asked();
    looked();
    expect(calls.length).toBe(1);
    expect(calls[0]?.limit).toBe(30_000);
  });

  test('not while a look is in progress: a proof may wait for it', async () => {
    looked();
    uses.asked();
    looking = true;
    await passes(20_000);
    expect(called).toBe(0);
    looking = false;
    await passes(1_000);
    expect(called).toBe(1);
  });

  test.each<[string, Partial<ToolReply>]>([
    ['fails', { code: 9, output: 'NVIDIA-SMI has failed' }],
    ['is missing', { code: 127, missing: true }],
    ['hangs', { code: null, hung: true }],
    ['prints half a line and nothing else', { output: 'GPU-' }],
  ])('a tool that %s is left alone for a minute', async (_, reply) => {
    looked();
    slots = [busy('a1', [uuid])];
    uses.asked();
    await passes(60_000, reply);
    expect(called).toBe(1);
    await passes(5_000, reply);
    expect(called).toBe(2);
    expect(uses.recent(uuid, 0).map(({ utilization }) => utilization)).toEqual([null]);
  });

  test('the end stops it, also in the middle of a call', async () => {
    looked();
    uses.asked();
    clock.advance(1_000);
    uses.close();
    expect(calls[0]?.signal?.aborted).toBe(true);
    await calls[0]?.end(prints({ [uuid]: '100, 50, 40, 70.5' }));
    uses.asked();
    expect(clock.next()).toBeNull();
    expect(uses.recent(uuid, 0)).toHaveLength(1);
  });
});

describe('what is known of a device', () => {
  test('its memory from the last look, then more from the query', async () => {
    looked();
    const unknown = { temperature: null, powerW: null, smClockMHz: null, memoryClockMHz: null, throttled: null };
    expect(uses.of(uuid)).toEqual({ memoryUsedMiB: 3, utilization: null, ...unknown, at: clock.wall() });
    uses.asked();
    await passes(1_000);
    const clocks = { smClockMHz: 1410, memoryClockMHz: 1215, throttled: [] };
    const sample = { memoryUsedMiB: 100, utilization: 50, temperature: 40, powerW: 70.5, ...clocks, at: clock.wall() };
    expect(uses.of(uuid)).toEqual(sample);
    looked();
    expect(uses.of(uuid)).toEqual(sample);
  });

  test('of a MIG instance only what looks show, apart from the queries of its card', async () => {
    const part = { ...instance(1, card), memoryUsedMiB: 9 };
    looked([card, part]);
    uses.asked();
    await passes(1_000);
    looked([card, part]);
    expect(uses.of(part.uuid)).toMatchObject({ memoryUsedMiB: 9, utilization: null, powerW: null });
    expect(uses.recent(part.uuid, 0)).toHaveLength(2);
  });

  test('nothing without a sample, and nothing after a minute without a new one', () => {
    expect(uses.of(uuid)).toBeNull();
    looked([{ ...card, memoryUsedMiB: null }]);
    expect(uses.of(uuid)).toBeNull();
    looked();
    clock.advance(60_001);
    expect(uses.of(uuid)).toBeNull();
  });

  test('recent samples since a time, oldest first, and never more than an hour of them', async () => {
    looked();
    slots = [busy('a1', [uuid])];
    uses.asked();
    await passes(7_200_000);
    const all = uses.recent(uuid, 0);
    expect(all).toHaveLength(720);
    expect(all.every(({ at }, n) => n === 0 || at > (all[n - 1]?.at ?? 0))).toBe(true);
    expect(uses.recent(uuid, clock.wall() - 20_000).length).toBeLessThan(6);
  });

  test('a device that has not been seen for an hour is forgotten', () => {
    looked();
    clock.advance(3_700_000);
    looked([]);
    expect(uses.recent(uuid, 0)).toEqual([]);
  });
});

describe('what an agent has used', () => {
  test('the most memory of all its devices together, and the mean of their utilisation', async () => {
    looked();
    slots = [busy('a1', [uuid, other])];
    uses.asked();
    await passes(1_000, prints({ [uuid]: '100, 50, 40, 70', [other]: '300, 100, 40, 70' }));
    await passes(5_000, prints({ [uuid]: '200, 0, 40, 70', [other]: '50, 10, 40, 70' }));
    expect(uses.useOf('a1')).toEqual({ peakMemoryMiB: 400, meanUtilization: 40 });
  });

  test('nothing of a device that it does not have, and nothing before its first sample', async () => {
    looked();
    slots = [busy('a1', [other])];
    uses.asked();
    await passes(1_000);
    expect(uses.useOf('a1')).toBeNull();
  });

  test('on a MIG instance its memory; its utilisation is unknown', () => {
    const part = { ...instance(1, card), memoryUsedMiB: 9 };
    slots = [busy('a1', [part.uuid])];
    looked([card, part]);
    looked([card, { ...part, memoryUsedMiB: 700 }]);
    looked([card, part]);
    expect(uses.useOf('a1')).toEqual({ peakMemoryMiB: 700, meanUtilization: null });
  });

  test('is there until its slot has forgotten it', async () => {
    looked();
    const slot = busy('a1', [uuid]);
    slots = [slot];
    uses.asked();
    await passes(1_000);
    slots = [{ ...slot, agent: { kind: 'proving', agent: 'a1', since: 0 } }];
    await passes(5_000, prints({ [uuid]: '900, 90, 40, 70' }));
    expect(uses.useOf('a1')).toEqual({ peakMemoryMiB: 100, meanUtilization: 50 });
    slots = [{ ...slot, agent: { kind: 'free' }, leaving: [{ agent: 'a1', job: 'j', exit: null }] }];
    await passes(5_000);
    expect(uses.useOf('a1')).not.toBeNull();
    slots = [];
    await passes(5_000);
    expect(uses.useOf('a1')).toBeNull();
  });
});

describe('how the card of a measurement was', () => {
  const hot = prints({ [uuid]: '100, 50, 80, 70.5, 1200, 1215, 0x0000000000000020' });

  test('its temperature, its clocks and what slowed them down, from the first sample to the last', async () => {
    looked();
    slots = [busy('a1', [uuid], 'bench/1')];
    uses.asked();
    await passes(1_000);
    await passes(10_000, hot);
    await passes(5_000);
    const view = uses.varianceOf('a1', ['it began hot']);
    expect(view).toEqual({
      samples: 4,
      temperature: { min: 40, median: 40, max: 80 },
      smClockMHz: { min: 1200, median: 1200, max: 1410 },
      memoryClockMHz: { min: 1215, median: 1215, max: 1215 },
      throttled: [{ reason: 'thermal', seconds: 10 }],
      notes: ['it began hot'],
    });
    expect(view === null ? '' : varianceText(view)).toBe(
      '40–80 °C (median 40), SM 1200–1410 MHz (median 1200), memory 1215 MHz; throttled: thermal 10 s; it began hot',
    );
  });

  test('a card that reports nothing, and one that nothing slowed down', async () => {
    looked();
    slots = [busy('a1', [uuid], 'bench/1')];
    uses.asked();
    await passes(1_000, prints({ [uuid]: '100, 50, 40, [N/A], [N/A], [N/A], [N/A]' }));
    const view = uses.varianceOf('a1', []);
    expect(view).toMatchObject({ samples: 1, smClockMHz: null, throttled: [] });
    expect(view === null ? '' : varianceText(view)).toBe('40 °C; not throttled');
  });

  test('is not known before a sample, and is not kept for other jobs', async () => {
    looked();
    slots = [busy('a1', [uuid]), busy('a2', [other], 'bench/1')];
    uses.asked();
    await passes(6_000, hot);
    expect(uses.varianceOf('a1', [])).toBeNull();
    expect(uses.varianceOf('a2', [])).toBeNull();
  });

  test('a time without samples counts as one that is not known', async () => {
    looked();
    slots = [busy('a1', [uuid], 'bench/1')];
    uses.asked();
    await passes(1_000, hot);
    await passes(5_000, { code: 9 });
    await passes(120_000, hot);
    const seconds = uses.varianceOf('a1', [])?.throttled[0]?.seconds ?? 0;
    expect(seconds).toBeGreaterThan(50);
    expect(seconds).toBeLessThan(80);
  });
});
