/** Whose the processes and the memory on a device are, as its proof asks. Pure. */
import type { Device, GpuProcess } from './inventory.ts';
import { mayBeOn } from './mig-process.ts';
import { type Holder, holder, type Ours, type ProcessOwner, type Whose, whose } from './processes.ts';

export interface Holders {
  /** Of an ended agent of ours, whatever they do there. */
  readonly leftovers: readonly Holder[];
  /** The driver lists them and /proc does not show them: they are leaving, or hidden from us. */
  readonly unseen: readonly Holder[];
  /** People's, and of living agents that the device is not leased to. */
  readonly others: readonly Holder[];
  /** Living agents that share the device. */
  readonly sharers: readonly Holder[];
  /** Displays. `memoryKnown`: whether all of them say how much memory they have. */
  readonly residents: { readonly count: number; readonly memoryKnown: boolean };
}

/** null where the tool could not say which processes there are. */
export function sortHolders(
  device: Device,
  context: { readonly owners: ReadonlyMap<number, ProcessOwner>; readonly ours: Ours; readonly shared: boolean },
): Holders | null {
  const all = processesOn(device)?.map((process) => {
    const owner = context.owners.get(process.pid);
    return { process, group: groupOf(process, whose(owner, context.ours), context.shared), held: holder(process, owner) };
  });
  if (all === undefined) return null;
  const of = (group: Group): Holder[] => all.filter((one) => one.group === group).map(({ held }) => held);
  const residents = all.filter((one) => one.group === 'resident');
  return {
    leftovers: of('leftover'),
    unseen: of('unseen'),
    others: of('other'),
    sharers: of('sharer'),
    residents: { count: residents.length, memoryKnown: residents.every(({ process }) => process.memoryMiB !== null) },
  };
}

type Group = 'leftover' | 'unseen' | 'other' | 'sharer' | 'resident';

function groupOf(process: GpuProcess, owner: Whose, shared: boolean): Group {
  if (owner === 'ended') return 'leftover';
  if (owner === 'alive') return shared ? 'sharer' : 'other';
  if (isDisplay(process)) return 'resident';
  return owner === 'unseen' ? 'unseen' : 'other';
}

/** MiB in use beside what residents say they have; null where it is unknown. */
export function ownMemory(device: Device): number | null {
  if (device.memoryUsedMiB === null) return null;
  const residents = (processesOn(device) ?? []).filter(isDisplay);
  return Math.max(0, device.memoryUsedMiB - residents.reduce((sum, one) => sum + (one.memoryMiB ?? 0), 0));
}

/** Processes on a device. A GPU's list names those on its other MIG instances too, which say nothing of this one. */
function processesOn({ kind, mig, processes }: Device): readonly GpuProcess[] | undefined {
  if (processes === null) return undefined;
  if (kind === 'gpu' || mig === null || !('gpuInstance' in mig) || mig.gpuInstance === null) return processes;
  const instance = { gpuInstance: mig.gpuInstance, computeInstance: mig.computeInstance };
  return processes.filter((one) => mayBeOn(one, instance));
}

/** Whether it draws on a screen, so that it belongs to the host's desktop. */
function isDisplay(process: GpuProcess): boolean {
  return process.type === 'G' || process.type === 'C+G';
}
