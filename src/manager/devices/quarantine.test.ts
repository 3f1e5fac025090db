import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { clean, DeviceHost, dirty, occupied, unknown } from '../../../test/support/device-host.ts';
import { gpu } from '../../../test/support/devices.ts';
import type { ProofVerdict } from '../../gpu/proof.ts';
import { Quarantine } from './quarantine.ts';

let host: DeviceHost;
beforeEach(() => {
  host = new DeviceHost();
  host.sees([gpu(0), gpu(1), gpu(2)]);
});
afterEach(() => host[Symbol.dispose]());

const minute = 60_000;
const noMark = { seq: null, at: null };
const fault = { ...dirty, remedy: 'look' } as Extract<ProofVerdict, { kind: 'dirty' }>;
const state = () => host.registry.stateOf('GPU-0000');
const put = (verdict = fault) => host.quarantine.put('GPU-0000', verdict, noMark);

describe('a device that a look may show to be well', () => {
  test('is out alone, its slot moves, and it is back once it is found clean', async () => {
    put();
    expect(state()).toBe('quarantined');
    expect(host.registry.slotOf('GPU-0002')).toBe('lab/1');
    await host.advance(minute);
    expect(host.looks).toEqual(['GPU-0000']);
    expect(state()).toBe('free');
  });

  test('is tried again after a minute, then after twice as long each time, an hour at most', async () => {
    host.verdict = () => fault;
    put();
    const times: number[] = [];
    for (let n = 1; n <= 9; n++) {
      const began = host.now;
      for (const before = host.looks.length; host.looks.length === before; ) await host.advance(minute);
      times.push((host.now - began) / minute);
    }
    expect(times).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
  });

  test('that is not visible is not at fault: it is tried again as soon as before', async () => {
    host.verdict = () => unknown;
    put();
    await host.advance(5 * minute);
    expect(host.looks).toHaveLength(5);
    host.verdict = () => new Error('the tool hangs');
    await host.advance(5 * minute);
    expect(host.looks).toHaveLength(10);
    host.verdict = () => clean;
    await host.advance(minute);
    expect(state()).toBe('free');
  });

  test('stays while a person is on it, whose work hides what was wrong', async () => {
    host.verdict = () => occupied;
    put();
    await host.advance(minute);
    expect(state()).toBe('quarantined');
    host.verdict = () => clean;
    await host.advance(minute);
    expect(host.registry.known.get('GPU-0000')?.quarantine).toBeNull();
  });

  test('stays out over a restart, and its turn comes when it would have come', async () => {
    put();
    await host.advance(minute / 2);
    host.quarantine.close();
    host.boot();
    host.sees([gpu(0), gpu(1), gpu(2)]);
    host.quarantine.start();
    expect(state()).toBe('quarantined');
    await host.advance(minute / 2);
    expect(state()).toBe('free');
  });
});

describe('a device that takes more than a look', () => {
  test.each(['reset', 'reboot'] as const)('waits for a %s: after another boot it is looked at at once', async (remedy) => {
    put({ ...fault, remedy });
    await host.advance(24 * 60 * minute);
    expect(host.looks).toEqual([]);
    rebooted();
    await host.advance(0);
    expect(state()).toBe('free');
  });

  test.each(['replace', 'person'] as const)('waits for a person (%s), whatever is booted', async (remedy) => {
    if (remedy === 'person') host.quarantine.putByHand(host.registry.find('0'), 'it smells');
    else put({ ...fault, remedy });
    rebooted();
    await host.advance(24 * 60 * minute);
    expect(host.looks).toEqual([]);
    host.quarantine.clearByHand(host.registry.find('0'));
    expect(state()).toBe('free');
  });
});

test('another boot is worth a look before its turn', async () => {
  put();
  rebooted();
  await host.advance(0);
  expect(state()).toBe('free');
});

test('a device whose proof a stop cut short is not used before the next manager has looked at it', async () => {
  host.quarantine.putOff('GPU-0000');
  expect(state()).toBe('quarantined');
  await host.advance(10 * minute);
  expect(host.looks).toEqual([]);
  host.boot();
  host.sees([gpu(0), gpu(1), gpu(2)]);
  expect(state()).toBe('quarantined');
  host.quarantine.start();
  await host.advance(0);
  expect(host.looks).toEqual(['GPU-0000']);
  expect(state()).toBe('free');
});

/** The same devices under a manager that starts in another boot. */
function rebooted(): void {
  host.quarantine.close();
  const { registry, clock } = host;
  const recheck = async (uuid: string) => {
    host.looks.push(uuid);
    return { verdict: clean, mark: noMark };
  };
  const log = { info() {}, warn() {}, error() {} };
  host.quarantine = new Quarantine({ clock, log, registry, bootId: 'another boot', recheck, repair: () => {} });
  host.quarantine.start();
}
