import { beforeEach, expect, test } from 'vitest';
import { emptySlot, type Slot, type SlotEvent } from '../../core/slot.ts';
import { BenchmarkCpus } from './benchmark-cpus.ts';

let slots: Slot[];
let wanted: { key: string; devices: string[]; cpus: string | null }[];
let online: string | null;
let near: Record<string, string>;
let others: boolean;
let posted: [string, SlotEvent][];
let changes: number;
let cpus: BenchmarkCpus;

beforeEach(() => {
  slots = ['bench/1', 'ci/1'].map((key) => emptySlot({ key, runtime: 'docker', grace: 0 }));
  wanted = [{ key: 'bench/1', devices: ['GPU-0'], cpus: null }];
  online = '0-15';
  near = { 'GPU-0': '8-15', 'GPU-1': '0-7' };
  others = true;
  posted = [];
  changes = 0;
  cpus = new BenchmarkCpus({
    slots: () => slots,
    measuring: () => wanted,
    hasOthers: () => others,
    near: async ([uuid = '']) => near[uuid] ?? null,
    online: async () => online,
    post: (key, event) => void posted.push([key, event]),
    changed: () => {
      changes += 1;
    },
  });
});

const isBusy = (key: string, agent: string): void => {
  const lane = { kind: 'busy', agent, job: 'j', since: 0, due: null } as const;
  slots = slots.map((slot) => (slot.key === key ? { ...slot, agent: lane } : slot));
};

test('a slot has those of its card, and everybody else has the rest', async () => {
  expect(cpus.whyNot('bench/1')).toBe('its CPUs are not known yet');
  expect(await cpus.take('bench/1', 'a', null)).toBe('8-15');
  expect(await cpus.take('ci/1', 'b', null)).toBe('0-7');
  expect(await cpus.take('ci/1', 'c', '4-11')).toBe('4-7');
  expect(await cpus.take('ci/1', 'd', '8-15')).toBe('0-7');
  expect(cpus.whyNot('bench/1')).toBeNull();
});

test('before anything is known, and while no slot has its card, nothing is kept free', async () => {
  wanted = [];
  expect(await cpus.take('ci/1', 'a', null)).toBeNull();
  expect(await cpus.take('ci/1', 'a', '8-15')).toBe('8-15');
});

test('config may name others', async () => {
  wanted = [{ key: 'bench/1', devices: ['GPU-0'], cpus: '2,3' }];
  expect(await cpus.take('bench/1', 'a', null)).toBe('2-3');
  expect(await cpus.take('ci/1', 'b', null)).toBe('0-1,4-15');
});

test.each([
  ['the card is not known', { near: {} }, 'does not say which CPUs are near its card; name some with "benchmark.cpus"'],
  ['one is offline', { online: '0-11' }, 'its CPUs 8-15 are not all online: this host has 0-11'],
  ['nobody says which there are', { online: null }, 'this host has none that it names'],
  ['there are no others', { online: '8-15' }, 'are the last ones of this host, and other pools need some'],
])('it does not start if %s', async (_, how: { near?: typeof near; online?: string | null }, why) => {
  near = how.near ?? near;
  online = how.online === undefined ? online : how.online;
  await cpus.update();
  expect(cpus.whyNot('bench/1')).toContain(why);
});

test('all CPUs are its own where nobody else needs some', async () => {
  [online, others] = ['8-15', false];
  expect(await cpus.take('bench/1', 'a', null)).toBe('8-15');
  expect(cpus.whyNot('bench/1')).toBeNull();
});

test('two that are near the same CPUs do not share them', async () => {
  near = { 'GPU-0': '8-15', 'GPU-1': '8-15' };
  wanted.push({ key: 'other/1', devices: ['GPU-1'], cpus: null });
  await cpus.update();
  expect(cpus.whyNot('bench/1')).toBeNull();
  expect(cpus.whyNot('other/1')).toContain('are also those of slot bench/1');
});

test('what was made before ends if it has no job, and else is waited for', async () => {
  slots = slots.map((slot) => ({
    ...slot,
    standby: { kind: 'standby', agent: `${slot.key}s`, reserved: null, fingerprint: '', since: 0 },
  }));
  isBusy('ci/1', 'old');
  await cpus.update();
  expect(posted).toEqual([
    ['bench/1', { kind: 'discard' }],
    ['ci/1', { kind: 'discard' }],
  ]);
  expect(cpus.whyNot('bench/1')).toBe('the agent of slot ci/1 began before these CPUs were kept free, and may use them');
  expect(changes).toBe(1);
  await cpus.take('ci/1', 'new', null);
  isBusy('ci/1', 'new');
  expect(cpus.whyNot('bench/1')).toBeNull();
});

test('an idle agent of before is told to end, also one that becomes idle later', async () => {
  await cpus.update();
  const lane = { kind: 'idle', agent: 'old', fingerprint: '', online: true, since: 0 } as const;
  cpus.slotChanged({ ...emptySlot({ key: 'ci/1', runtime: 'docker', grace: 0 }), agent: lane });
  expect(posted).toEqual([['ci/1', { kind: 'retire', agent: 'old' }]]);
});

test('a card with other CPUs makes everything anew, and the same one nothing', async () => {
  await cpus.take('ci/1', 'a', null);
  slots = slots.map((slot) =>
    slot.key === 'ci/1' ? { ...slot, standby: { kind: 'preparing', agent: 'a', reserved: null, since: 0 } } : slot,
  );
  await cpus.update();
  expect(posted).toEqual([]);
  wanted = [{ key: 'bench/1', devices: ['GPU-1'], cpus: null }];
  await cpus.update();
  expect(posted).toEqual([['ci/1', { kind: 'discard' }]]);
  expect(await cpus.take('ci/1', 'b', null)).toBe('8-15');
});
