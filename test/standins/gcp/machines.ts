/**
 * Instances, disks and addresses in time. An instance starts, runs, and ends by a call, by its own end of life, by its guest, or
 * because Spot takes it away; its boot disk goes with it or stays.
 */
import type { Clock } from '../../../src/core/clock.ts';
import type { Wanted } from './insert-body.ts';

export type Status = 'PROVISIONING' | 'STAGING' | 'RUNNING' | 'STOPPING' | 'TERMINATED';

export interface Machine {
  readonly id: string;
  readonly name: string;
  readonly zone: string;
  readonly wanted: Wanted;
  readonly labels: Record<string, string>;
  /** cloud-init's text. */
  readonly userData: string;
  /** Values by key; all of them are set at once. */
  metadata: Readonly<Record<string, string>>;
  /** As the config writes it. */
  readonly type: string;
  status: Status;
  /** ms since the epoch by the cloud's clock. */
  readonly created: number;
  started: number | null;
  /** When the cloud ends it by itself; null: never. */
  endsAt: number | null;
  /** As its metadata server says. */
  isPreempted: boolean;
  /** Its serial port. */
  console: string;
  /** From when lists contain it. */
  listedFrom: number;
}

export interface Disk {
  readonly id: string;
  readonly name: string;
  readonly zone: string;
  readonly sizeGb: number;
  labels: Record<string, string>;
  readonly created: number;
  /** Name of the instance that it is attached to. */
  user: string | null;
}

export interface Address {
  readonly id: string;
  readonly name: string;
  readonly region: string;
  readonly labels: Record<string, string>;
  user: string | null;
}

/** ms */
export interface Times {
  /** From the call until it runs. */
  readonly start: number;
  /** From the order to end until it is gone. */
  readonly stop: number;
  /** Between Spot's notice and the end. */
  readonly notice: number;
}

export interface Hooks {
  /** It runs. */
  onBoot?(machine: Machine): void;
  /** Its power goes off, whoever did that. */
  onEnd?(machine: Machine, why: 'deleted' | 'end of life' | 'guest' | 'preempted'): void;
  /** Spot takes it away soon. */
  onNotice?(machine: Machine): void;
}

export interface WorldOptions {
  readonly clock: Clock;
  readonly times: Times;
  readonly hooks: Hooks;
  readonly faults: {
    /** Boot disks stay when their instance goes. */
    readonly diskSurvives: boolean;
    /** ms until lists contain a new instance. */
    readonly late: number;
    /** What becomes of the end of life that was asked for. */
    readonly end: 'kept' | 'missing' | 'late' | 'stops';
  };
  /** ms since the epoch by the cloud's clock. */
  now(): number;
}

export type World = ReturnType<typeof createWorld>;

export function createWorld({ clock, times, hooks, faults, now }: WorldOptions) {
  const machines = new Map<string, Machine>();
  const disks = new Map<string, Disk>();
  const addresses = new Map<string, Address>();
  const alarms = new Map<Machine, () => void>();
  let ids = 4_000_000_000_000_000_000n;
  const key = (place: string, name: string): string => `${place}/${name}`;

  const freshId = (): string => {
    ids += 1n;
    return String(ids);
  };

  function make(zone: string, wanted: Wanted): Machine {
    const { name, labels, machineType, accelerator } = wanted;
    const count = accelerator !== null && accelerator.count > 1 ? `:${accelerator.count}` : '';
    const machine: Machine = {
      id: freshId(),
      name,
      zone,
      wanted,
      labels: { ...labels },
      userData: wanted.metadata['user-data'] ?? '',
      metadata: wanted.metadata,
      type: accelerator === null ? machineType : `${machineType}/${accelerator.type}${count}`,
      status: 'PROVISIONING',
      created: now(),
      started: null,
      endsAt: null,
      isPreempted: false,
      console: '',
      listedFrom: now() + faults.late,
    };
    machines.set(key(zone, name), machine);
    disks.set(key(zone, name), {
      id: freshId(),
      name,
      zone,
      sizeGb: wanted.diskGb,
      labels: { ...wanted.diskLabels },
      created: now(),
      user: name,
    });
    clock.after(times.start / 2, () => {
      if (machine.status === 'PROVISIONING') machine.status = 'STAGING';
    });
    clock.after(times.start, () => {
      if (machine.status === 'STAGING' || machine.status === 'PROVISIONING') boot(machine);
    });
    return machine;
  }

  function boot(machine: Machine): void {
    const { maxRun } = machine.wanted;
    machine.status = 'RUNNING';
    machine.started = now();
    machine.console = 'cloud-init started\n';
    if (maxRun !== null && faults.end !== 'missing') {
      const late = faults.end === 'late' ? 86_400_000 : 0;
      machine.endsAt = now() + maxRun * 1000 + late;
      const callOff = clock.after(machine.endsAt - now(), () => {
        if (machine.endsAt === null) return;
        if (machine.wanted.onEnd === 'DELETE' && faults.end !== 'stops') remove(machine, 'end of life');
        else stop(machine, 'end of life');
      });
      alarms.set(machine, callOff);
    }
    hooks.onBoot?.(machine);
  }

  function goDown(machine: Machine, why: Parameters<NonNullable<Hooks['onEnd']>>[1], then: () => void): void {
    alarms.get(machine)?.();
    alarms.delete(machine);
    const wasOn = machine.status === 'RUNNING';
    machine.status = 'STOPPING';
    if (wasOn) hooks.onEnd?.(machine, why);
    clock.after(times.stop, then);
  }

  /** A stopped instance has no end of life any more (guide "Limit the run time of a VM"). */
  function stop(machine: Machine, why: 'end of life' | 'guest' | 'preempted'): void {
    goDown(machine, why, () => {
      machine.endsAt = null;
      if (machine.status === 'STOPPING') machine.status = 'TERMINATED';
    });
  }

  function remove(machine: Machine, why: 'deleted' | 'end of life' | 'preempted'): void {
    goDown(machine, why, () => {
      const at = key(machine.zone, machine.name);
      if (machines.get(at) !== machine) return;
      machines.delete(at);
      const disk = disks.get(at);
      if (disk === undefined) return;
      disk.user = null;
      if (machine.wanted.autoDelete && !faults.diskSurvives) disks.delete(at);
    });
  }

  return {
    machines,
    disks,
    addresses,
    make,
    remove,
    freshId,
    machine: (zone: string, name: string) =>
      machines.get(key(zone, name)) ?? [...machines.values()].find((one) => one.zone === zone && one.id === name),
    disk: (zone: string, name: string) => disks.get(key(zone, name)),
    removeDisk: (zone: string, name: string) => void disks.delete(key(zone, name)),
    address: (region: string, name: string) => addresses.get(key(region, name)),
    removeAddress: (region: string, name: string) => void addresses.delete(key(region, name)),
    /** As somebody does who keeps the address of an instance. */
    keepAddress(region: string, name: string, labels: Record<string, string>): void {
      addresses.set(key(region, name), { id: freshId(), name, region, labels, user: null });
    },
    /** `poweroff` inside it. */
    guestShutdown: (machine: Machine): void => stop(machine, 'guest'),
    /** Spot needs it back. */
    preempt(machine: Machine): void {
      machine.isPreempted = true;
      hooks.onNotice?.(machine);
      clock.after(times.notice, () => {
        if (machine.status !== 'RUNNING') return;
        if (machine.wanted.onEnd === 'DELETE') remove(machine, 'preempted');
        else stop(machine, 'preempted');
      });
    },
  };
}
