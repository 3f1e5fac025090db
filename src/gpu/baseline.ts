/** What is known of a device before a job has it, and what its proof compares with that. */
import { z } from 'zod';
import type { Inventory } from './inventory.ts';
import type { KernelLook } from './kernel-reader.ts';
import type { Ours, ProcessOwner } from './processes.ts';

const modes = z.enum(['enabled', 'disabled']);
const gpuMig = z.object({ mode: modes, pending: modes.nullable() });
const place = z.number().nullable();
const migInstance = z.object({ profile: z.string().nullable(), gpuInstance: place, computeInstance: place });

/** What a device showed just before an agent was released to it. Stored with the agent. */
export const baseline = z.object({
  uuid: z.string(),
  pciId: z.string().nullable(),
  computeMode: z.string().nullable(),
  persistence: z.boolean().nullable(),
  /** A baseline of an older manager does not have it. */
  settings: z.string().nullable().default(null),
  parent: z.string().nullable(),
  mig: z.union([gpuMig, migInstance]).nullable(),
  ecc: z.object({ current: z.boolean(), pending: z.boolean() }).nullable(),
  /** Id of the boot; counters and the driver start anew with another one. */
  boot: z.string().nullable(),
  driver: z.string().nullable(),
  /** MiB in use apart from the residents' memory: the least that was seen on this device in this boot. */
  memoryMiB: z.number().nullable(),
  uncorrectedErrors: z.number().nullable(),
  health: z.enum(['ok', 'failed', 'unknown']),
  /** Whether the tool lists its processes. */
  listsProcesses: z.boolean(),
  /** End of the kernel log then. */
  mark: z.object({ seq: z.number().nullable(), at: z.number().nullable() }),
});

export type Baseline = Readonly<z.infer<typeof baseline>>;

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
