/** What is known of a device before a job has it, and what its proof compares with that. */
import type { Device, Health, Inventory } from './inventory.ts';
import type { KernelMark } from './kernel-log.ts';
import type { KernelLook } from './kernel-reader.ts';
import type { Ours, ProcessOwner } from './processes.ts';

/** What a device showed just before an agent was released to it. Plain JSON; stored with the agent. */
export type Baseline = Pick<Device, 'uuid' | 'pciId' | 'computeMode' | 'persistence' | 'settings' | 'parent' | 'mig' | 'ecc'> & {
  /** Id of the boot; counters and the driver start anew with another one. */
  readonly boot: string | null;
  readonly driver: string | null;
  /** MiB in use apart from the residents' memory: the least that was seen on this device in this boot. */
  readonly memoryMiB: number | null;
  readonly uncorrectedErrors: number | null;
  readonly health: Health['state'];
  /** Whether the tool lists its processes. */
  readonly listsProcesses: boolean;
  /** End of the kernel log then. */
  readonly mark: KernelMark;
};

/** One look at one device. All times but `wall` are of one monotonic clock, in ms. */
export interface ProofInput {
  readonly baseline: Baseline;
  readonly inventory: Inventory;
  /** The owners of processes on devices: `ownersOf(pidsOn(inventory))`. */
  readonly owners: ReadonlyMap<number, ProcessOwner>;
  readonly ours: Ours;
  readonly kernel: KernelLook;
  readonly boot: string | null;
  /** Whether several running agents of ours may use it at the same time (`share`). */
  readonly shared: boolean;
  readonly missingNodes: readonly string[];
  readonly now: number;
  /** When the agent ended, or, if others used the device after that, when they left it. */
  readonly since: number;
  /** Wall clock, ms since the epoch, for people. */
  readonly wall: number;
}
