/**
 * Devices as a manager keeps them, over a real store, with time that a test moves: cards come and go by saying so, and what a
 * look at one would find is the test's to say.
 */
import { setImmediate as turn } from 'node:timers/promises';
import type { Log } from '../../src/base/log.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { Clock } from '../../src/core/clock.ts';
import { emptySlot, type Slot } from '../../src/core/slot.ts';
import { type Device, noGpus } from '../../src/gpu/inventory.ts';
import type { Evidence, ProofVerdict } from '../../src/gpu/proof.ts';
import type { WaitingForDevices } from '../../src/manager/devices/demands.ts';
import { Reservations } from '../../src/manager/devices/device-reservations.ts';
import { DeviceUses } from '../../src/manager/devices/device-use.ts';
import { createDeviceViews, type DeviceAccess } from '../../src/manager/devices/device-views.ts';
import { KnownDevices } from '../../src/manager/devices/known-devices.ts';
import type { InLine } from '../../src/manager/devices/latest-start.ts';
import { Quarantine } from '../../src/manager/devices/quarantine.ts';
import { createDeviceRegistry, type DeviceRegistry } from '../../src/manager/devices/registry.ts';
import { openStore, type Store } from '../../src/store/store.ts';
import { oneDevice } from './devices.ts';
import { type Scratch, scratch } from './scratch.ts';

export interface DeviceHostOptions {
  /** Default: one pool `lab` of `agents` slots with a card each. */
  readonly pools?: readonly PoolConfig[];
  /** Default 2. */
  readonly agents?: number | 'per-device';
  /** What pools wait for that lease for each job. Default: nothing. */
  readonly waiting?: (pool: string) => WaitingForDevices | null;
  /** Their waiting jobs in order. Default: nobody knows. */
  readonly lineOf?: (pool: string) => Iterable<InLine>;
}

export class DeviceHost implements Disposable {
  readonly #dir: Scratch = scratch();
  readonly store: Store = openStore(this.#dir.path);
  readonly #pools: readonly PoolConfig[];
  readonly #waiting: (pool: string) => WaitingForDevices | null;
  readonly #lineOf: (pool: string) => Iterable<InLine>;
  /** 12:00 on 20 November 2026 in the host's time zone; the host was booted an hour before. */
  wall = new Date(2026, 10, 20, 12).getTime();
  now = 3_600_000;
  readonly clock: Clock;
  #timers: { readonly at: number; readonly fn: () => void }[] = [];
  slots: Slot[] = [];
  /** What a look at a device finds; thrown when it is an error. */
  verdict: (uuid: string) => ProofVerdict | Error = () => clean;
  readonly looks: string[] = [];
  fault: string | null = null;
  /** What a look for a request shows; thrown when it is an error; null: what the last look did. */
  nextLook: readonly Device[] | Error | null = null;
  registry!: DeviceRegistry;
  quarantine!: Quarantine;
  reservations!: Reservations;
  use!: DeviceUses;
  /** What `nvidia-smi --query-gpu` prints next. */
  usePrinted: string | null = null;

  constructor({ pools, agents = 2, waiting = () => null, lineOf = () => [] }: DeviceHostOptions = {}) {
    this.#waiting = waiting;
    this.#lineOf = lineOf;
    this.#pools = pools ?? [devicePool('lab', { agents })];
    this.clock = {
      now: () => this.now,
      wall: () => this.wall,
      after: (ms, fn) => {
        const timer = { at: this.now + ms, fn };
        this.#timers.push(timer);
        return () => {
          this.#timers = this.#timers.filter((one) => one !== timer);
        };
      },
    };
    this.boot();
  }

  /** A manager starts on what was stored; timers of the last one are gone. */
  boot(): void {
    this.#timers = [];
    const { clock, store } = this;
    const known = new KnownDevices({ clock, store });
    this.registry = createDeviceRegistry({
      clock,
      pools: this.#pools,
      known,
      locks: { take: () => null, keep() {} },
      slots: () => this.slots,
      waiting: this.#waiting,
      lineOf: this.#lineOf,
      changed: () => {},
    });
    const recheck = async (uuid: string) => {
      this.looks.push(uuid);
      const verdict = this.verdict(uuid);
      if (verdict instanceof Error) throw verdict;
      return { verdict, mark: { seq: null, at: null } };
    };
    this.quarantine = new Quarantine({ clock, log, registry: this.registry, bootId: 'boot', recheck, repair: () => {} });
    this.use = new DeviceUses({
      clock,
      isLooking: () => false,
      slots: () => this.slots,
      runner: {
        run: async (tool, args) => {
          const output = this.usePrinted ?? '';
          return { tool, args, output, code: this.usePrinted === null ? 9 : 0, hung: false, missing: false, cut: false };
        },
      },
    });
    const isBusy = (uuid: string) => this.slots.some(({ agent, devices }) => agent.kind === 'busy' && devices.includes(uuid));
    this.reservations = new Reservations({
      clock,
      log,
      registry: this.registry,
      quarantine: this.quarantine,
      recheck,
      isBusy,
    });
  }

  get devices(): DeviceAccess {
    const { registry, quarantine, reservations, use, store, fault } = this;
    const views = createDeviceViews({ registry, use }, () => this.slots);
    return {
      registry,
      quarantine,
      reservations,
      use,
      views,
      proofs: store.proofs,
      watch: { fault, look: async () => this.#lookNow() as never },
    };
  }

  /** A look at the host that lists these; `complete: false`: there may be more. */
  sees(devices: readonly Device[], complete = true): void {
    this.registry.inventoryChanged({ ...noGpus, complete, devices }, new Map());
    this.use.looked({ ...noGpus, complete, devices });
  }

  #lookNow(): void {
    if (this.nextLook instanceof Error) throw this.nextLook;
    if (this.nextLook !== null) this.sees(this.nextLook);
  }

  /** A look that shows who holds a device. */
  seesHeld(devices: readonly Device[], held: Readonly<Record<string, string>>): void {
    this.registry.inventoryChanged({ ...noGpus, devices }, new Map(Object.entries(held)));
  }

  /** A job runs in the slot, on what it is to have. */
  runs(key: string, agent: string): void {
    const devices = this.registry.partition.slots.find((slot) => slot.key === key)?.devices.map(({ uuid }) => uuid) ?? [];
    const slot = emptySlot({ key, runtime: 'sim', grace: 0, devices });
    const others = this.slots.filter((one) => one.key !== key);
    this.slots = [...others, { ...slot, agent: { kind: 'busy', agent, job: 'j1', since: 0, due: null } }];
    this.registry.allocate();
  }

  /** Time passes: everything that is due happens, in order, and what it sets off is awaited. */
  async advance(ms: number): Promise<void> {
    const end = this.now + ms;
    for (;;) {
      await turn();
      const due = this.#timers.filter((timer) => timer.at <= end).toSorted((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers = this.#timers.filter((one) => one !== due);
      this.#pass(Math.max(0, due.at - this.now));
      due.fn();
    }
    this.#pass(end - this.now);
  }

  #pass(ms: number): void {
    this.now += ms;
    this.wall += ms;
  }

  [Symbol.dispose](): void {
    this.use.close();
    this.reservations.close();
    this.quarantine.close();
    this.store.close();
    this.#dir[Symbol.dispose]();
  }
}

const log: Log = { info() {}, warn() {}, error() {} };

/** A pool whose agents need one whole card each. */
export function devicePool(name: string, more: Partial<PoolConfig> = {}): PoolConfig {
  return { name, agents: 2, standby: true, devices: oneDevice, recipe: { image: null }, ...more } as unknown as PoolConfig;
}

const evidence: Evidence = { device: '', pciId: null, at: 0, checks: [], holders: [], kernel: [] };
export const clean: ProofVerdict = { kind: 'clean', evidence };
export const occupied: ProofVerdict = { kind: 'occupied', message: 'held by alice: python', evidence };
export const waiting: ProofVerdict = { kind: 'wait', message: 'python (pid 7) is still leaving.', until: 0, evidence };
export const unknown: ProofVerdict = { kind: 'unknown', message: 'nobody knows', evidence };
export const dirty: ProofVerdict = {
  kind: 'dirty',
  code: 'ecc-errors',
  message: '2 errors.',
  remedy: 'reset',
  hint: 'Reset it.',
  evidence,
};
