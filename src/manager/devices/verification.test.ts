import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { noKernelLook } from '../../../test/kit/gpu.ts';
import { DeviceHost, dirty } from '../../../test/support/device-host.ts';
import { gpu } from '../../../test/support/devices.ts';
import type { Slot } from '../../core/slot.ts';
import { type Device, type Inventory, noGpus } from '../../gpu/inventory.ts';
import type { KernelEvent } from '../../gpu/kernel-log.ts';
import { DeviceWatch } from './device-watch.ts';
import { Verifier } from './verification.ts';

let host: DeviceHost;
let verifier: Verifier;
let watch: DeviceWatch;
let devices: Device[];
let events: KernelEvent[];
let more: Partial<Inventory>;
let missing: string[];
/** What was done with clocks, and why they cannot be set back. */
let clocks: string[];
let stuck: string | null;
const put: string[] = [];
const { signal } = new AbortController();
const card = gpu(0);
const stranger = {
  pid: process.ppid,
  name: 'python',
  type: 'C',
  memoryMiB: 900,
  gpuInstance: null,
  computeInstance: null,
} as const;

beforeEach(() => {
  host = new DeviceHost();
  devices = [card, gpu(1)];
  events = [];
  more = {};
  missing = [];
  clocks = [];
  stuck = null;
  put.length = 0;
  const { clock, registry, store } = host;
  const log = { info() {}, warn() {}, error() {} };
  let seq = 1;
  watch = new DeviceWatch({
    clock,
    log,
    registry,
    probe: {
      look: async () => ({ ...noGpus, driver: '580.1', devices, ...more }),
      near: () => 0,
      isLooking: false,
      [Symbol.dispose]() {},
    },
    kernel: {
      look: async () => ({ ...noKernelLook, readable: true, events, mark: { seq: seq++, at: null } }),
      [Symbol.dispose]() {},
    },
    owner: 'me',
    slots: () => host.slots,
    groupsOf: () => [],
    listener: { idle: (look, idle) => verifier.idle(look, idle), looked() {}, hold() {} },
  } as ConstructorParameters<typeof DeviceWatch>[0]);
  verifier = new Verifier({
    clock,
    log,
    registry,
    watch,
    quarantine: { put: (uuid: string) => put.push(uuid), putOff() {} } as never,
    store,
    groupsOf: () => [],
    isShared: () => false,
    isStopping: () => false,
    missingNodes: () => missing,
    clocks: {
      lock: async (_, agent) => void clocks.push(`lock for ${agent}`),
      reset: async () => {
        clocks.push('reset');
        return stuck === null || dirty.kind !== 'dirty' ? null : { ...dirty, message: stuck };
      },
    },
  });
});
afterEach(() => {
  watch.close();
  host[Symbol.dispose]();
});

const slot = (): Slot => ({ ...(host.slots[0] as Slot), devices: [card.uuid] });
const look = () => watch.look(0, signal);
const change = (how: Partial<Device>): void => {
  devices = [{ ...card, ...how }, gpu(1)];
};

describe('before an agent is let at a device', () => {
  test('what it shows is put down when it is seen first, and again at each release', async () => {
    await look();
    expect(host.registry.known.get(card.uuid)?.baseline).toMatchObject({ agent: '', saw: { uuid: card.uuid } });
    expect(await verifier.before(slot(), 'a1', signal)).toBe(true);
    expect(host.registry.known.get(card.uuid)?.baseline).toMatchObject({ agent: 'a1' });
  });

  test('a person who came meanwhile keeps it', async () => {
    await look();
    change({ processes: [stranger] });
    expect(await verifier.before(slot(), 'a1', signal)).toBe(false);
    expect(host.registry.known.get(card.uuid)?.baseline?.agent).toBe('');
    expect(put).toEqual([]);
  });

  test('one that has failed, changed or cannot be seen is not used', async () => {
    await look();
    change({ health: { ...card.health, state: 'failed', reasons: ['It needs a reset.'], recoveryAction: 'Reset' } });
    expect(await verifier.before(slot(), 'a1', signal)).toBe(false);
    change({ computeMode: 'Prohibited' });
    expect(await verifier.before(slot(), 'a1', signal)).toBe(false);
    change({});
    missing = ['/dev/nvidia0'];
    expect(await verifier.before(slot(), 'a1', signal)).toBe(false);
    missing = [];
    devices = [];
    more = { complete: false };
    expect(await verifier.before(slot(), 'a1', signal)).toBe(false);
    devices = [card];
    more = {};
    expect(await verifier.before(slot(), 'a1', signal)).toBe(true);
  });
});

describe('clocks of a measurement', () => {
  test('are locked for an agent that may start, and for no other', async () => {
    await look();
    change({ processes: [stranger] });
    await verifier.before(slot(), 'a1', signal);
    expect(clocks).toEqual([]);
    change({});
    await verifier.before(slot(), 'a1', signal);
    expect(clocks).toEqual(['lock for a1']);
  });

  test('are set back before the device is judged', async () => {
    await look();
    expect(await verifier.prove({ ...slot(), key: 'lab/1' }, 'a1', () => {}, signal)).toEqual([{ kind: 'proved', agent: 'a1' }]);
    expect(clocks).toEqual(['reset']);
    expect(put).toEqual([]);
  });

  test('that stay locked put the device into quarantine, and keep it there', async () => {
    await look();
    stuck = 'Its clocks are still locked.';
    await verifier.resetClocks(card.uuid, signal);
    expect(put).toEqual([card.uuid]);
    expect((await verifier.recheck(card.uuid, signal)).verdict).toMatchObject({ kind: 'dirty', message: stuck });
    stuck = null;
    expect((await verifier.recheck(card.uuid, signal)).verdict.kind).toBe('clean');
  });
});

describe('a device that no agent is on', () => {
  test('goes to quarantine when it has failed, but not while it is in use', async () => {
    await look();
    change({ processes: [stranger] });
    await look();
    expect(put).toEqual([]);
    change({ health: { ...card.health, state: 'failed', reasons: ['It needs a reset.'], recoveryAction: 'Reset' } });
    await look();
    expect(put).toEqual([card.uuid]);
  });

  test('has no baseline from while another process used it', async () => {
    change({ processes: [stranger], memoryUsedMiB: 900 });
    await look();
    expect(host.registry.known.get(card.uuid)?.baseline).toBeNull();
    change({});
    await look();
    expect(host.registry.known.get(card.uuid)?.baseline).not.toBeNull();
  });
});
