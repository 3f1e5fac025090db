/** Views of pools whose agents need devices, over a real registry of devices; the loop is replaced by its slots. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { poolLike } from '../../test/kit/pool.ts';
import { DeviceHost, devicePool } from '../../test/support/device-host.ts';
import { gpu } from '../../test/support/devices.ts';
import type { PoolConfig } from '../config/config.ts';
import type { PoolView } from '../contract/schema.ts';
import type { Intent } from '../core/plan.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import type { Condition } from './conditions.ts';
import { quarantinedDevices } from './devices/device-views.ts';
import { deviceFindings, poolFindings } from './findings.ts';
import { Pause } from './loop/pause.ts';
import type { Reconciler } from './loop/reconciler.ts';
import { planLines, poolViews, type StatusParts, waitingReason } from './status.ts';

let host: DeviceHost;
beforeEach(() => {
  host = new DeviceHost();
});
afterEach(() => {
  host[Symbol.dispose]();
});

const runtime = { name: 'sim', capabilities: { images: true } };
let conditionsNow: Condition[] = [];
const held = 'held by alice: python, 9.2 GiB, since 11:02';
const absent = 'GPU-0000 absent since 12:00; it was at PCI 0000:00:00.0';

function open(...pools: PoolConfig[]): void {
  host[Symbol.dispose]();
  host = new DeviceHost({ pools });
}

/** The loop as it would be with these slots. */
function loop(config: PoolConfig = devicePool('lab'), intent: Intent | null = null) {
  const pool = poolLike(config, {
    service: { jobs: { next: () => null }, capabilities: { binds: 'late' } },
    runtime,
    devices: host.registry.slotDevices,
  });
  const keys = host.registry.slotsOf(config);
  const slots = keys.map((key) => host.slots.find((slot) => slot.key === key) ?? emptySlot({ key, runtime: 'sim', grace: 0 }));
  const reconciler = { pools: [pool], slots, poolOf: () => pool, pause: new Pause(), intentOf: () => intent };
  return { pool, reconciler: reconciler as unknown as Reconciler };
}

function parts(reconciler: Reconciler, notes: Record<string, string> = {}): StatusParts {
  const { clock, devices } = host;
  return {
    clock,
    reconciler,
    nameOf: (key) => key,
    noteOf: (key) => notes[key] ?? null,
    about: () => null,
    deviceManager: devices,
    conditions: () => conditionsNow,
    held: { count: () => 0 },
    notesOf: () => [],
  };
}

const poolView = (notes?: Record<string, string>): PoolView | undefined => poolViews(parts(loop().reconciler, notes))[0];
const heldIn = (view: PoolView | undefined) => view?.slots.map((slot) => slot.held);
const why = (config?: PoolConfig, away: string | null = null) => {
  const { pool, reconciler } = loop(config);
  pool.away = away;
  return waitingReason(reconciler, 'lab');
};

describe('slots and their devices', () => {
  test('all there', () => {
    host.sees([gpu(0), gpu(1)]);
    expect(poolView()).toMatchObject({ devices: { ready: 2, wanted: 2 } });
    expect(heldIn(poolView())).toEqual([null, null]);
  });

  test('one held by a person, one reserved, one in quarantine', () => {
    host.seesHeld([gpu(0), gpu(1)], { 'GPU-0000': held });
    host.reservations.reserve(host.registry.find('1'), { by: 'bob', for: null });
    expect(heldIn(poolView())).toEqual([held, 'GPU-0001 is reserved by bob']);
    host.quarantine.putByHand(host.registry.find('1'), 'fan');
    expect(heldIn(poolView())).toEqual([held, 'GPU-0001 is in quarantine: fan']);
  });

  test('one missing', () => {
    host.sees([gpu(0), gpu(1)]);
    host.sees([gpu(1)]);
    expect(poolView()).toMatchObject({ devices: { ready: 1, wanted: 2 } });
    expect(heldIn(poolView())).toEqual([absent, null]);
  });

  test('nothing is said of a host that nobody has looked at', () => {
    expect(poolView()).toMatchObject({ devices: null });
  });

  test('a slot whose devices are being proved shows what is waited for', () => {
    host.sees([gpu(0), gpu(1)]);
    const slot: Slot = emptySlot({ key: 'lab/1', runtime: 'sim', grace: 0, devices: ['GPU-0000'] });
    host.slots = [{ ...slot, agent: { kind: 'proving', agent: 'a1', since: host.now - 2_000 } }];
    expect(poolView({ 'lab/1': 'python (pid 7) is still leaving GPU-0000.' })?.slots[0]).toMatchObject({
      agent: { state: 'proving', agent: 'a1', since: 2_000 },
      note: 'python (pid 7) is still leaving GPU-0000.',
    });
  });

  test('a pool that leases for each job lacks nothing while no job waits', () => {
    const passing = devicePool('lab', { standby: false });
    open(passing);
    host.sees([gpu(0), gpu(1)]);
    const [view] = poolViews(parts(loop(passing).reconciler));
    expect(view?.devices).toBeNull();
    expect(heldIn(view)).toEqual([null, null]);
    expect(planLines(parts(loop(passing).reconciler))).toEqual([]);
  });

  test('a job that needs several devices says so also while smaller ones have all agents', () => {
    const lab = devicePool('lab', { standby: false, agents: 'per-device' });
    let next: { job: string; count: number; lasts: null } = { job: 'small', count: 1, lasts: null };
    host[Symbol.dispose]();
    host = new DeviceHost({ pools: [lab], waiting: () => ({ turn: next.job, devices: next.count }), lineOf: () => [next] });
    host.sees([gpu(0), gpu(1)]);
    host.runs('lab/1', 'a1');
    host.runs('lab/2', 'a2');
    expect(why(lab)).toBeNull();
    next = { ...next, job: 'large', count: 2 };
    host.registry.demandChanged('lab');
    expect(why(lab)).toBe('job large waits for 2 devices: none is free; nobody knows until when, as job j1 has no time limit');
  });

  test('a pool that waits for a lease says how long, and after which other pools', () => {
    const pools = ['lab', 'other', 'third'].map((name) => devicePool(name, { standby: false, agents: 1 }));
    const turns = new Map([['other', 'o']]);
    host[Symbol.dispose]();
    host = new DeviceHost({ pools, waiting: (name) => (turns.has(name) ? { turn: turns.get(name) ?? '', devices: 1 } : null) });
    host.sees([gpu(0)]);
    host.runs('other/1', 'a1');
    const line = (name: string) => planLines(parts(loop(pools.find((one) => one.name === name)).reconciler));
    turns.set('third', 't');
    host.registry.allocate();
    host.now += 5_000;
    turns.set('lab', 'l');
    host.registry.allocate();
    host.now += 12_000;
    expect(line('third')).toEqual([
      { slot: 'third/1', intent: 'nothing yet', because: 'no device is free for it; it has waited 17 s, and it is next' },
    ]);
    expect(line('lab')[0]?.because).toBe('no device is free for it; it has waited 12 s, and after pool third');
  });
});

describe('a card in quarantine', () => {
  const cards = [gpu(0), gpu(1), gpu(2), gpu(3)];
  const why = 'GPU-0001 in quarantine since 12:00: fan';
  const seen = (config: PoolConfig) => ({
    devices: poolViews(parts(loop(config).reconciler))[0]?.devices,
    quarantined: quarantinedDevices(host.registry),
  });
  const missesOne = { devices: { ready: 3, wanted: 4 }, quarantined: [{ uuid: 'GPU-0001', pool: 'lab', why }] };

  test('counts while it is in a slot, and when no slot has it: before its first lease, after a restart, gone from the bus', () => {
    const config = devicePool('lab', { agents: 'per-device' });
    open(config);
    host.sees(cards);
    expect(seen(config)).toEqual({ devices: { ready: 4, wanted: 4 }, quarantined: [] });
    host.quarantine.putByHand(host.registry.find('1'), 'fan');
    expect(seen(config)).toEqual(missesOne);
    host.boot();
    host.sees(cards);
    expect(seen(config)).toEqual(missesOne);
    host.boot();
    host.sees([gpu(0), gpu(2), gpu(3)]);
    expect(seen(config)).toEqual(missesOne);
  });

  test('of a pool that never had it is told too', () => {
    const config = devicePool('lab', { agents: 'per-device' });
    open();
    host.sees(cards);
    host.quarantine.putByHand(host.registry.find('1'), 'fan');
    const known = host.store.devices.all();
    open(config);
    for (const one of known) host.store.devices.save(one);
    host.boot();
    host.sees(cards);
    expect(host.registry.partition.slots).toHaveLength(3);
    expect(seen(config)).toEqual(missesOne);
  });

  test('of a pool with a number of agents is named as what it lacks; one that another pool or nobody asks for is not', () => {
    const [config, other] = [devicePool('lab', { agents: 4 }), devicePool('other', { agents: 0, standby: false })];
    open(config, other);
    host.sees(cards);
    host.quarantine.putByHand(host.registry.find('1'), 'fan');
    expect(seen(config)).toEqual(missesOne);
    const nvlink = devicePool('big', { devices: { ...config.devices, model: 'none such' } });
    open(nvlink);
    host.sees(cards);
    host.quarantine.putByHand(host.registry.find('1'), 'fan');
    expect(seen(nvlink).quarantined).toEqual([]);
  });
});

test('a pool shows what keeps it from having agents, and no other pool does', () => {
  const about = { kind: 'no devices', service: null, text: 'It has no device: none fits.', hint: null, patience: null } as const;
  conditionsNow = [
    { ...about, pool: 'other' },
    { ...about, pool: 'lab' },
  ];
  expect(poolView()?.problems).toEqual(['has no device: none fits']);
  expect(poolView()?.problemCodes).toEqual(['no-devices']);
  conditionsNow = [];
  expect(poolView()).not.toHaveProperty('problems');
});

describe('plan', () => {
  test('says what keeps a slot from its devices', () => {
    host.seesHeld([gpu(0)], { 'GPU-0000': held });
    expect(planLines(parts(loop().reconciler))).toEqual([
      { slot: 'lab/1', intent: 'nothing yet', because: held },
      { slot: 'lab/2', intent: 'nothing yet', because: 'no device is free for it' },
    ]);
  });

  test('says why a standby goes', () => {
    host.sees([gpu(0), gpu(1)]);
    host.runs('lab/1', 'a1');
    host.reservations.reserve(host.registry.find('0'), { by: 'bob', for: null });
    const [line] = planLines(parts(loop(devicePool('lab'), { kind: 'discard' }).reconciler));
    expect(line).toEqual({ slot: 'lab/1', intent: 'remove the standby', because: 'GPU-0000 is reserved by bob' });
  });
});

describe('why a job waits', () => {
  test('for devices, when no free slot can have its own', () => {
    host.seesHeld([gpu(0), gpu(1)], { 'GPU-0000': held, 'GPU-0001': held });
    expect(why()).toBe(held);
    host.seesHeld([gpu(0), gpu(1)], { 'GPU-0000': held });
    expect(why()).toBeNull();
    host.runs('lab/2', 'a2');
    expect(why()).toBe(`lab/1: ${held}`);
    host.runs('lab/1', 'a1');
    expect(why()).toBeNull();
  });

  test('each reason once, with its slots; many are counted', () => {
    const config = devicePool('lab', { agents: 6 });
    open(config);
    host.seesHeld([gpu(0)], { 'GPU-0000': held });
    expect(why(config)).toBe(`lab/1: ${held}; 5 slots: no device is free for it`);
  });

  test('of a pool with a slot for each device on a host without any', () => {
    const config = devicePool('lab', { agents: 'per-device' });
    open(config);
    expect(why(config)).toBe('the GPUs of this host have not been checked yet');
    host.sees([]);
    expect(why(config)).toBe('this host has no devices');
  });

  test('of a pool without agents', () => {
    expect(why(devicePool('lab', { agents: 0 }))).toBe('pool lab has no agents');
  });

  test('a job waits for the agent that is being prepared, unless all agents are busy', () => {
    const pool = devicePool('lab', { agents: 1 });
    host.sees([gpu(0)]);
    const empty = emptySlot({ key: 'lab/1', runtime: 'sim', grace: 0 });
    const preparing: Slot = { ...empty, standby: { kind: 'preparing', agent: 'a2', reserved: null, since: 0 } };
    host.slots = [preparing];
    expect(why(pool)).toBe('the next agent is being prepared');
    expect(why(pool, 'cannot reach the Engine')).toBe('cannot reach the Engine');
    host.slots = [{ ...preparing, agent: { kind: 'proving', agent: 'a1', since: 0 } }];
    expect(why(pool)).toBeNull();
  });

  test('for its runtime rather than for devices', () => {
    host.sees([]);
    expect(why(undefined, 'Docker Engine cannot be reached')).toBe('Docker Engine cannot be reached');
    expect(why()).toBe('this host has no devices');
  });
});

describe('doctor', () => {
  const findings = () => deviceFindings(host.devices);

  test('all well', () => {
    expect(findings()).toEqual([]);
    host.sees([gpu(0), gpu(1)]);
    expect(findings()).toEqual([
      { level: 'ok', subject: 'GPUs', message: '2 in use by onejob, none out of service.', hint: null, code: 'devices' },
    ]);
  });

  test('a person who has a device is not a finding', () => {
    host.seesHeld([gpu(0), gpu(1)], { 'GPU-0000': held });
    host.reservations.reserve(host.registry.find('1'), { by: 'bob', for: null });
    expect(findings()).toMatchObject([{ level: 'ok' }]);
  });

  test('missing, in quarantine, too few', () => {
    host.sees([gpu(0), gpu(1)]);
    host.sees([gpu(1)]);
    host.quarantine.putByHand(host.registry.find('GPU-0001'), 'the fan is loud.');
    expect(findings()).toEqual([
      {
        level: 'error',
        subject: 'GPU-0001',
        message: 'In quarantine: the fan is loud. Slot lab/2 has no other.',
        hint: 'Type "onejob gpus clear GPU-0001" when it may be used again.',
        code: 'device-quarantined',
      },
      {
        level: 'error',
        subject: 'GPU-0000',
        message: 'Absent since 12:00; it was at PCI 0000:00:00.0. Slot lab/1 waits for it.',
        hint: 'Type "dmesg | grep 0000:00:00" as root to see what the kernel says of it. Reboot the host; if that does not help, reseat the card. If it will not come back, type "onejob gpus forget GPU-0000".',
        code: 'device-missing',
      },
    ]);
    host.quarantine.clearByHand(host.registry.find('GPU-0001'));
    host.registry.forget(host.registry.find('GPU-0000'));
    expect(findings()).toEqual([
      {
        level: 'warning',
        subject: 'pool lab',
        message: 'It wants 2 agents, but this host has free devices that fit for 1.',
        hint: 'See "onejob gpus", and set "agents: 1" or other "devices" in the config.',
        code: 'devices-short',
      },
    ]);
  });

  test('what a half look does not list is unknown, no more', () => {
    host.sees([gpu(0), gpu(1)]);
    host.boot();
    host.sees([gpu(1)], false);
    expect(findings()).toEqual([
      {
        level: 'warning',
        subject: 'GPU-0000',
        message: 'The state of GPU-0000 is unknown: the last check failed.',
        hint: null,
        code: 'device-unknown',
      },
    ]);
  });

  test('what is wrong with all GPUs is said once, not as a pause that somebody could end', () => {
    host.sees([gpu(0), gpu(1)]);
    host.fault = 'Reboot needed. The driver was upgraded under its module.';
    const { pool, reconciler } = loop();
    pool.pause.hold('devices', host.fault);
    expect(poolFindings(reconciler, host.fault)).toEqual([]);
    expect(findings()).toEqual([{ level: 'error', subject: 'GPUs', message: host.fault, hint: null, code: 'gpus-fault' }]);
  });
});

describe('a pool whose agents must be online to be given a job', () => {
  const idle: Slot['agent'] = { kind: 'idle', agent: 'a1', fingerprint: 'f', online: false, since: 0 };

  function early(agent: Slot['agent'], intent: Intent | null = null, standby: Slot['standby'] = { kind: 'none' }) {
    const service = { jobs: null, capabilities: { binds: 'early' } };
    const pool = poolLike(devicePool('lab', { devices: cpus }), { service, runtime });
    const slot = { ...emptySlot({ key: 'lab/1', runtime: 'sim', grace: 0 }), agent, standby };
    const pause = new Pause();
    const reconciler = { pools: [pool], slots: [slot], poolOf: () => pool, pause, intentOf: () => intent, stopping: false };
    return { pool, parts: { ...parts(reconciler as unknown as Reconciler), deviceManager: null } };
  }
  const cpus = { ...devicePool('lab').devices, count: 0 };
  const waiting: Slot['standby'] = { kind: 'standby', agent: 's1', reserved: null, fingerprint: 'f', since: 0 };
  const line = (found: ReturnType<typeof early>) => planLines(found.parts)[0];

  test('plan says that an agent is registered so that it can be given a job', () => {
    expect(line(early({ kind: 'free' }, { kind: 'engage' }, waiting))).toEqual({
      slot: 'lab/1',
      intent: 'register an agent',
      because: 'the slot is free, and its CI service gives jobs only to agents that are online',
    });
  });

  test('plan says why an idle agent is to end', () => {
    const ending: Intent = { kind: 'retire', agent: 'a1' };
    expect(line(early(idle, ending))).toMatchObject({
      intent: 'end the idle agent',
      because: 'it no longer matches the config, or is too old',
    });
    const paused = early(idle, ending);
    paused.pool.pause.hold('alice', 'by alice', { closes: true });
    expect(line(paused)?.because).toBe('paused by alice');
    const drained = early(idle, ending);
    drained.pool.draining = true;
    expect(line(drained)?.because).toBe('the pool drains');
  });

  test('plan says what keeps a standby from being registered', () => {
    const held = early({ kind: 'free' }, null, waiting);
    expect(planLines(held.parts)).toEqual([]);
    held.pool.pause.hold('service', 'the token was refused');
    expect(line(held)).toEqual({ slot: 'lab/1', intent: 'nothing yet', because: 'nothing new starts: the token was refused' });
  });

  test('status says that what does not work keeps a pool from starting anything, but not of people and of the beginning', () => {
    const held = early({ kind: 'free' });
    const outage = () => poolViews(held.parts)[0]?.outage;
    held.pool.pause.hold('person:alice', 'by alice');
    held.pool.pause.hold('look', 'the GPUs of this host have not been checked yet');
    held.parts.reconciler.pause.hold('starting', 'onejob is starting');
    expect(outage()).toBeUndefined();
    held.pool.pause.hold('service', 'The service cannot be reached');
    expect(outage()).toBe(true);
    held.pool.pause.release('service');
    held.pool.away = 'no Engine answers';
    expect(outage()).toBe(true);
  });

  test('status tells what a job is, and whether an agent is online', () => {
    const about = { ...nothing, title: 'app-ci #7 build' };
    const busy = early({ kind: 'busy', agent: 'a1', job: 'azure-7', since: 0, due: null });
    const agentOf = (found: ReturnType<typeof early>) =>
      poolViews({ ...found.parts, about: (job) => (job === 'azure-7' ? about : null) })[0]?.slots[0]?.agent;
    expect(agentOf(busy)).toMatchObject({ job: 'azure-7', about, online: null });
    expect(agentOf(early(idle))).toMatchObject({ state: 'idle', about: null, online: false });
    expect(agentOf(early({ ...idle, online: true }))).toMatchObject({ state: 'idle', online: true });
  });
});

const nothing = { definition: null, build: null, repository: null, branch: null, reason: null, link: null, demands: [] };

test('a pool that left the config is shown until its slots are empty', () => {
  const config = devicePool('lab');
  const { pool, reconciler } = loop(config);
  Object.assign(pool, { leaving: true });
  expect(poolViews(parts(reconciler))).toEqual([]);
  expect(planLines(parts(reconciler))).toEqual([]);
  const [slot] = reconciler.slots;
  const busy = { ...slot, agent: { kind: 'busy', agent: 'a1', job: 'j1', since: 0, due: null } } as Slot;
  const still = { ...reconciler, slots: [busy], pools: [pool], poolOf: () => pool } as unknown as Reconciler;
  expect(poolViews(parts(still))).toMatchObject([{ name: 'lab', leaving: true, slots: [{ agent: { state: 'busy' } }] }]);
});
