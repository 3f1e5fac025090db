/** What devices cost: reading what a tool printed, dealing, and the proof beside the tool's own run. No GPU is needed. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import type { PoolConfig } from '../src/config/config.ts';
import { emptySlot } from '../src/core/slot.ts';
import type { Inventory } from '../src/gpu/inventory.ts';
import { nvidiaInventory } from '../src/gpu/nvidia/nvidia.ts';
import { DeviceWatch } from '../src/manager/devices/device-watch.ts';
import { KnownDevices } from '../src/manager/devices/known-devices.ts';
import { createDeviceRegistry } from '../src/manager/devices/registry.ts';
import { Verifier } from '../src/manager/devices/verification.ts';
import { openStore } from '../src/store/store.ts';
import { systemClock as clock } from '../src/system/system-clock.ts';
import { noKernelLook } from '../test/kit/gpu.ts';
import { type Stats, stats } from './stats.ts';

const recordings = join(import.meta.dirname, '../test/fixtures/gpu/nvidia-smi/xml');

function largest(): string {
  const files = readdirSync(recordings).map((name) => join(recordings, name));
  return files.reduce((a, b) => (statSync(b).size > statSync(a).size ? b : a));
}

function read(file: string): Inventory {
  const reply = { tool: 'nvidia-smi', args: ['-q', '-x'], output: readFileSync(file, 'utf8'), code: 0, hung: false };
  return nvidiaInventory({ xml: reply });
}

/** ms to read the largest recording. */
export function parsing(rounds: number): { readonly file: string; readonly kilobytes: number; readonly times: Stats } {
  const file = largest();
  const times: number[] = [];
  for (let n = -5; n < rounds; n++) {
    const began = performance.now();
    read(file);
    if (n >= 0) times.push(performance.now() - began);
  }
  return { file: basename(file), kilobytes: Math.round(statSync(file).size / 1000), times: stats(times) };
}

/** ms that a release and a proof take of their own on one of eight cards, the tool's run taken away. */
export async function proving(rounds: number): Promise<Stats> {
  const dir = mkdtempSync(join(tmpdir(), 'ojb-'));
  const store = openStore(join(dir, 'state'));
  try {
    const inventory = read(join(recordings, 'r580-h100-x8.xml'));
    const idle = { ...inventory, devices: inventory.devices.map((device) => ({ ...device, processes: [] })) };
    const slots = idle.devices.map((device, n) => ({
      ...emptySlot({ key: `p/${n + 1}`, runtime: 'docker', grace: 0, devices: [device.uuid] }),
    }));
    const known = new KnownDevices({ clock, store });
    const devices = { count: 1, mig: null, model: null, uuids: [], vendor: null, memory: null, compute: null, share: 1 };
    const pools = [{ name: 'p', agents: slots.length, standby: true, devices: { ...devices, display: 'allow' } }];
    const registry = createDeviceRegistry({
      clock,
      pools: pools as unknown as PoolConfig[],
      known,
      locks: { take: () => null, keep() {} },
      slots: () => slots,
      waiting: () => null,
      changed() {},
    });
    const log = { info() {}, warn() {}, error() {} };
    const watch = new DeviceWatch({
      clock,
      log,
      registry,
      probe: { look: async () => idle, near: () => 0, isLooking: false, [Symbol.dispose]() {} },
      kernel: { look: async () => noKernelLook, [Symbol.dispose]() {} },
      owner: 'bench',
      slots: () => slots,
      groupsOf: () => [],
      listener: { idle() {}, looked() {}, hold() {} },
    });
    const verifier = new Verifier({
      clock,
      log,
      registry,
      watch,
      quarantine: { put() {} } as never,
      store,
      groupsOf: () => [],
      isShared: () => false,
      isStopping: () => false,
      missingNodes: () => [],
    });
    const { signal } = new AbortController();
    await watch.look(0, signal);
    const times: number[] = [];
    for (let n = -50; n < rounds; n++) {
      const slot = slots[Math.abs(n) % slots.length];
      if (slot === undefined) throw new Error('no slot');
      const began = performance.now();
      await verifier.before(slot, `a${n}`, signal);
      await verifier.prove(slot, `a${n}`, () => {}, signal);
      if (n >= 0) times.push(performance.now() - began);
    }
    watch.close();
    return stats(times);
  } finally {
    store.close();
    rmSync(dir, { recursive: true });
  }
}
