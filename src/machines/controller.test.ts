import { expect, it } from 'vitest';
import { type HandClock, handClock } from '../../test/kit/core.ts';
import { type Cloud, CloudError, type Listing, type Made, type Thing } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import type { Machine, Wish } from '../store/machine.ts';
import { createController } from './controller.ts';
import { ended } from './plan.ts';

const host: HostConfig = {
  host: 'burst',
  cloud: 'sim',
  types: ['big'],
  spot: 'never',
  image: null,
  disk: 50,
  min: 0,
  max: 1,
  agents: 1,
  idle: 600_000,
  lifetime: 6 * 3_600_000,
  boot: 1_200_000,
  budget: null,
  prices: {},
  opengl: 'none',
  setup: [],
};

/** When the clock of the tests starts. */
const midnight = Date.UTC(2030, 0, 1) / 1000;

const old: Machine = {
  run: 'onejob-00000000000000aa',
  owner: 'ours',
  cloud: 'sim',
  host: 'burst',
  token: 't',
  by: 'test',
  price: null,
  offer: { type: 'big', spot: false, zone: 'a' },
  born: midnight - 7200,
  expires: midnight + 3600,
  state: 'joined',
  since: midnight - 7000,
  made: { id: 'i-0', place: 'here', zone: 'a' },
  end: 'a timer',
  why: null,
  isFailure: false,
  joinedAt: midnight - 7000,
  stage: 'joined',
  items: [],
  absent: [],
  seenAt: midnight - 60,
  tokenHash: '',
  credentialHash: null,
  console: null,
  registrations: null,
};

/** A controller of a cloud that does what it is asked, except for `more`. */
function play(
  more: Partial<Cloud> = {},
  {
    clock = handClock(),
    wishes = new Map<string, Wish>(),
    rules = {},
    had = [],
  }: { clock?: HandClock; wishes?: Map<string, Wish>; rules?: Partial<HostConfig>; had?: readonly Machine[] } = {},
) {
  const rows = new Map<string, Machine>(had.map((machine) => [machine.run, machine]));
  const calls: string[] = [];
  /** Machines that a power cut would leave in the store. */
  let synced: readonly string[] = [];
  const called =
    <T>(name: string, answer: () => T) =>
    async (): Promise<T> => {
      calls.push(name);
      return answer();
    };
  const cloud: Cloud = {
    name: 'sim',
    type: 'sim',
    credential: 'test',
    capabilities: { holdsEnd: true, guestEnds: false, endRemoves: true },
    skew: () => 0,
    usualImage: { from: 'image', has: 'everything' },
    zones: called('zones', () => ['a']),
    create: called('create', () => ({ id: 'i-1', place: 'here', zone: 'a' })),
    setEnd: called('setEnd', () => 'a timer'),
    list: called('list', () => ({ things: [], unknown: [] })),
    destroy: called('destroy', () => undefined),
    console: async () => '',
    deliver: async () => {},
    price: async () => null,
    preflight: async () => [],
    ...more,
  };
  const all = () => [...rows.values()];
  const controller = createController({
    clock,
    log: { info() {}, warn() {}, error() {} },
    hosts: [{ ...host, ...rules }],
    userData: () => 'text',
    clouds: new Map([['sim', { cloud, owner: 'ours' }]]),
    store: {
      machines: {
        put: (machine) => void rows.set(machine.run, machine),
        live: () => all().filter(({ state }) => state !== 'gone'),
        gone: (time) => all().filter(({ state, since }) => state === 'gone' && since >= time),
        newest: () => [],
        get: (run) => rows.get(run) ?? null,
        prune() {},
        wanted: () => new Map(wishes),
        want: (name, wish) => void wishes.set(name, wish),
      },
      transaction: (({ durable }: { readonly durable: boolean }, act: () => unknown) => {
        act();
        if (durable) synced = [...rows.keys()];
      }) as never,
    },
  });
  controller.start();
  const counted = (name: string) => calls.filter((one) => one === name).length;
  return {
    clock,
    controller,
    rows: all,
    synced: () => synced,
    counted,
    async pass(seconds: number): Promise<void> {
      for (let second = 0; second < seconds; second += 1) {
        await new Promise((resolve) => setImmediate(resolve));
        clock.advance(1000);
      }
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

/** The machine in a list. */
const thingOf = ({ run, born, expires, offer }: Machine): Thing => ({
  kind: 'machine',
  id: run,
  place: 'here',
  run,
  host: 'burst',
  born,
  expires,
  state: 'running',
  offer,
});
const isListed = ({ made, state }: Machine): boolean => made !== null && state !== 'ending' && state !== 'gone';

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
  expect(controller.reason('burst')).toContain('gave no information about big');
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
    { had: [{ ...old, state: 'ending', why: 'It was ended with "onejob cloud down".', since: midnight - 30_000 }] },
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

it('a wish for a machine ends at its time, also for the controller after this one', async () => {
  const clock = handClock();
  const wishes = new Map<string, Wish>();
  const denied = async () => {
    throw new CloudError('E_CLOUD_CAPACITY', 'The zone has no machine of this type.');
  };
  const first = play({ create: denied }, { clock, wishes });
  first.controller.up('burst', 600_000);
  await first.pass(300);
  expect(first.controller.wanted('burst')).toBe(1);
  first.controller.close();
  const { controller, pass } = play({ create: denied }, { clock, wishes });
  await pass(290);
  expect(controller.wanted('burst')).toBe(1);
  await pass(20);
  expect([controller.wanted('burst'), controller.reason('burst')]).toEqual([0, null]);
  expect(wishes.get('burst')).toEqual({ machines: 0, until: null });
});

it('a wish ends once no try can bring a machine, and the next one tries again', async () => {
  let why: string | null = 'A policy forbids it.';
  const { controller, pass, counted } = play({
    async create() {
      if (why !== null) throw new CloudError('E_CLOUD_DENIED', why, { hint: 'Ask an administrator.' });
      return { id: 'i-1', place: 'here', zone: 'a' };
    },
  });
  controller.up('burst', 600_000);
  await pass(300);
  expect(controller.wanted('burst')).toBe(0);
  expect(controller.refusal('burst')).toMatchObject({ code: 'E_CLOUD_DENIED', message: why, hint: 'Ask an administrator.' });
  why = null;
  controller.up('burst', 600_000);
  expect([controller.wanted('burst'), controller.refusal('burst')]).toEqual([1, null]);
  await pass(10);
  expect(counted('setEnd')).toBe(1);
});

it('a wish continues while the cloud only has none left, or has refused one type of two', async () => {
  for (const rules of [{}, { types: ['big', 'small'] }]) {
    const { controller, pass } = play(
      {
        async create({ offer }) {
          if (offer.type === 'small') throw new CloudError('E_CLOUD_REQUEST', 'There is no such type.');
          throw new CloudError('E_CLOUD_CAPACITY', 'The zone has no machine of this type.', { retry: true });
        },
      },
      { rules },
    );
    controller.up('burst', 600_000);
    await pass(300);
    expect([controller.wanted('burst'), controller.refusal('burst')]).toEqual([1, null]);
  }
});

it('a wish that is called off ends machines that have not joined, and only those', async () => {
  const { controller, rows, pass, counted } = play({}, { rules: { max: 2 } });
  controller.up('burst', 600_000);
  await pass(10);
  const [first] = rows();
  controller.joined(first?.run ?? '');
  controller.setWaiting('burst', 2);
  await pass(10);
  controller.setWaiting('burst', 0);
  controller.callOff('burst');
  await pass(10);
  expect(rows()).toMatchObject([
    { state: 'joined', why: null },
    { state: 'ending', why: 'It is no longer wanted: "onejob cloud up" was interrupted or gave up.' },
  ]);
  expect([counted('destroy') > 0, controller.wanted('burst')]).toEqual([true, 0]);
});

it('a wish that cannot be ended, since the disk is full, keeps no machine from being looked after', async () => {
  const wishes = new Map<string, Wish>();
  const { controller, pass, counted } = play({}, { wishes, had: [{ ...old, state: 'ending', why: 'It is over.' }] });
  controller.up('burst', 60_000);
  wishes.set = () => {
    throw new Error('database or disk is full');
  };
  await pass(60);
  const before = counted('list');
  await pass(600);
  expect(counted('list')).toBeGreaterThan(before);
});

it('a machine that nobody can hear for hours stays, and counts as one that works', async () => {
  let things: readonly Thing[] = [];
  const { controller, rows, pass, counted } = play({ list: async () => ({ things, unknown: [] }) });
  for (let second = 0; second < 3 * 3600; second += 10) {
    things = rows().map(thingOf);
    for (const { run, state } of rows()) {
      if (state === 'booting') controller.joined(run);
      if (state === 'joined') controller.unheard(run, 'its console cannot be read');
    }
    controller.setWaiting('burst', rows().some(({ state }) => state === 'joined') ? 0 : 1);
    await pass(10);
  }
  expect(rows()).toMatchObject([{ state: 'joined', why: null }]);
  expect([counted('create'), counted('destroy')]).toEqual([1, 0]);
});

it('machines that join and cannot work are replaced less and less often, until one works', async () => {
  let things: readonly Thing[] = [];
  const { controller, rows, pass, counted } = play({ list: async () => ({ things, unknown: [] }) });
  controller.setWaiting('burst', 1);
  const problem = 'pool gpu: HTTP 401 from github.com';
  let says: string | null = problem;
  const live = async (seconds: number): Promise<void> => {
    for (let second = 0; second < seconds; second += 10) {
      things = rows().filter(isListed).map(thingOf);
      for (const { run, state } of rows()) {
        if (state === 'booting') controller.joined(run);
        if (state === 'joined') controller.report(run, { busy: 0, agents: 1, idleFor: 0, problem: says });
      }
      await pass(10);
    }
  };
  await live(3600);
  // One at once, one after 5 minutes.
  expect(counted('create')).toBe(3);
  const [first] = rows();
  expect(first).toMatchObject({ isFailure: true, why: `It could not work for 20 minutes: ${problem}` });
  await live(600);
  expect(controller.reason('burst')).toMatch(/its last 3 machines failed: It could not work .*; the next one is made at/);
  says = null;
  await live(2400);
  expect(rows().at(-1)).toMatchObject({ state: 'joined' });
  expect(controller.reason('burst')).toBeNull();
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

it('a machine that works since before the others failed does not hurry the next ones', async () => {
  let things: readonly Thing[] = [];
  const { controller, rows, pass, counted } = play({ list: async () => ({ things, unknown: [] }) }, { rules: { max: 3 } });
  controller.setWaiting('burst', 3);
  const [working] = await (async () => {
    await pass(10);
    return rows();
  })();
  for (let second = 0; second < 7200; second += 10) {
    things = rows().filter(isListed).map(thingOf);
    for (const { run, state } of rows()) {
      if (run === working?.run) {
        if (state === 'booting') controller.joined(run);
        controller.report(run, { busy: 1, agents: 1, idleFor: 0, problem: null });
      } else if (state === 'booting')
        controller.change(run, (machine, now) => ended({ ...machine, stage: 'failed' }, now, 'It could not be set up.', true));
    }
    await pass(10);
  }
  // One and two others at once; then one after 5, 10, 20 and 40 minutes.
  expect(counted('create')).toBeLessThan(10);
  expect(controller.reason('burst')).toMatch(/its last \d+ machines failed/);
});

it('a machine is on disk before the cloud is asked for it', async () => {
  const seen: (readonly string[])[] = [];
  const here = play(
    {
      async create({ run }) {
        seen.push([run, ...here.synced()]);
        throw new CloudError('E_CLOUD_CAPACITY', 'none left');
      },
    },
    { rules: { min: 1 } },
  );
  await here.pass(3);
  expect(seen.map(([run = '', ...synced]) => synced.includes(run))).toEqual([true]);
  here.controller.close();
});
