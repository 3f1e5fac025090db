import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { clean, DeviceHost, dirty, occupied, unknown, waiting } from '../../../test/support/device-host.ts';
import { gpu, instance } from '../../../test/support/devices.ts';

let host: DeviceHost;
beforeEach(() => {
  host = new DeviceHost();
  host.sees([gpu(0), gpu(1), gpu(2)]);
});
afterEach(() => host[Symbol.dispose]());

const hour = 3_600_000;
const device = (name = '0') => host.registry.find(name);
const reserved = (name = '0') => device(name).reserved;
const reserve = (time: number | null, name = '0') => host.reservations.reserve(device(name), { by: 'alice', for: time });
const giveBack = async () => {
  host.reservations.giveBack(device());
  await host.advance(0);
};

describe('reserving', () => {
  test('no job gets the device, and its slot moves to a free one', () => {
    expect(host.registry.slotOf('GPU-0000')).toBe('lab/1');
    reserve(null);
    expect(host.registry.stateOf('GPU-0000')).toBe('reserved');
    expect(host.registry.slotOf('GPU-0000')).toBeNull();
    expect(host.registry.slotOf('GPU-0002')).toBe('lab/1');
    expect(host.registry.slotDevices.heldBack('lab/1')).toBeNull();
  });

  test('where no other is free the slot waits, and says for whom and until when', () => {
    host.sees([gpu(0), gpu(1)]);
    reserve(4 * hour);
    expect(host.registry.slotDevices.of('lab/1')).toBeNull();
    expect(host.registry.slotDevices.heldBack('lab/1')).toBe('GPU-0000 is reserved by alice until 16:00');
  });

  test('the job that runs on it continues, and its slot keeps the device until then', () => {
    host.runs('lab/1', 'a1');
    reserve(null);
    expect(host.registry.slotOf('GPU-0000')).toBe('lab/1');
    expect(host.slots[0]?.agent.kind).toBe('busy');
  });

  test('a card in MIG mode is taken with its instances', () => {
    const card = gpu(0, { mig: { mode: 'enabled', pending: null } });
    host.sees([card, instance(1, card), instance(2, card), gpu(1)]);
    reserve(null);
    expect(host.registry.partition.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid))).toEqual(['GPU-0001']);
  });
});

describe('its end', () => {
  test('comes by itself, after a look that finds the device clean', async () => {
    reserve(4 * hour);
    await host.advance(4 * hour - 1);
    expect(reserved()).toMatchObject({ by: 'alice' });
    expect(host.looks).toEqual([]);
    await host.advance(1);
    expect(reserved()).toBeNull();
    expect(host.looks).toEqual(['GPU-0000']);
    expect(host.registry.stateOf('GPU-0000')).toBe('free');
  });

  test('survives a restart, and comes at once when it was due meanwhile', async () => {
    reserve(4 * hour);
    host.boot();
    host.sees([gpu(0), gpu(1), gpu(2)]);
    host.reservations.start();
    await host.advance(4 * hour - 1);
    expect(reserved()).not.toBeNull();
    host.boot();
    host.wall += 10_000;
    host.sees([gpu(0), gpu(1), gpu(2)]);
    host.reservations.start();
    expect(host.registry.slotOf('GPU-0000')).toBeNull();
    await host.advance(0);
    expect(reserved()).toBeNull();
  });

  test('is put off by reserving again, and called off by a reservation without an end', async () => {
    reserve(hour);
    await host.advance(hour / 2);
    const since = reserved()?.since;
    reserve(hour);
    await host.advance(hour - 1);
    expect(reserved()).toMatchObject({ since });
    reserve(null);
    await host.advance(100 * hour);
    expect(reserved()).toMatchObject({ until: null });
  });

  test('does not come early when the wall clock is set back', async () => {
    reserve(2 * hour);
    host.wall -= 5 * hour;
    await host.advance(2 * hour + 1);
    expect(reserved()).not.toBeNull();
    await host.advance(5 * hour);
    expect(reserved()).toBeNull();
  });

  test('comes within the hour when the wall clock was set forward', async () => {
    reserve(10 * hour);
    host.wall += 12 * hour;
    await host.advance(hour);
    expect(reserved()).toBeNull();
  });
});

describe('giving back', () => {
  test('needs a look: until then no job gets it', async () => {
    reserve(null);
    host.verdict = () => unknown;
    await giveBack();
    expect(host.registry.whyNot('GPU-0000')).toBe('GPU-0000 was given back, and is checked before a job gets it');
    expect(host.registry.slotOf('GPU-0000')).toBeNull();
    host.verdict = () => clean;
    await host.advance(5_000);
    expect(reserved()).toBeNull();
  });

  test('a device that is not clean goes to quarantine, alone', async () => {
    reserve(null);
    host.verdict = () => dirty;
    await giveBack();
    expect(reserved()).toBeNull();
    expect(device().quarantine).toMatchObject({ reason: '2 errors.', remedy: 'reset' });
    expect(host.registry.stateOf('GPU-0001')).toBe('leased');
  });

  test("what of the person's own still runs is not a fault: the device is given back once that has ended", async () => {
    reserve(null);
    host.verdict = () => occupied;
    await giveBack();
    await host.advance(600_000);
    expect(reserved()).not.toBeNull();
    host.verdict = () => clean;
    await host.advance(5_000);
    expect(reserved()).toBeNull();
    expect(device().quarantine).toBeNull();
  });

  test('leftovers get a minute to leave', async () => {
    reserve(null);
    host.verdict = () => waiting;
    await giveBack();
    await host.advance(55_000);
    expect(reserved()).not.toBeNull();
    await host.advance(5_000);
    expect(reserved()).toBeNull();
    expect(device().quarantine).toMatchObject({ reason: 'python (pid 7) is still leaving.', remedy: 'look' });
  });

  test('a look that fails is made again', async () => {
    reserve(null);
    host.verdict = () => new Error('the tool hangs');
    await giveBack();
    await host.advance(60_000);
    expect(reserved()).not.toBeNull();
    host.verdict = () => clean;
    await host.advance(5_000);
    expect(reserved()).toBeNull();
  });

  test('while a job still runs on it, that job continues and its own proof decides', async () => {
    host.runs('lab/1', 'a1');
    reserve(null);
    host.verdict = () => dirty;
    await giveBack();
    expect(reserved()).toBeNull();
    expect(host.looks).toEqual([]);
    expect(device().quarantine).toBeNull();
  });

  test('one in quarantine stays there', async () => {
    reserve(null);
    host.quarantine.putByHand(device(), 'smells');
    await giveBack();
    expect(reserved()).toBeNull();
    expect(host.looks).toEqual([]);
    expect(host.registry.stateOf('GPU-0000')).toBe('quarantined');
  });

  test('a new reservation during the look wins', async () => {
    reserve(null);
    host.verdict = () => {
      reserve(hour);
      return clean;
    };
    host.reservations.giveBack(device());
    await host.advance(1);
    expect(reserved()).toMatchObject({ until: host.wall + hour - 1 });
    host.verdict = () => clean;
    await host.advance(hour);
    expect(reserved()).toBeNull();
  });

  test('of a device that is not reserved changes nothing', async () => {
    await giveBack();
    expect(host.looks).toEqual([]);
    expect(host.registry.slotOf('GPU-0000')).toBe('lab/1');
  });

  test('one that was forgotten meanwhile is left alone', async () => {
    reserve(hour);
    host.sees([gpu(1), gpu(2)]);
    host.registry.forget(device('GPU-0000'));
    await host.advance(hour);
    expect(host.looks).toEqual([]);
    expect(host.registry.known.get('GPU-0000')).toBeUndefined();
  });
});
