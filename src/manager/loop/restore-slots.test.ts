/** The contents of slots after a change of config: they stay with their CI service until they are gone. */
import { expect, test } from 'vitest';
import type { Config, PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import { type Action, type Change, emptySlot, type Slot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Runtime } from '../../ports/runtime.ts';
import type { Runtimes } from '../../runtimes/choose.ts';
import { withoutDevices } from './pool.ts';
import { Reconciler } from './reconciler.ts';
import { restoreSlots } from './restore-slots.ts';

const able = { name: 'sim', capabilities: { holdsSecrets: true } } as Runtime;

function serviceOf(name: string, binds: 'late' | 'early') {
  const recorded: Change[] = [];
  const offers: string[] = [];
  const service = {
    name,
    capabilities: { binds, standsForSlots: binds === 'late' && name !== 'own' },
    jobs: {
      offer: (key: string, offer: string) => offers.push(`${key} ${offer}`),
      next: () => null,
      record: (change: Change) => recorded.push(change),
      committed() {},
      syncing: () => () => {},
      rolledBack() {},
    },
  } as unknown as CiService;
  return { service, recorded, offers };
}

function start(
  pools: readonly Partial<PoolConfig>[],
  stored: readonly Slot[],
  services: readonly CiService[],
  { runtime = able, keepStandby = true, origins = new Set() as Config['origins'] } = {},
) {
  const acted: string[] = [];
  const clock: Clock = { now: () => 1_000, wall: () => 0, after: () => () => {} };
  const reconciler = new Reconciler({
    clock,
    log: { info() {}, warn() {}, error() {} },
    store: { transaction: (write) => write(), sync: async () => {}, syncNow() {}, save() {} },
    act: (key, action: Action) => acted.push(`${key} ${action.act} ${reconciler.poolOf(key).serviceOf(slotAt(key)).name}`),
    newAgent: () => 'new',
    random: () => 0,
    changed() {},
  });
  const slotAt = (key: string): Slot => reconciler.slot(key) ?? emptySlot({ key, runtime: 'sim', grace: 0 });
  const usual = { agents: 1, standby: true, standbyMaxAge: 1e9, stopGrace: 0, runtime: 'sim', devices: { count: 0 }, recipe: {} };
  restoreSlots({
    reconciler,
    config: { pools: pools.map((pool) => ({ ...usual, ...pool }) as unknown as PoolConfig), origins },
    store: {
      slots: { all: () => stored.map((slot) => ({ slot, thisBoot: true })), remove() {} },
      temporary: !keepStandby,
    } as never,
    clock,
    services: new Map(services.map((one) => [one.name, one])),
    runtimes: { get: () => runtime, best: runtime } as unknown as Runtimes,
    devices: withoutDevices,
  });
  for (const pool of reconciler.pools) pool.rollout.learn('', 'f');
  reconciler.start();
  return { acted, reconciler, slotAt };
}

const slot = (key: string, service: string, agent: Slot['agent']): Slot => ({
  ...emptySlot({ key, runtime: 'sim', service, grace: 0 }),
  agent,
});
const idle = { kind: 'idle', agent: 'a0', fingerprint: 'f', online: true, since: 0 } as const;
const busy = { kind: 'busy', agent: 'a0', job: 'own-job', since: 0, due: null } as const;

test('an idle agent whose pool is not in the config any more is taken back from its own service, not from the first pool’s', () => {
  const own = serviceOf('own', 'late');
  const azure = serviceOf('azure', 'early');
  const it = start([{ name: 'build', service: 'own' }], [slot('lab/1', 'azure', idle)], [own.service, azure.service]);
  expect(it.acted).toContain('lab/1 retire azure');
});

test('an agent of a service that left the config is asked about, not ended', () => {
  const own = serviceOf('own', 'late');
  const it = start([{ name: 'build', service: 'own' }], [slot('lab/1', 'gone', idle)], [own.service]);
  expect(it.acted.filter((one) => one.startsWith('lab/1'))).toEqual(['lab/1 retire gone']);
});

test('a job of the queue whose pool is another service’s now ends in the queue, and the new service takes over what comes next', () => {
  const own = serviceOf('own', 'late');
  const azure = serviceOf('azure', 'early');
  const it = start([{ name: 'build', service: 'azure' }], [slot('build/1', 'own', busy)], [own.service, azure.service]);
  expect(it.acted).toEqual([]);
  it.reconciler.post('build/1', { kind: 'exited', agent: 'a0', exit: { kind: 'code', code: 0 }, released: true });
  expect(own.recorded).toEqual([{ change: 'ended', job: 'own-job', agent: 'a0', result: { kind: 'code', code: 0 } }]);
  it.reconciler.post('build/1', { kind: 'settled', agent: 'a0' });
  it.reconciler.post('build/1', { kind: 'cleared', agent: 'a0', outcome: null });
  expect(own.recorded).toContainEqual({ change: 'settled', job: 'own-job', agent: 'a0' });
  expect(azure.recorded).toEqual([]);
  expect(it.slotAt('build/1')).toMatchObject({ service: 'azure', standby: { kind: 'preparing' } });
});

test('a pool starts nothing in a runtime that cannot keep credentials of its CI service, unless config accepts that', () => {
  const weak = { name: 'sim', capabilities: { holdsSecrets: false, weaker: 'All is shared.' } } as Runtime;
  const paused = (config: Partial<PoolConfig>) => {
    const pools = [{ name: 'p', service: 'a', isolation: 'full', ...config }] as const;
    const { reconciler } = start(pools, [], [serviceOf('a', 'late').service, serviceOf('own', 'late').service], { runtime: weak });
    return reconciler.pools.flatMap(({ pause }) => (pause.closes ? pause.details : []));
  };
  expect(paused({})).toEqual([expect.stringMatching(/^runtime sim cannot keep credentials of service a .* \(All is shared\);/)]);
  expect(paused({ isolation: 'none' })).toEqual([]);
  expect(paused({ service: 'own' })).toEqual([]);
});

test('a pool starts nothing in the network of a host on which jobs of others go through the filter', () => {
  const hostNetwork = 'pasta is not installed.';
  const shared = { name: 'sim', capabilities: { holdsSecrets: true, weaker: null, hostNetwork } } as Runtime;
  const paused = (origins: Config['origins'], network = 'default', runtime = shared) => {
    const pools = [
      { name: 'p', service: 'own', recipe: { network } },
      { name: 'lab', service: 'lab', trust: {}, recipe: { network } },
    ] as unknown as PoolConfig[];
    const open = [serviceOf('lab', 'late').service, serviceOf('own', 'late').service];
    const { reconciler } = start(pools, [], open, { runtime, origins });
    return reconciler.pools.map(({ pause }) => (pause.closes ? pause.details : []));
  };
  const lab = new Set(['lab']);
  expect(paused(lab)).toEqual([
    [
      expect.stringMatching(
        /^its jobs would share the network of this host \(pasta is not installed\), but jobs of pool lab reach/,
      ),
    ],
    [expect.stringContaining('but jobs of service lab reach their service through a filter on this host')],
  ]);
  expect(paused(lab)[0]).toEqual([expect.stringContaining('apt-get install bubblewrap passt')]);
  expect(paused(lab, 'none')).toEqual([[], []]);
  expect(paused(new Set())).toEqual([[], []]);
  const own = { ...shared, capabilities: { ...shared.capabilities, hostNetwork: null } };
  expect(paused(lab, 'default', own)).toEqual([[], []]);
});

test('a manager that makes no agents for a service tells it nothing about slots', () => {
  const stored = [slot('old/1', 'bk', busy)];
  const told = (keepStandby: boolean) => {
    const bk = serviceOf('bk', 'late');
    const { reconciler } = start([{ name: 'ci', service: 'bk' }], stored, [bk.service], { keepStandby });
    reconciler.replanAll();
    return bk.offers;
  };
  expect(told(true)).toEqual(expect.arrayContaining(['ci/1 closed', 'old/1 gone']));
  expect(told(false)).toEqual([]);
});
