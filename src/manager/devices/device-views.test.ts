import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { DeviceHost, devicePool, dirty } from '../../../test/support/device-host.ts';
import { gpu, instance } from '../../../test/support/devices.ts';
import type { DeviceView } from '../../contract/schema.ts';
import type { ProofVerdict } from '../../gpu/proof.ts';
import { noDevices } from '../manager.ts';
import { createDeviceRequests, missingDevices, poolDevices } from './device-views.ts';

let host: DeviceHost;
let ask: ReturnType<typeof createDeviceRequests>;
beforeEach(() => {
  host = new DeviceHost();
  open();
});
afterEach(() => host[Symbol.dispose]());

function open(): void {
  ask = createDeviceRequests(host.devices, host.clock);
}

const hour = 3_600_000;
const cards = [gpu(0), gpu(1), gpu(2)];
const view = (uuid: string): DeviceView | undefined => ask.devices().find((one) => one.uuid === uuid);
const states = () =>
  Object.fromEntries(ask.devices().map(({ uuid, state, slot }) => [uuid, slot === null ? state : `${state} ${slot}`]));
const reserve = (name: string, by: string | null = 'alice', time: number | null = null) =>
  ask.changeDevice(name, { act: 'reserve', for: time, by });

describe('devices as they are', () => {
  test('those that are there, whose they are, and who is on them', () => {
    host.sees(cards);
    host.runs('lab/2', 'a7');
    expect(states()).toEqual({ 'GPU-0000': 'leased lab/1', 'GPU-0001': 'leased lab/2', 'GPU-0002': 'free' });
    expect(view('GPU-0001')).toEqual({
      uuid: 'GPU-0001',
      kind: 'gpu',
      model: 'NVIDIA A100-SXM4-40GB',
      pciId: '0000:01:00.0',
      index: 1,
      memoryMiB: 40_960,
      profile: null,
      parent: null,
      state: 'leased',
      slot: 'lab/2',
      agents: ['a7'],
      why: null,
      since: null,
      until: null,
      retryAt: null,
      hint: null,
      use: {
        memoryUsedMiB: 0,
        utilization: null,
        temperature: null,
        powerW: null,
        smClockMHz: null,
        memoryClockMHz: null,
        throttled: null,
        at: host.wall,
      },
    });
  });

  test('how much of them is in use, once somebody has asked', async () => {
    const there = gpu(0, { uuid: 'GPU-5eed0000-0000-4000-8000-000000000000' });
    host.sees([there]);
    ask.devices();
    host.usePrinted = `${there.uuid}, 512, 80, 44, 120.5, 1410, 1215, 0x0\n`;
    await host.advance(1_000);
    const sample = {
      memoryUsedMiB: 512,
      utilization: 80,
      temperature: 44,
      powerW: 120.5,
      smClockMHz: 1410,
      memoryClockMHz: 1215,
      throttled: [],
      at: host.wall,
    };
    expect(view(there.uuid)?.use).toEqual(sample);
    expect(ask.deviceUse('0', host.wall)).toEqual([sample]);
    expect(ask.deviceUse('GPU-5eed', 0)).toHaveLength(2);
    host.sees([]);
    expect(view(there.uuid)?.use).toBeNull();
  });

  test('one that a person is on', () => {
    host.seesHeld(cards, { 'GPU-0000': 'held by alice: python, 9.2 GiB, since 11:02' });
    expect(view('GPU-0000')).toMatchObject({
      state: 'occupied',
      slot: 'lab/1',
      why: 'held by alice: python, 9.2 GiB, since 11:02',
    });
  });

  const gone = 'GPU-0000 absent since 12:00; it was at PCI 0000:00:00.0';

  test('one that was leased and is gone, since when, from where, and what to type; one that never was leased is not missed', () => {
    host.sees(cards);
    host.now += 60_000;
    host.wall += 60_000;
    host.sees([gpu(1)]);
    expect(states()).toEqual({ 'GPU-0001': 'leased lab/2', 'GPU-0000': 'missing lab/1' });
    expect(view('GPU-0000')).toMatchObject({
      index: null,
      why: gone,
      since: host.wall - 60_000,
      hint: 'Type "dmesg | grep 0000:00:00" as root to see what the kernel says of it. Reboot the host; if that does not help, reseat the card. If it will not come back, type "onejob gpus forget GPU-0000".',
    });
    expect(missingDevices(host.registry)).toEqual([{ uuid: 'GPU-0000', slot: 'lab/1', why: gone }]);
    expect(poolDevices(host.registry, devicePool('lab'))).toEqual({ ready: 1, wanted: 2 });
  });

  test('after a reboot without its MIG layout', () => {
    host[Symbol.dispose]();
    host = new DeviceHost({ pools: [devicePool('lab', { devices: { ...devicePool('x').devices, mig: true } })] });
    open();
    const card = gpu(0, { mig: { mode: 'enabled', pending: null } });
    host.sees([card, instance(1, card), instance(2, card)]);
    expect(states()).toEqual({ 'GPU-0000': 'leased', 'MIG-0001': 'leased lab/1', 'MIG-0002': 'leased lab/2' });
    expect(view('GPU-0000')).toMatchObject({ why: 'it is in MIG mode, so jobs get its instances' });
    host.wall += hour;
    host.now = 10_000;
    host.boot();
    open();
    host.sees([card, instance(1, card)]);
    expect(view('MIG-0002')).toMatchObject({
      kind: 'mig',
      profile: '1g.5gb',
      parent: 'GPU-0000',
      state: 'missing',
      why: 'MIG-0002 absent since boot; layout not restored?',
      hint: 'Create the MIG instances again as they were. If it will not come back, type "onejob gpus forget MIG-0002".',
    });
  });

  test('what a look did not list that did not see all is unknown, not missing', () => {
    host.sees(cards);
    host.boot();
    open();
    expect(view('GPU-0000')).toMatchObject({ state: 'unknown' });
    host.sees([gpu(1)], false);
    expect(view('GPU-0000')).toMatchObject({
      state: 'unknown',
      why: 'the state of GPU-0000 is unknown: the last check failed',
    });
    expect(missingDevices(host.registry)).toEqual([]);
    expect(poolDevices(host.registry, devicePool('lab'))).toBeNull();
  });

  test('instances of a card that is out of use say why', () => {
    const card = gpu(0, { mig: { mode: 'enabled', pending: null } });
    host.sees([card, instance(1, card), instance(2, card)]);
    ask.changeDevice('0', { act: 'quarantine', reason: 'fan' });
    expect(view('MIG-0001')).toMatchObject({
      state: 'quarantined',
      why: 'GPU-0000 is in quarantine: fan',
      since: host.wall,
      hint: 'Type "onejob gpus clear GPU-0000" when it may be used again.',
    });
  });

  test('a pool that asks for more than there is', () => {
    host.sees([gpu(0)]);
    expect(poolDevices(host.registry, devicePool('lab'))).toEqual({ ready: 1, wanted: 2 });
    expect(missingDevices(host.registry)).toEqual([]);
    expect(poolDevices(host.registry, devicePool('lab/1 (leaving)'))).toBeNull();
  });
});

describe('what a person wants', () => {
  beforeEach(() => host.sees(cards));

  test.each(['0', '0000:00:00.0', 'GPU-0000', 'gpu-0000'])('a device is named %s', (name) => {
    expect(reserve(name).uuid).toBe('GPU-0000');
  });

  test.each([
    ['9', 'There is no device "9".'],
    ['GPU-', '"GPU-" could be GPU-0000 or GPU-0001 or GPU-0002.'],
    ['G', 'There is no device "G".'],
  ])('%s is not a name of one device', (name, message) => {
    expect(() => reserve(name)).toThrow(expect.objectContaining({ code: 'E_DEVICE_UNKNOWN', message }));
  });

  test('reserved for a time: the answer says until when, and which job is still on it', () => {
    host.runs('lab/1', 'a7');
    const { changed, device } = reserve('0', 'alice', 4 * hour);
    expect(changed).toBe(true);
    expect(device).toMatchObject({
      state: 'reserved',
      slot: 'lab/1',
      agents: ['a7'],
      why: 'GPU-0000 is reserved by alice until 16:00',
      since: host.wall,
      until: host.wall + 4 * hour,
      hint: 'Type "onejob gpus return GPU-0000" to give it back.',
    });
  });

  test('only the holder can change a reservation, and its parts cannot be reserved by others', () => {
    const card = gpu(0, { mig: { mode: 'enabled', pending: null } });
    host.sees([card, instance(1, card), gpu(1)]);
    reserve('0', 'alice', 4 * hour);
    expect(() => reserve('0', 'bob')).toThrow(
      expect.objectContaining({
        code: 'E_DEVICE_IN_USE',
        message: 'Cannot reserve GPU-0000: GPU-0000 is reserved by alice until 16:00.',
        hint: 'Ask the holder, or type "onejob gpus return GPU-0000".',
      }),
    );
    expect(() => reserve('MIG-0001', 'bob')).toThrow(expect.objectContaining({ code: 'E_DEVICE_IN_USE' }));
    expect(reserve('0').device).toMatchObject({ until: null });
    host.verdict = () => new Error('the tool hangs');
    ask.changeDevice('0', { act: 'return' });
    expect(reserve('0', 'bob').device).toMatchObject({ why: 'GPU-0000 is reserved by bob' });
  });

  test('one that is not there cannot be reserved', () => {
    host.sees([gpu(1), gpu(2)]);
    expect(() => reserve('GPU-0000')).toThrow(expect.objectContaining({ code: 'E_DEVICE_UNKNOWN' }));
  });

  test('given back: at once for those that ask, and free after a look', async () => {
    reserve('0');
    expect(ask.changeDevice('0', { act: 'return' })).toMatchObject({ changed: true, device: { state: 'reserved' } });
    await host.advance(0);
    expect(view('GPU-0000')).toMatchObject({ state: 'free', until: null });
    expect(ask.changeDevice('0', { act: 'return' }).changed).toBe(false);
  });

  test('quarantine by hand stays until it is cleared by hand', async () => {
    const { device } = ask.changeDevice('1', { act: 'quarantine', reason: 'fan is loud' });
    expect(device).toMatchObject({ state: 'quarantined', why: 'GPU-0001 is in quarantine: fan is loud', retryAt: null });
    await host.advance(1_000 * hour);
    expect(host.looks).toEqual([]);
    expect(ask.changeDevice('1', { act: 'clear' })).toMatchObject({ changed: true, device: { state: 'free', hint: null } });
    expect(ask.changeDevice('1', { act: 'clear' }).changed).toBe(false);
  });

  const failed = gpu(0, {
    health: {
      state: 'failed',
      reasons: ['needs "GPU Reset", according to its driver'],
      uncorrectedErrors: 1,
      recoveryAction: 'GPU Reset',
    },
  });
  const errors = {
    ...dirty,
    message: '1 uncorrected memory error on GPU-0000 since the agent started.',
    remedy: 'reset',
    hint: 'Reset it.',
  } as Extract<ProofVerdict, { kind: 'dirty' }>;

  test('one that waits for a reset names itself once, and says when its driver has no complaint any more', () => {
    host.sees([failed, gpu(1), gpu(2)]);
    host.quarantine.put('GPU-0000', errors, { seq: null, at: null });
    expect(view('GPU-0000')).toMatchObject({
      why: 'GPU-0000 is in quarantine: 1 uncorrected memory error on this device since the agent started.',
      hint: 'Reset it.',
    });
    host.sees(cards);
    expect(view('GPU-0000')?.hint).toBe(
      'Its driver reports no fault now. If it has been reset since, type "onejob gpus clear GPU-0000". If not, reset it.',
    );
  });

  test('cleared without a reset: it says that the next look puts it back, after a look of its own', async () => {
    host.quarantine.put('GPU-0000', errors, { seq: null, at: null });
    host.nextLook = [failed, gpu(1), gpu(2)];
    expect(await ask.clearDevice('0')).toMatchObject({
      changed: true,
      device: {
        why: 'it needs "GPU Reset", according to its driver: the next look puts it back into quarantine',
      },
    });
    host.quarantine.put('GPU-0000', errors, { seq: null, at: null });
    host.nextLook = cards;
    expect(await ask.clearDevice('0')).toMatchObject({ changed: true, device: { why: null } });
    // A tool that does not answer keeps nobody from it.
    host.quarantine.put('GPU-0000', errors, { seq: null, at: null });
    host.nextLook = new Error('the tool hangs');
    expect(await ask.clearDevice('0')).toMatchObject({ changed: true, device: { why: null } });
    expect(await ask.clearDevice('0')).toMatchObject({ changed: false });
  });

  test('forgotten: one that is gone is missed no more, and one that is there is not forgotten', () => {
    host.sees([gpu(1), gpu(2)]);
    expect(ask.changeDevice('GPU-0000', { act: 'forget' })).toEqual({ uuid: 'GPU-0000', changed: true, device: null });
    expect(missingDevices(host.registry)).toEqual([]);
    expect(states()).toEqual({ 'GPU-0001': 'leased lab/2', 'GPU-0002': 'leased lab/1' });
    ask.changeDevice('2', { act: 'quarantine', reason: 'fan' });
    expect(() => ask.changeDevice('2', { act: 'forget' })).toThrow(expect.objectContaining({ code: 'E_DEVICE_IN_USE' }));
    expect(states()).toMatchObject({ 'GPU-0002': expect.stringContaining('quarantined') });
  });

  test('one that a job is on is not forgotten', () => {
    host.runs('lab/1', 'a7');
    expect(() => ask.changeDevice('0', { act: 'forget' })).toThrow(expect.objectContaining({ code: 'E_DEVICE_IN_USE' }));
  });

  test('proofs, the newest first, of all devices or of one by any of its names', () => {
    for (const [device, at] of [['GPU-0000', 1] as const, ['GPU-0001', 2] as const, ['GPU-0000', 3] as const]) {
      host.store.proofs.add({ device, slot: 'lab/1', agent: 'a', verdict: 'clean', evidence: {}, took: 300, at });
    }
    expect(ask.proofs({ device: null, limit: 2 }).map(({ at }) => at)).toEqual([3, 2]);
    expect(ask.proofs({ device: '0', limit: 9 }).map(({ at }) => at)).toEqual([3, 1]);
    expect(() => ask.proofs({ device: 'no', limit: 9 })).toThrow(expect.objectContaining({ code: 'E_DEVICE_UNKNOWN' }));
  });
});

test('where no pool has devices the lists are empty, and every request about one device says so', () => {
  expect([noDevices.devices(), noDevices.proofs({ device: null, limit: 1 })]).toEqual([[], []]);
  for (const act of [
    () => noDevices.deviceUse('0', 0),
    () => noDevices.changeDevice('0', { act: 'return' }),
    () => noDevices.proofs({ device: '0', limit: 1 }),
  ]) {
    expect(act).toThrow(
      expect.objectContaining({
        code: 'E_DEVICE_UNKNOWN',
        message: 'No pool of this daemon has devices, so it manages none.',
      }),
    );
  }
});
