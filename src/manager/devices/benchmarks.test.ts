import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DeviceHost, devicePool } from '../../../test/support/device-host.ts';
import { gpu } from '../../../test/support/devices.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { Benchmarks } from './benchmarks.ts';

const card = { ...gpu(0), pciId: '0000:01:00.0' };
const pool = devicePool('bench', { agents: 1, benchmark: { cpus: null, clock: 1410, cool_to: 50, cool_wait: 600_000 } });
const { signal } = new AbortController();
const log = { info() {}, warn() {}, error() {} };

let sys: Scratch;
let host: DeviceHost;
let benchmarks: Benchmarks;
let called: string[];
let replanned: string[];

beforeEach(() => {
  sys = scratch();
  const folder = join(sys.path, 'bus/pci/devices', card.pciId);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'local_cpulist'), '8-15\n');
  mkdirSync(join(sys.path, 'devices/system/cpu'), { recursive: true });
  writeFileSync(join(sys.path, 'devices/system/cpu/online'), '0-15\n');
  host = new DeviceHost({ pools: [pool] });
  called = [];
  host.slots = [emptySlot({ key: 'bench/1', runtime: 'docker', grace: 0 })];
  host.sees([card]);
  starts();
});
afterEach(() => {
  benchmarks.close();
  host[Symbol.dispose]();
  sys[Symbol.dispose]();
});

function starts(): void {
  replanned = [];
  const runtime = { capabilities: { grants: 'host' } };
  benchmarks = new Benchmarks({
    clock: host.clock,
    log,
    pools: [pool],
    registry: host.registry,
    use: host.use,
    runtime: () => runtime,
    sys: sys.path,
    reconciler: {
      get slots() {
        return host.slots;
      },
      slotOf: (agent: string) => host.slots.find((slot) => 'agent' in slot.agent && slot.agent.agent === agent),
      pools: [{ config: pool, runtime }],
      post() {},
      replan: (key: string) => void replanned.push(key),
    },
    runner: {
      run: async (_tool: string, args: readonly string[]) => {
        called.push(args.slice(2).join(' '));
        return { code: 0, hung: false, missing: false, output: '' };
      },
    },
  } as unknown as ConstructorParameters<typeof Benchmarks>[0]);
}

const slot = (): Slot => ({ ...(host.slots[0] as Slot), devices: [card.uuid] });
const why = () => benchmarks.slotDevices.heldBack('bench/1');
const verifier = { resetClocks: async (uuid: string) => void (await benchmarks.reset(uuid, signal)) };

test('a slot waits until its CPUs are known, then until its card is cool', async () => {
  expect(why()).toBe('its CPUs are not known yet');
  expect(await benchmarks.cpusFor(slot(), 'a1', false)).toBe('8-15');
  benchmarks.looked();
  expect(why()).toMatch(/^the temperature of GPU-\S+ is not known, until 12:10 at most$/);
  await host.advance(600_000);
  expect(why()).toBeNull();
  expect(replanned).toContain('bench/1');
});

test('other slots of the pools with devices are as before', () => {
  expect(benchmarks.slotDevices.heldBack('lab/1')).toBe('no device is free for it');
  expect(benchmarks.isMeasuring('lab/1')).toBe(false);
});

test('clocks are locked for an agent, and set back by the next manager only if it is gone', async () => {
  await benchmarks.lock(slot(), 'a1', signal);
  expect(called).toEqual(['-lgc 1410,1410']);
  host.slots = [{ ...slot(), agent: { kind: 'busy', agent: 'a1', job: 'j', since: 0, due: null } }];
  host.boot();
  host.sees([card]);
  starts();
  await benchmarks.resetLeft(verifier);
  expect(called).toEqual(['-lgc 1410,1410']);
  host.slots = [{ ...slot(), agent: { kind: 'proving', agent: 'a1', since: 0 } }];
  await benchmarks.resetLeft(verifier);
  await benchmarks.resetLeft(verifier);
  expect(called).toEqual(['-lgc 1410,1410', '-rgc']);
});
