/**
 * A subscription of Azure in time: groups, machines and what belongs to them, operations, and ends of life. It knows no HTTP. What it
 * does is from the ARM schema, the REST specifications and reports of other projects; no real Azure was asked.
 */
import { type Clock, sleep } from '../../../src/core/clock.ts';
import type { MachineBody } from './bodies.ts';

export const subscription = '11111111-2222-4333-8444-555555555555';
export const location = 'westeurope';

export type Tags = Readonly<Record<string, string>>;

/** ms */
export interface Timing {
  /** Until a machine has its place, or it turns out that there is none. */
  readonly allocate: number;
  /** From there until it runs. */
  readonly boot: number;
  /** From there until the operation that made it is done. */
  readonly report: number;
  readonly removeMachine: number;
  readonly removeGroup: number;
  /** From its time until an end of life has been carried out. */
  readonly late: number;
}

export const usualTiming: Timing = {
  allocate: 5_000,
  boot: 20_000,
  report: 20_000,
  removeMachine: 20_000,
  removeGroup: 60_000,
  late: 30_000,
};

export interface Group {
  readonly name: string;
  readonly location: string;
  readonly tags: Tags;
  state: 'Succeeded' | 'Deleting';
  readonly madeAt: number;
}

export type Kind = 'machine' | 'disk' | 'interface' | 'address';

export const types: Readonly<Record<Kind, string>> = {
  machine: 'Microsoft.Compute/virtualMachines',
  disk: 'Microsoft.Compute/disks',
  interface: 'Microsoft.Network/networkInterfaces',
  address: 'Microsoft.Network/publicIPAddresses',
};

export interface Resource {
  readonly id: string;
  readonly kind: Kind;
  readonly group: string;
  readonly name: string;
  readonly location: string;
  readonly tags: Tags;
  readonly madeAt: number;
  /** Whether it goes with its machine. */
  readonly goesWith: string | null;
}

export interface Machine extends Resource {
  readonly kind: 'machine';
  readonly size: string;
  readonly spot: boolean;
  readonly zone: string | null;
  /** What cloud-init gets. */
  readonly userData: string;
  readonly body: MachineBody;
  /** What its metadata service shows as its user data, in base64; empty: none. */
  shown: string;
  provisioning: 'Creating' | 'Succeeded' | 'Failed' | 'Deleting';
  /** null: it has no place yet. */
  power: 'starting' | 'running' | 'stopped' | 'deallocated' | null;
}

export interface Operation {
  readonly id: string;
  state: 'InProgress' | 'Succeeded' | 'Failed';
  error: { readonly code: string; readonly message: string; readonly details?: readonly object[] } | null;
}

export interface End {
  readonly operationId: string;
  readonly resourceId: string;
  readonly correlationId: string;
  /** ms since the epoch. */
  deadline: number;
  readonly text: string;
  state: 'PendingScheduling' | 'Scheduled' | 'Executing' | 'Succeeded' | 'Failed' | 'Cancelled';
}

/** What is wrong with Azure now. All of it can be changed at any time. */
export interface Faults {
  /** Sizes of which there are none left, found out when the request comes (`SkuNotAvailable`). */
  readonly notOffered: Set<string>;
  /** Sizes of which there are none left, found out later (`AllocationFailed`). */
  readonly exhausted: Set<string>;
  /** Machines start, but do not report in time. */
  isMute: boolean;
  /** ms until what was made appears in lists. */
  lateInLists: number;
  /** How many removals of machines are "done" while the machine lives on. */
  lyingRemovals: number;
  /** How many removals of groups are rolled back. */
  blockedGroups: number;
  /** How many removals of groups leave the disk, and so the group. */
  survivingDisks: number;
  /** What becomes of an end of life: refused, forgotten, at another time, or failed at once. */
  end: 'refused' | 'forgotten' | 'late' | 'failed' | null;
  /** ms that its clock is ahead. */
  skew: number;
}

/** vCPUs that may be used, by the quota's name. */
export interface Quota {
  readonly title: string;
  limit: number;
}

export type World = ReturnType<typeof createWorld>;

export interface WorldOptions {
  readonly clock: Clock;
  readonly timing?: Partial<Timing>;
}

export interface Hooks {
  onBoot: ((machine: Machine) => void) | null;
  /** Its processes are gone, whatever is left of it. */
  onEnd: ((machine: Machine) => void) | null;
}

const idOf = (group: string, kind: Kind, name: string): string =>
  `/subscriptions/${subscription}/resourceGroups/${group}/providers/${types[kind]}/${name}`;

export function createWorld({ clock, timing: given = {} }: WorldOptions) {
  const timing = { ...usualTiming, ...given };
  /** By name in lower case. */
  const groups = new Map<string, Group>();
  /** By id in lower case. */
  const resources = new Map<string, Resource>();
  /** The same by group, in lower case. */
  const byGroup = new Map<string, Set<Resource>>();
  const operations = new Map<string, Operation>();
  const ends = new Map<string, End>();
  const hooks: Hooks = { onBoot: null, onEnd: null };
  const faults: Faults = {
    notOffered: new Set(),
    exhausted: new Set(),
    isMute: false,
    lateInLists: 0,
    lyingRemovals: 0,
    blockedGroups: 0,
    survivingDisks: 0,
    end: null,
    skew: 0,
  };
  let count = 0;
  const closed = new AbortController();
  /** Nothing happens any more once it is closed. */
  const wait = async (ms: number): Promise<void> => {
    await sleep(clock, ms, closed.signal);
    if (closed.signal.aborted) await new Promise(() => {});
  };

  const now = (): number => clock.wall() + faults.skew;
  const machines = (): Machine[] => [...resources.values()].filter((one): one is Machine => one.kind === 'machine');
  const has = (machine: Machine): boolean => resources.get(machine.id.toLowerCase()) === machine;
  const of = (group: string): Resource[] => [...(byGroup.get(group.toLowerCase()) ?? [])];

  function operation(): Operation {
    count += 1;
    const id = `00000000-0000-4000-8000-${String(count).padStart(12, '0')}`;
    const made: Operation = { id, state: 'InProgress', error: null };
    operations.set(id, made);
    return made;
  }

  function fail(one: Operation, code: string, message: string, details?: readonly object[]): void {
    one.state = 'Failed';
    one.error = { code, message, ...(details !== undefined && { details }) };
  }

  function add<R extends Resource>(made: R): R {
    const group = made.group.toLowerCase();
    resources.set(made.id.toLowerCase(), made);
    byGroup.set(group, (byGroup.get(group) ?? new Set()).add(made));
    return made;
  }

  function forget(one: Resource): void {
    const group = byGroup.get(one.group.toLowerCase());
    resources.delete(one.id.toLowerCase());
    group?.delete(one);
    if (group?.size === 0) byGroup.delete(one.group.toLowerCase());
  }

  function endProcesses(machine: Machine, power: Machine['power']): void {
    const ran = machine.power === 'running' || machine.power === 'starting';
    machine.power = power;
    if (ran) hooks.onEnd?.(machine);
  }

  /** With all that goes with it. */
  function drop(machine: Machine): void {
    endProcesses(machine, null);
    for (const one of of(machine.group)) if (one === machine || one.goesWith === machine.id) forget(one);
  }

  async function start(machine: Machine, done: Operation): Promise<void> {
    await wait(timing.allocate);
    if (!has(machine) || machine.provisioning === 'Deleting')
      return fail(done, 'OperationPreempted', 'The operation has been preempted.');
    if (faults.exhausted.has(machine.size)) {
      machine.provisioning = 'Failed';
      const words =
        'Allocation failed. We do not have sufficient capacity for the requested VM size in this region. Read more about improving likelihood of allocation success.';
      const inner = [{ code: 'AllocationFailed', message: words }];
      return fail(done, 'ResourceOperationFailure', 'The resource operation completed with terminal provisioning state.', inner);
    }
    machine.power = 'starting';
    await wait(timing.boot);
    if (has(machine) && machine.power === 'starting') {
      machine.power = 'running';
      hooks.onBoot?.(machine);
    }
    await wait(timing.report);
    if (!has(machine)) return fail(done, 'OperationPreempted', 'The operation has been preempted.');
    if (faults.isMute) {
      machine.provisioning = 'Failed';
      return fail(done, 'OSProvisioningTimedOut', 'OS Provisioning for VM did not finish in the allotted time.');
    }
    machine.provisioning = 'Succeeded';
    done.state = 'Succeeded';
  }

  return {
    groups,
    resources,
    operations,
    ends,
    faults,
    hooks,
    now,
    machines,
    of,
    close: (): void => closed.abort(),
    /** Of machines that are billed: all that have a place and are not deallocated. */
    billed: (): Machine[] => machines().filter(({ power }) => power !== null && power !== 'deallocated'),
    isListed: ({ madeAt }: { readonly madeAt: number }): boolean => clock.now() >= madeAt + faults.lateInLists,
    makeGroup(name: string, where: string, tags: Tags): { readonly group: Group; readonly isNew: boolean } {
      const before = groups.get(name.toLowerCase());
      const group: Group = { name, location: where, tags, state: 'Succeeded', madeAt: before?.madeAt ?? clock.now() };
      groups.set(name.toLowerCase(), group);
      return { group, isNew: before === undefined };
    },
    makeMachine(group: string, name: string, body: MachineBody): { readonly machine: Machine; readonly done: Operation } {
      const { properties, tags = {}, zones } = body;
      const { osDisk } = properties.storageProfile;
      const id = idOf(group, 'machine', name);
      const common = { group, location: body.location, madeAt: clock.now() };
      const machine: Machine = add({
        ...common,
        id,
        kind: 'machine',
        name,
        tags,
        goesWith: null,
        size: properties.hardwareProfile.vmSize,
        spot: properties.priority === 'Spot',
        zone: zones?.[0] ?? null,
        body,
        provisioning: 'Creating',
        power: null,
        shown: '',
        userData: Buffer.from(properties.osProfile.customData, 'base64').toString(),
      });
      const beside = (kind: Kind, its: string, tagged: Tags, option: string | undefined): void => {
        add({ ...common, id: idOf(group, kind, its), kind, name: its, tags: tagged, goesWith: option === 'Delete' ? id : null });
      };
      // Compute copies the tags of a machine to the disk that it makes for it.
      beside('disk', osDisk.name ?? `${name}_OsDisk_1_0123456789abcdef`, tags, osDisk.deleteOption);
      for (const one of properties.networkProfile.networkInterfaceConfigurations) {
        beside('interface', `${one.name}-nic-1`, one.tags ?? {}, one.properties.deleteOption);
        for (const { properties: ip } of one.properties.ipConfigurations) {
          const address = ip.publicIPAddressConfiguration;
          if (address !== undefined)
            beside('address', `${address.name}-ip-1`, address.tags ?? {}, address.properties?.deleteOption);
        }
      }
      const done = operation();
      void start(machine, done);
      return { machine, done };
    },
    removeMachine(machine: Machine): Operation {
      const done = operation();
      machine.provisioning = 'Deleting';
      void (async () => {
        await wait(timing.removeMachine);
        done.state = 'Succeeded';
        if (faults.lyingRemovals > 0) {
          faults.lyingRemovals -= 1;
          machine.provisioning = 'Succeeded';
        } else if (has(machine)) drop(machine);
      })();
      return done;
    },
    removeResource: forget,
    removeGroup(group: Group): Operation {
      const done = operation();
      group.state = 'Deleting';
      void (async () => {
        await wait(timing.removeGroup);
        const blocked = (what: string): void => {
          group.state = 'Succeeded';
          fail(
            done,
            'ResourceGroupDeletionBlocked',
            `Deletion of resource group '${group.name}' failed as resources with identifiers '${what}' could not be deleted.`,
          );
        };
        if (faults.blockedGroups > 0) {
          faults.blockedGroups -= 1;
          return blocked(types.machine);
        }
        const survives = faults.survivingDisks > 0;
        if (survives) faults.survivingDisks -= 1;
        for (const one of of(group.name)) {
          if (one.kind === 'machine') endProcesses(one as Machine, null);
          if (!(survives && one.kind === 'disk')) forget(one);
        }
        if (survives) return blocked(types.disk);
        groups.delete(group.name.toLowerCase());
        done.state = 'Succeeded';
      })();
      return done;
    },
    setEnd(machine: Machine, deadline: number, text: string, correlationId: string): End {
      const { id } = operation();
      const end: End = { operationId: id, resourceId: machine.id, correlationId, deadline, text, state: 'PendingScheduling' };
      if (faults.end === 'late') end.deadline += 86_400_000;
      if (faults.end === 'failed') end.state = 'Failed';
      if (faults.end !== 'forgotten') ends.set(id, end);
      if (faults.end === 'forgotten' || faults.end === 'failed') return end;
      void (async () => {
        await wait(Math.min(30_000, Math.max(0, end.deadline - now())));
        end.state = 'Scheduled';
        await wait(Math.max(0, end.deadline - now()));
        end.state = 'Executing';
        await wait(timing.late);
        if (has(machine)) endProcesses(machine, 'deallocated');
        end.state = has(machine) ? 'Succeeded' : 'Failed';
      })();
      return end;
    },
    /** It powers itself off, which does not end its price. */
    guestShutdown(machine: Machine): void {
      endProcesses(machine, 'stopped');
    },
    /** Azure takes a spot machine away, by its eviction policy. Its group stays. */
    preempt(machine: Machine): void {
      if (machine.body.properties.evictionPolicy === 'Delete') drop(machine);
      else endProcesses(machine, 'deallocated');
    },
    /** Something that is already there. */
    place(kind: Kind, group: string, name: string, tags: Tags): Resource {
      const id = idOf(group, kind, name);
      return add({ id, kind, group, name, location, tags, madeAt: Number.NEGATIVE_INFINITY, goesWith: null });
    },
    /** A machine that is already there, and runs. */
    placeMachine(group: string, name: string, tags: Tags, body: MachineBody): Machine {
      const machine: Machine = {
        id: idOf(group, 'machine', name),
        kind: 'machine',
        group,
        name,
        location,
        tags,
        madeAt: Number.NEGATIVE_INFINITY,
        goesWith: null,
        size: body.properties.hardwareProfile.vmSize,
        spot: false,
        zone: null,
        userData: '',
        body,
        provisioning: 'Succeeded',
        power: 'running',
        shown: '',
      };
      return add(machine);
    },
  };
}
