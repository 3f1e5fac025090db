import { describe, expect, test } from 'vitest';
import { gpu as card } from '../../../test/support/devices.ts';
import { OnejobError } from '../../base/errors.ts';
import type { Lease } from '../../core/lease.ts';
import type { Device } from '../../gpu/inventory.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { Store } from '../../store/store.ts';
import { KnownDevices } from './known-devices.ts';

const gpu = (uuid: string): Device => card(1, { uuid, index: 0, minor: 0, mig: null });

const lease = (key: string, ...uuids: string[]): Lease => ({
  key,
  pool: 'p',
  devices: uuids.map((uuid) => ({ uuid, parent: null })),
});

/** A store in memory that can be full. */
function disk() {
  const rows = new Map<string, KnownDevice>();
  const state = { full: null as Error | null, writes: 0, synced: 0 };
  const table = {
    all: () => [...rows.values()],
    save: (device: KnownDevice) => void rows.set(device.uuid, device),
    remove: (uuid: string) => void rows.delete(uuid),
  };
  const transaction = ({ durable }: { readonly durable: boolean }, change: () => void): void => {
    if (state.full !== null) throw state.full;
    state.writes += 1;
    if (durable) state.synced += 1;
    change();
  };
  const clock = { now: () => 0, wall: () => 1_000_000, after: () => () => {} };
  return { state, open: () => new KnownDevices({ clock, store: { devices: table, transaction } as unknown as Store }) };
}

describe('what slots have', () => {
  test('is what they had last: a card that a slot has given up is not its own after a restart, and stays known', () => {
    const { open } = disk();
    const known = open();
    known.updateSeen([gpu('GPU-a'), gpu('GPU-b')]);
    known.updateLeases([lease('p/1', 'GPU-a')]);
    expect(open().leases).toEqual([lease('p/1', 'GPU-a')]);
    known.updateLeases([lease('p/1', 'GPU-b')]);
    expect(open().leases).toEqual([lease('p/1', 'GPU-b')]);
    // It is missed when it is gone, since it was leased once.
    expect(open().get('GPU-a')).toMatchObject({ slot: 'p/1' });
  });

  test('is written once for a card that slots share', () => {
    const { state, open } = disk();
    const known = open();
    known.updateSeen([gpu('GPU-a')]);
    const both = [lease('p/1', 'GPU-a'), lease('p/2', 'GPU-a')];
    known.updateLeases(both);
    const { writes } = state;
    known.updateLeases(both);
    known.updateLeases(both.toReversed());
    expect(state.writes).toBe(writes);
  });
});

test('what people are told of a device survives a power cut, and what is only seen of it waits for no disk', () => {
  const { state, open } = disk();
  const known = open();
  known.updateSeen([gpu('GPU-a')]);
  known.updateLeases([lease('p/1', 'GPU-a')]);
  expect([state.writes, state.synced]).toEqual([2, 0]);
  const device = known.find('GPU-a', []);
  const quarantine = {
    reason: 'Xid 79',
    remedy: 'person',
    since: 0,
    boot: 'b',
    retryAt: null,
  } as unknown as KnownDevice['quarantine'];
  known.save([{ ...device, quarantine }]);
  expect(state.synced).toBe(1);
  known.save([{ ...device, quarantine, lastSeen: 1 }]);
  expect(state.synced).toBe(1);
  known.save([{ ...device, quarantine: null }]);
  expect(state.synced).toBe(2);
});

describe('a full disk', () => {
  const full = new OnejobError('E_STATE_FULL', 'no space left', { retry: true });

  test('does not stop looks and allocation; what could not be written is written later', () => {
    const { state, open } = disk();
    const known = open();
    known.updateSeen([gpu('GPU-a')]);
    state.full = full;
    known.updateSeen([gpu('GPU-a'), gpu('GPU-b')]);
    known.updateLeases([lease('p/1', 'GPU-a')]);
    expect(open().leases).toEqual([]);
    state.full = null;
    known.updateSeen([gpu('GPU-a'), gpu('GPU-b')]);
    known.updateLeases([lease('p/1', 'GPU-a')]);
    expect(open().leases).toEqual([lease('p/1', 'GPU-a')]);
    expect(open().get('GPU-b')).toBeDefined();
  });

  test('refuses what a person or a proof wants written down', () => {
    const { state, open } = disk();
    const known = open();
    known.updateSeen([gpu('GPU-a')]);
    state.full = full;
    expect(() => known.save(known.all)).toThrow('no space left');
    expect(() => known.remove('GPU-a')).toThrow('no space left');
    expect(known.get('GPU-a')).toBeDefined();
  });

  test('is not what a mistake of ours is taken for', () => {
    const { state, open } = disk();
    const known = open();
    state.full = new TypeError('a bug');
    expect(() => known.updateSeen([gpu('GPU-a')])).toThrow('a bug');
  });
});
