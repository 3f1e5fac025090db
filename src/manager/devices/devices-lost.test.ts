/** When an agent that waits for a job must give up its devices, and when it must not. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DeviceHost } from '../../../test/support/device-host.ts';
import { gpu } from '../../../test/support/devices.ts';

let host: DeviceHost;
beforeEach(() => {
  host = new DeviceHost({ agents: 1 });
  host.sees([gpu(0)]);
  host.runs('lab/1', 'a1');
});
afterEach(() => host[Symbol.dispose]());

const lost = () => host.registry.slotDevices.lost('lab/1');

test('a device of the slot that nothing else uses is not a reason', () => {
  expect(lost()).toBe(false);
});

test('one that a person has reserved is', () => {
  host.reservations.reserve(host.registry.find('0'), { by: 'alice', for: null });
  expect(lost()).toBe(true);
});

test('one that a person is on, is', () => {
  host.seesHeld([gpu(0)], { 'GPU-0000': 'held by alice' });
  expect(lost()).toBe(true);
});

test('one that is gone is, once a whole look says so', () => {
  host.sees([], false);
  expect(lost()).toBe(false);
  host.sees([]);
  expect(lost()).toBe(true);
});

test('a slot without a device says why, and whether all of them could be seen', () => {
  const slots = new DeviceHost({ agents: 2 });
  try {
    const why = () => slots.registry.slotDevices.heldBack('lab/2');
    expect(why()).toBe('the GPUs of this host have not been checked yet');
    slots.sees([gpu(0)]);
    expect(why()).toBe('no device is free for it');
    slots.sees([gpu(0)], false);
    expect(why()).toBe('no device is free for it, but not all could be read');
  } finally {
    slots[Symbol.dispose]();
  }
});
