import { expect, it } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { type Cloud, CloudError, type Listing, type Made } from './cloud.ts';
import { createController } from './controller.ts';
import type { HostConfig } from './hosts.ts';
import type { Machine } from './machine.ts';

const host: HostConfig = {
  ...{ host: 'burst', cloud: 'sim', types: ['big'], spot: 'never', image: null, disk: 50, min: 0, max: 1, agents: 1 },
  ...{ idle: 600_000, lifetime: 6 * 3_600_000, boot: 1_200_000, budget: null, prices: {}, opengl: 'none', setup: [] },
};

/** When the clock of the tests starts. */
const midnight = Date.UTC(2030, 0, 1) / 1000;

const old: Machine = {
  ...{ run: 'onejob-00000000000000aa', owner: 'ours', cloud: 'sim', host: 'burst', token: 't', by: 'test', price: null },
  ...{ offer: { type: 'big', spot: false, zone: 'a' }, born: midnight - 7200, expires: midnight + 3600, state: 'joined' },
  ...{ since: midnight - 7000, made: { id: 'i-0', place: 'here', zone: 'a' }, end: 'a timer', why: null, isFailure: false },
  ...{ joinedAt: midnight - 7000, stage: 'joined', items: [], absent: [], seenAt: midnight - 60, tokenHash: '' },
  ...{ credentialHash: null, console: null, registrations: null },
};

/** A controller of a cloud that does what it is asked, except for `more`. */
function play(more: Partial<Cloud> = {}, { rules = {}, had = [] }: { rules?: Partial<HostConfig>; had?: readonly Machine[] } = {}) {
  const clock = handClock();
  const rows = new Map<string, Machine>(had.map((machine) => [machine.run, machine]));
  const calls: string[] = [];
  const called =
    <T>(name: string, answer: () => T) =>
    async (): Promise<T> => {
      calls.push(name);
      return answer();
    };
  const cloud: Cloud = {
    ...{ name: 'sim', type: 'sim', credential: 'test', capabilities: { guestEnds: false, endRemoves: true }, skew: () => 0 },
    usualImage: { from: 'image', has: 'everything' },
    zones: called('zones', () => ['a']),
    create: called('create', () => ({ id: 'i-1', place: 'here', zone: 'a' })),
    setEnd: called('setEnd', () => 'a timer'),
    list: called('list', () => ({ things: [], unknown: [] })),
    destroy: called('destroy', () => undefined),
    console: async () => '',
    price: async () => null,
    preflight: async () => [],
    ...more,
  };
  const all = () => [...rows.values()];
  const wanted = new Map<string, number>();
  const controller = createController({
    ...{ clock, log: { info() {}, warn() {}, error() {} }, hosts: [{ ...host, ...rules }], userData: () => 'text' },
    clouds: new Map([['sim', { cloud, owner: 'ours' }]]),
    store: {
      machines: {
        put: (machine) => void rows.set(machine.run, machine),
        live: () => all().filter(({ state }) => state !== 'gone'),
        gone: (time) => all().filter(({ state, since }) => state === 'gone' && since >= time),
        newest: () => [],
        get: (run) => rows.get(run) ?? null,
        prune() {},
        wanted: () => wanted,
        want: (name, machines) => void wanted.set(name, machines),
      },
      transaction: ((_: unknown, act: () => unknown) => act()) as never,
    },
  });
  controller.start();
  const counted = (name: string) => calls.filter((one) => one === name).length;
  return {
    ...{ clock, controller, rows: all, counted },
    async pass(seconds: number): Promise<void> {
      for (let second = 0; second < seconds; second += 1) {
        await new Promise((resolve) => setImmediate(resolve));
        clock.advance(1000);
      }
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

it('an end that cannot be set now is set later, without asking all the time', async () => {
  let asked = 0;
  let isBusy = true;
  const { controller, rows, pass } = play({
    async setEnd() {
      asked += 1;
      if (isBusy) throw new CloudError('E_CLOUD_THROTTLED', 'Too many requests.', { retry: true });
      return 'a timer';
    },
  });
  controller.setWaiting('burst', 1);
  await pass(60);
  expect(rows()).toMatchObject([{ state: 'made', end: null }]);
  expect(asked).toBeGreaterThan(1);
  expect(asked).toBeLessThanOrEqual(4);
  isBusy = false;
  await pass(30);
  expect(rows()).toMatchObject([{ state: 'booting', end: 'a timer' }]);
});

it('a machine whose end the cloud refuses is removed, and the next one waits', async () => {
  const { controller, rows, pass, counted } = play({
    async setEnd() {
      throw new CloudError('E_CLOUD_END', 'The cloud does not confirm the end.');
    },
  });
  controller.setWaiting('burst', 1);
  await pass(400);
  expect(rows()).toMatchObject([{ state: 'gone', isFailure: true, why: 'The cloud does not confirm the end.' }]);
  expect(counted('create')).toBe(1);
  expect(counted('destroy')).toBeGreaterThan(0);
});

it('a type that the cloud does not have is asked for now and then, and said', async () => {
  let asked = 0;
  const { controller, pass, counted } = play({
    async zones() {
      asked += 1;
      throw new CloudError('E_CLOUD_REQUEST', 'There is no type big in this region.');
    },
  });
  controller.setWaiting('burst', 1);
  await pass(120);
  expect(asked).toBeLessThanOrEqual(7);
  expect(counted('create')).toBe(0);
  expect(controller.reason('burst')).toContain('tells nothing about big');
});

it('counts what the day has cost by the clock of the cloud, also when ours shows the next day', async () => {
  const price = { perHour: 1, asOf: '2026-11-01' };
  const { controller, pass, counted } = play(
    { skew: () => -600_000, price: async () => price },
    { rules: { budget: 5 }, had: [{ ...old, price, born: midnight - 6 * 3600, state: 'gone', since: midnight - 3600 }] },
  );
  controller.setWaiting('burst', 1);
  await pass(60);
  expect(counted('create')).toBe(0);
  expect(controller.reason('burst')).toContain('its budget of 5 USD a day allows no other machine (5.00 USD');
});

it('lists on time although the wall clock was set back before the cloud had told the time', async () => {
  const { controller, clock, pass, counted } = play({
    skew: () => null,
    async list() {
      throw new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true });
    },
  });
  const { wall } = clock;
  await pass(30);
  clock.wall = () => wall() - 3_600_000;
  const before = controller.listed('sim')?.at ?? 0;
  await pass(120);
  expect(counted('create')).toBe(0);
  expect(controller.listed('sim')?.at).toBeGreaterThanOrEqual(before + 60);
});

it('what a machine said before the cloud had told the time keeps nothing alive', async () => {
  let isKnown = false;
  const { controller, rows, pass } = play(
    {
      skew: () => (isKnown ? -28_800_000 : null),
      async list() {
        if (isKnown) return { things: [], unknown: [] };
        throw new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true });
      },
    },
    { had: [{ ...old, state: 'ending', why: 'Somebody asked for it.', since: midnight - 30_000 }] },
  );
  await pass(1);
  controller.report(old.run, { busy: 0, agents: 1, idleFor: 0, problem: null });
  isKnown = true;
  await pass(120);
  expect(rows()).toMatchObject([{ state: 'gone' }]);
});

it('looks for what an earlier owner made, also when it seems to be gone', async () => {
  const asked: string[] = [];
  const { pass } = play(
    {
      async list(owner) {
        asked.push(owner);
        return { things: [], unknown: [] };
      },
    },
    {
      had: [
        { ...old, owner: 'former', state: 'gone', since: midnight - 600 },
        { ...old, run: 'onejob-00000000000000bb', owner: 'ancient', state: 'gone', since: midnight - 100_000 },
      ],
    },
  );
  await pass(1);
  expect(asked).toEqual(['ours', 'former']);
});

it('a list that was asked for before the create call failed proves nothing, although the cloud tells whole seconds', async () => {
  let skew = 0;
  let lists = 0;
  const create = Promise.withResolvers<Made>();
  const second = Promise.withResolvers<Listing>();
  const { controller, rows, pass } = play({
    skew: () => skew,
    create: () => create.promise,
    async list() {
      lists += 1;
      return lists === 2 ? second.promise : { things: [], unknown: [] };
    },
  });
  controller.setWaiting('burst', 1);
  while (lists < 2) await pass(1);
  create.reject(new CloudError('E_CLOUD_CAPACITY', 'No capacity.'));
  await pass(1);
  skew = 1000;
  second.resolve({ things: [], unknown: [] });
  await pass(1);
  expect(rows()).toMatchObject([{ state: 'ending', absent: [] }]);
});
