/** What needs a person, from values alone. */
import { expect, test } from 'vitest';
import { gpu, oneDevice } from '../../test/support/devices.ts';
import { clauseOf, conditions, findingOf, type HostState, isOfHost, lineOf, stateOf } from './conditions.ts';

const state = (
  more: Partial<HostState['queue']> = {},
  pools: HostState['pools'] = [],
  unfit: HostState['unfit'] = [],
): HostState => ({
  queue: { pools: new Set(['default', 'gpu']), waiting: new Map(), leftToOthers: 0, ...more },
  pools,
  unfit,
});

test('nothing', () => {
  const pools = [
    { name: 'default', agents: 2, hasDevices: null, nextJob: null },
    { name: 'gpu', agents: 'per-device', hasDevices: true, nextJob: null },
  ] as const;
  expect(conditions(state({ waiting: new Map([['default', 7]]) }, pools))).toEqual([]);
});

test('jobs of a pool that is gone, with what to type', () => {
  const found = conditions(
    state({
      waiting: new Map([
        ['old', 1],
        ['gpu', 3],
        ['a pool', 2],
      ]),
    }),
  );
  expect(found.map(lineOf)).toEqual([
    '1 job waits in pool old and would wait for ever: the config has no such pool of the own queue. Type "onejob move --waiting --pool old --to POOL", or "onejob cancel --waiting --pool old".',
    `2 jobs wait in pool a pool and would wait for ever: the config has no such pool of the own queue. Type "onejob move --waiting --pool 'a pool' --to POOL", or "onejob cancel --waiting --pool 'a pool'".`,
  ]);
  expect(found.map(findingOf)).toMatchObject([
    { level: 'warning', subject: 'pool old' },
    { level: 'warning', subject: 'pool a pool' },
  ]);
});

test('the only pool left is named, and without any there is nowhere to move a job', () => {
  const waiting = new Map([['old', 1]]);
  const hints = [new Set(['default']), new Set<string>()].map((pools) => conditions(state({ pools, waiting }))[0]?.hint);
  expect(hints).toEqual([
    'Type "onejob move --waiting --pool old --to default", or "onejob cancel --waiting --pool old".',
    'Type "onejob cancel --waiting --pool old".',
  ]);
});

test('jobs that a temporary daemon leaves to another', () => {
  expect(conditions(state({ leftToOthers: 2 })).map(lineOf)).toEqual([
    '2 jobs wait for the daemon that accepted them, but this daemon is temporary: type "onejob up".',
  ]);
});

test('jobs of CI services that no pool here can run, which nobody is called for', () => {
  const how = 'in queue "default" for an agent with gpu=h100, which no pool here has';
  const found = conditions(
    state(
      {},
      [],
      [
        { service: 'bk', jobs: 1, how, hint: 'Compare.' },
        { service: 'bk', jobs: 2, how, hint: 'Compare.' },
      ],
    ),
  );
  expect(found.map(lineOf)).toEqual([`1 job of service bk waits ${how}. Compare.`, `2 jobs of service bk wait ${how}. Compare.`]);
  expect(found.map(isOfHost)).toEqual([true, true]);
  expect(found.map(findingOf)[0]).toMatchObject({
    level: 'warning',
    subject: 'service bk',
    message: `1 job waits ${how}.`,
    code: 'unfit-jobs',
  });
  expect(found.map(({ patience }) => patience)).toEqual([null, null]);
});

test('a job that asks for more devices than this host has', () => {
  const about = { agents: 2, hasDevices: true } as const;
  const pools = [
    { name: 'ok', ...about, nextJob: { devices: 2, fitting: 2, missing: 0 } },
    { name: 'big', ...about, nextJob: { devices: 8, fitting: 2, missing: 1 } },
    { name: 'less', ...about, nextJob: { devices: 2, fitting: 1, missing: 1 } },
    // That is another condition.
    { name: 'none', ...about, nextJob: { devices: 8, fitting: 0, missing: 0 } },
  ];
  const found = conditions(state({}, pools));
  expect(found.map(({ pool, text }) => `${pool}: ${text}`)).toEqual([
    'big: It cannot run its next job, which asks for 8 devices: this host has 2 that fit, and 1 is missing.',
    'less: It cannot run its next job yet, which asks for 2 devices: this host has 1 that fits, and 1 is missing.',
  ]);
  expect(found.map(({ hint }) => hint)).toEqual([
    'Cancel that job, and run it with fewer "--devices".',
    '"onejob gpus" says what is known of what is missing, and what to do.',
  ]);
  expect(found.map(isOfHost)).toEqual([false, false]);
  expect(found.map(findingOf)[0]).toMatchObject({ subject: 'pool big', code: 'unfit-jobs' });
});

test('the next job of a pool that leases for each job, compared with what fits once the whole host was seen', () => {
  const pool = { name: 'gpu', agents: 2, standby: false, devices: oneDevice };
  let complete = true;
  let asks: number | null = 8;
  const unused = { model: 'NVIDIA A100-SXM4-40GB', parent: null, slot: null, quarantine: null };
  const known = [gpu(0), gpu(1), gpu(2), gpu(3), gpu(4)].map(({ uuid }, n) => ({
    ...unused,
    uuid,
    slot: n < 3 ? `gpu/${n}` : null,
  }));
  const bad = { ...unused, uuid: 'GPU-bad', quarantine: {} };
  const all = [...known, bad, { ...bad, uuid: 'GPU-old', model: 'Tesla V100' }, { ...bad, uuid: 'MIG-1', parent: 'GPU-bad' }];
  const seen = (config: object) => {
    const service = { jobs: { next: () => ({ job: 'j1' }), devicesFor: () => asks } };
    const inventory = { complete, devices: [gpu(0), gpu(1)] };
    const device = (uuid: string) => inventory.devices.find((one) => one.uuid === uuid) ?? null;
    const parts = {
      queue: { stranded: () => state().queue },
      others: [],
      reconciler: { pools: [{ config: { ...pool, ...config }, leaving: false, service }] },
      deviceManager: { registry: { inventory, known: { all }, device }, views: { ofPool: () => ({ wanted: 2 }) } },
    };
    return stateOf(parts as unknown as Parameters<typeof stateOf>[0]).pools[0]?.nextJob;
  };
  // Missing are one that was leased and one in quarantine, of that model; those never used are not missed.
  expect(seen({ devices: { ...oneDevice, model: 'A100' } })).toEqual({ devices: 8, fitting: 2, missing: 2 });
  expect(seen({})).toEqual({ devices: 8, fitting: 2, missing: 3 });
  expect(seen({ standby: true })).toBeNull();
  asks = null;
  expect(seen({ devices: { ...oneDevice, count: 8 } })).toBeNull();
  asks = 8;
  complete = false;
  expect(seen({})).toBeNull();
});

test('pools that can have no agent, not one whose devices are unknown', () => {
  const pools = [
    { name: 'none', agents: 0, hasDevices: null, nextJob: null },
    { name: 'gpu', agents: 'per-device', hasDevices: false, nextJob: null },
    { name: 'unseen', agents: 'per-device', hasDevices: null, nextJob: null },
  ] as const;
  expect(conditions(state({}, pools)).map(clauseOf)[0]).toBe('has no agents ("agents: 0"), so its jobs wait');
  expect(conditions(state({}, pools)).map(({ pool, text }) => `${pool}: ${text}`)).toEqual([
    'none: It has no agents ("agents: 0"), so its jobs wait.',
    'gpu: It has no device: this host has none that fits, so its jobs wait.',
  ]);
});
