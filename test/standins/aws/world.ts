/**
 * What exists at the stand-in, and how it changes with time: machines that start and end, their disks and interfaces, spot requests,
 * schedules. Facts from the EC2 user guide and API reference; no real account was asked.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../../src/core/clock.ts';
import { Refused } from './wire.ts';

export type Tags = Readonly<Record<string, string>>;
export type MachineState = 'pending' | 'running' | 'shutting-down' | 'terminated' | 'stopping' | 'stopped';

export interface Machine {
  readonly id: string;
  readonly region: string;
  readonly zone: string;
  readonly subnet: string;
  readonly groups: readonly string[];
  readonly type: string;
  readonly image: string;
  readonly token: string | null;
  /** As cloud-init reads it: not in base64, but maybe packed. */
  readonly userData: Buffer;
  readonly shutdown: 'stop' | 'terminate';
  readonly metadata: { readonly tokens: string; readonly hops: number; readonly tags: string };
  tags: Tags;
  /** As its metadata service shows them. */
  shownTags: Tags;
  /** Its spot request. */
  readonly spot: string | null;
  /** ms since the epoch. */
  readonly launched: number;
  state: MachineState;
  /** From when lists have it, ms of the clock. */
  readonly visible: number;
  reason: { readonly code: string; readonly message: string } | null;
  console: string;
}

export interface Volume {
  readonly id: string;
  readonly region: string;
  readonly zone: string;
  readonly size: number;
  readonly kind: string;
  readonly encrypted: boolean;
  readonly device: string;
  tags: Tags;
  machine: string | null;
  readonly goes: boolean;
}

export interface Interface {
  readonly id: string;
  readonly region: string;
  readonly zone: string;
  readonly subnet: string;
  readonly groups: readonly string[];
  readonly tags: Tags;
  machine: string | null;
}

export interface SpotRequest {
  readonly id: string;
  readonly region: string;
  readonly tags: Tags;
  state: 'open' | 'active' | 'closed' | 'cancelled' | 'failed';
  status: string;
  machine: string | null;
}

export interface Address {
  readonly id: string;
  readonly region: string;
  readonly ip: string;
  readonly tags: Tags;
}

export interface Schedule {
  readonly region: string;
  readonly group: string;
  readonly name: string;
  /** What was sent, with defaults. */
  readonly given: {
    readonly ActionAfterCompletion: 'NONE' | 'DELETE';
    readonly Description?: string | undefined;
    readonly ScheduleExpression: string;
    readonly State: 'ENABLED' | 'DISABLED';
    readonly Target: { readonly Arn: string; readonly RoleArn: string; readonly Input?: string | undefined };
    readonly [more: string]: unknown;
  };
  readonly token: string | null;
  /** ms since the epoch. */
  readonly created: number;
  readonly callOff: () => void;
}

export interface Order {
  readonly region: string;
  readonly zone: string;
  readonly subnet: string;
  readonly groups: readonly string[];
  readonly type: string;
  readonly image: string;
  readonly token: string | null;
  readonly userData: Buffer;
  readonly shutdown: 'stop' | 'terminate';
  readonly metadata: { readonly tokens: string; readonly hops: number; readonly tags: string };
  readonly disks: readonly Pick<Volume, 'size' | 'kind' | 'encrypted' | 'device' | 'goes'>[];
  readonly isSpot: boolean;
  readonly tags: Readonly<Record<'instance' | 'volume' | 'network-interface' | 'spot-instances-request', Tags>>;
}

export interface Times {
  /** ms from the call until the machine runs. */
  boot: number;
  /** ms from `shutting-down` to `terminated`. */
  end: number;
  /** ms for which a terminated machine is listed. */
  remembered: number;
  /** ms until a new machine is in lists. */
  visible: number;
  /** ms that a schedule is late. */
  late: number;
  /** ms of notice before a spot machine is taken. */
  notice: number;
}

export interface Hooks {
  /** The machine runs: a test may start a process that plays it. */
  onBoot(machine: Machine): void;
  /** Its end has begun. */
  onEnd(machine: Machine): void;
  /** It will be taken: what IMDS says from now on. */
  onNotice(machine: Machine): void;
}

export interface Flaws {
  /** How often an end is answered, but does not happen. */
  undead: number;
  /** How many disks stay when their machine ends. */
  stayingDisks: number;
  /** What happens to schedules: they are lost, or stay off. */
  schedules: 'lost' | 'off' | null;
  /** ms for which a machine sees only the first half of tags that were set. */
  tornTags: number;
  /** ms until the account sees what a machine wrote on its console. */
  consoleLag: number;
}

const hex = (bytes: number): string => randomBytes(bytes).toString('hex');
export const newId = (prefix: string): string => `${prefix}-0${hex(8)}`;

export type World = ReturnType<typeof createWorld>;

export function createWorld(
  clock: Clock,
  times: Times,
  hooks: Partial<Hooks>,
  mayEnd: (role: string, machine: Machine) => boolean,
) {
  const machines = new Map<string, Machine>();
  const volumes = new Map<string, Volume>();
  const interfaces = new Map<string, Interface>();
  const spots = new Map<string, SpotRequest>();
  const addresses = new Map<string, Address>();
  const schedules = new Map<string, Schedule>();
  const flaws: Flaws = { undead: 0, stayingDisks: 0, schedules: null, tornTags: 0, consoleLag: 0 };
  /** ms that the cloud's clock is ahead. */
  let skew = 0;
  const now = (): number => clock.wall() + skew;
  const timers = new Set<() => void>();
  const after = (ms: number, fn: () => void): (() => void) => {
    const callOff = clock.after(ms, () => {
      timers.delete(callOff);
      fn();
    });
    timers.add(callOff);
    return callOff;
  };

  function make(order: Order): Machine {
    const { region, zone, subnet, groups, disks, isSpot, tags, ...rest } = order;
    const id = newId('i');
    const spot: SpotRequest | null = isSpot
      ? { id: `sir-${hex(4)}`, region, tags: tags['spot-instances-request'], state: 'active', status: 'fulfilled', machine: id }
      : null;
    if (spot !== null) spots.set(spot.id, spot);
    const machine: Machine = {
      ...rest,
      id,
      region,
      zone,
      subnet,
      groups,
      tags: tags.instance,
      shownTags: tags.instance,
      spot: spot?.id ?? null,
      launched: now(),
      state: 'pending',
      visible: clock.now() + times.visible,
      reason: null,
      console: '',
    };
    machines.set(id, machine);
    for (const disk of disks) {
      const volume = { ...disk, id: newId('vol'), region, zone, tags: tags.volume, machine: id };
      volumes.set(volume.id, volume);
    }
    const card = { id: newId('eni'), region, zone, subnet, groups, tags: tags['network-interface'], machine: id };
    interfaces.set(card.id, card);
    after(times.boot, () => {
      if (machine.state !== 'pending') return;
      machine.state = 'running';
      hooks.onBoot?.(machine);
    });
    return machine;
  }

  /** Begins its end. Idempotent. */
  function end(machine: Machine, code: string, message: string): void {
    if (machine.state === 'terminated' || machine.state === 'shutting-down') return;
    if (flaws.undead > 0) {
      flaws.undead -= 1;
      return;
    }
    machine.state = 'shutting-down';
    machine.reason = { code, message };
    hooks.onEnd?.(machine);
    after(times.end, () => {
      machine.state = 'terminated';
      for (const volume of volumes.values()) {
        if (volume.machine !== machine.id) continue;
        volume.machine = null;
        if (flaws.stayingDisks > 0) flaws.stayingDisks -= 1;
        else if (volume.goes) volumes.delete(volume.id);
      }
      for (const card of interfaces.values()) if (card.machine === machine.id) interfaces.delete(card.id);
      const spot = machine.spot === null ? undefined : spots.get(machine.spot);
      if (spot?.state === 'active') {
        spot.state = 'closed';
        spot.status = code.startsWith('Server.Spot') ? 'instance-terminated-no-capacity' : 'instance-terminated-by-user';
      }
      after(times.remembered, () => {
        machines.delete(machine.id);
        if (spot !== undefined) spots.delete(spot.id);
      });
    });
  }

  const keyOf = (region: string, group: string, name: string): string => `${region}/${group}/${name}`;

  /** What a schedule does at its time: the call of its target, by its role. */
  function fire(schedule: Schedule): void {
    const { given, region } = schedule;
    const ids = (JSON.parse(given.Target.Input ?? '{}') as { InstanceIds?: string[] }).InstanceIds ?? [];
    for (const id of ids) {
      const machine = machines.get(id);
      if (machine?.region === region && mayEnd(given.Target.RoleArn, machine))
        end(machine, 'Client.UserInitiatedShutdown', 'Client.UserInitiatedShutdown: User initiated shutdown');
    }
    if (given.ActionAfterCompletion === 'DELETE') schedules.delete(keyOf(region, schedule.group, schedule.name));
  }

  return {
    machines,
    volumes,
    interfaces,
    spots,
    addresses,
    schedules,
    times,
    flaws,
    now,
    make,
    end,
    get skew() {
      return skew;
    },
    set skew(ms: number) {
      skew = ms;
    },
    setTags(machine: Machine, tags: Tags): void {
      machine.tags = { ...machine.tags, ...tags };
      const entries = Object.entries(tags);
      if (flaws.tornTags > 0) {
        machine.shownTags = { ...machine.shownTags, ...Object.fromEntries(entries.slice(0, Math.ceil(entries.length / 2))) };
        after(flaws.tornTags, () => {
          machine.shownTags = machine.tags;
        });
      } else machine.shownTags = machine.tags;
    },
    /** The machine writes on its console. */
    print(machine: Machine, text: string): void {
      after(flaws.consoleLag, () => {
        machine.console += text;
      });
    },
    scheduleAt: (region: string, group: string, name: string) => schedules.get(keyOf(region, group, name)),
    addSchedule(region: string, group: string, name: string, sent: Schedule['given'], token: string | null): Schedule {
      const given = flaws.schedules === 'off' ? { ...sent, State: 'DISABLED' as const } : sent;
      const time = /^at\((.+)\)$/.exec(given.ScheduleExpression)?.[1];
      if (time === undefined) throw new Refused(400, 'ValidationException', 'The stand-in knows only at(…).');
      const wait = Date.parse(`${time}Z`) - now() + times.late;
      if (wait - times.late <= 0) throw new Refused(400, 'ValidationException', 'The time of the schedule is in the past.');
      const schedule: Schedule = {
        region,
        group,
        name,
        given,
        token,
        created: now(),
        callOff: after(
          wait,
          () => given.State === 'ENABLED' && schedules.get(keyOf(region, group, name)) === schedule && fire(schedule),
        ),
      };
      if (flaws.schedules !== 'lost') schedules.set(keyOf(region, group, name), schedule);
      else schedule.callOff();
      return schedule;
    },
    dropSchedule(region: string, group: string, name: string): boolean {
      const found = schedules.get(keyOf(region, group, name));
      found?.callOff();
      return schedules.delete(keyOf(region, group, name));
    },
    /** `shutdown` inside the machine. */
    guestShutdown(machine: Machine): void {
      if (machine.state !== 'running') return;
      if (machine.shutdown === 'terminate' || machine.spot !== null) {
        end(machine, 'Client.InstanceInitiatedShutdown', 'Client.InstanceInitiatedShutdown: Instance initiated shutdown');
        return;
      }
      machine.state = 'stopping';
      hooks.onEnd?.(machine);
      after(times.end, () => {
        machine.state = 'stopped';
      });
    },
    /** EC2 takes a spot machine back, after the notice. */
    preempt(machine: Machine): void {
      hooks.onNotice?.(machine);
      after(times.notice, () =>
        end(machine, 'Server.SpotInstanceTermination', 'Server.SpotInstanceTermination: Spot instance termination'),
      );
    },
    close(): void {
      for (const callOff of timers) callOff();
    },
  };
}
