import { expect, it } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { type Cloud, CloudError } from './cloud.ts';
import { createController } from './controller.ts';
import type { HostConfig } from './hosts.ts';
import type { Machine } from './machine.ts';

const host: HostConfig = {
  ...{ host: 'burst', cloud: 'sim', types: ['big'], spot: 'never', image: null, disk: 50, min: 0, max: 1, agents: 1 },
  ...{ idle: 600_000, lifetime: 6 * 3_600_000, boot: 1_200_000, budget: null, prices: {}, opengl: 'none', setup: [] },
};

/** A controller of a cloud that does what it is asked, except for `more`. */
function play(more: Partial<Cloud> = {}) {
  const clock = handClock();
  const rows = new Map<string, Machine>();
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
    deliver: async () => {},
    price: async () => null,
    preflight: async () => [],
    ...more,
  };
  const all = () => [...rows.values()];
  const wanted = new Map<string, number>();
  const controller = createController({
    ...{ clock, log: { info() {}, warn() {}, error() {} }, hosts: [host], userData: () => 'text' },
    clouds: new Map([['sim', { cloud, owner: 'ours' }]]),
    store: {
      machines: {
        put: (machine) => void rows.set(machine.run, machine),
        live: () => all().filter(({ state }) => state !== 'gone'),
        gone: () => all().filter(({ state }) => state === 'gone'),
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
    ...{ controller, rows: all, counted },
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
