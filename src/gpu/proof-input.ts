/** What the clean-slot proof is given. */
import type { Device, Health, Inventory } from './inventory.ts';
import type { KernelMark } from './kernel-log.ts';
import type { KernelLook } from './kernel-reader.ts';
import type { Ours, ProcessOwner } from './processes.ts';

/** What a device showed just before an agent was released to it. Plain JSON; kept with the agent. */
export type Baseline = {
  readonly uuid: string;
  readonly pciId: string | null;
  /** Id of the boot it was seen in; after another boot counters and the driver begin anew. */
  readonly boot: string | null;
  readonly driver: string | null;
  /** MiB in use beside what the residents said they had: the least that was seen of this device in this boot. */
  readonly memoryMiB: number | null;
  readonly computeMode: string | null;
  readonly persistence: boolean | null;
  /** As `Device.settings`. */
  readonly settings: string | null;
  readonly parent: string | null;
  readonly mig: Device['mig'];
  readonly ecc: Device['ecc'];
  readonly uncorrectedErrors: number | null;
  readonly health: Health['state'];
  /** Whether the tool could say which processes are on it. */
  readonly listsProcesses: boolean;
  /** End of the kernel log then. */
  readonly mark: KernelMark;
};

/** One look, at one device. All times but `wall` are of one monotonic clock, in ms. */
export interface ProofInput {
  readonly baseline: Baseline;
  readonly inventory: Inventory;
  /** Of the processes on the device: `ownersOf(pidsOn(inventory))`. */
  readonly owners: ReadonlyMap<number, ProcessOwner>;
  readonly ours: Ours;
  readonly kernel: KernelLook;
  readonly boot: string | null;
  /** Whether living agents of ours may hold it at the same time (`share`). */
  readonly shared: boolean;
  /** Paths of device nodes that a grant needs and that are not there. */
  readonly missingNodes: readonly string[];
  readonly now: number;
  /** When the agent was gone, or, if somebody else held the device after that, when they left it. */
  readonly since: number;
  /** Wall clock, ms since the epoch, for people. */
  readonly wall: number;
}
