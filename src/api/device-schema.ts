/** What crosses the API about devices: as they are, what a person wants done with one, and the proofs there were. */
import { z } from 'zod';

const deviceState = z.enum([
  'free',
  'leased',
  /** A person's process is on it. */
  'occupied',
  /** A person took it. */
  'reserved',
  'quarantined',
  /** Was leased once, and is not there any more. */
  'missing',
  /** Not listed by the last look, which did not see all. */
  'unknown',
  /** Another manager of this host has it. */
  'elsewhere',
]);
export type DeviceState = z.infer<typeof deviceState>;

export const deviceView = z.object({
  uuid: z.string(),
  kind: z.enum(['gpu', 'mig']),
  model: z.string(),
  pciId: z.string().nullable(),
  /** Where the vendor's tool counts it now; null when it is not there. */
  index: z.int().nullable(),
  memoryMiB: z.number().nullable(),
  /** Of a MIG instance. */
  profile: z.string().nullable(),
  /** UUID of the GPU that a MIG instance is part of. */
  parent: z.string().nullable(),
  state: deviceState,
  /** Slot that has it, or is to have it; of a pool that shares it the first. */
  slot: z.string().nullable(),
  /** Agents that are on it now, whatever its state. */
  agents: z.array(z.string()),
  /** Why no job gets it now, as the rest of a sentence or one without its full stop; null when nothing speaks against it. */
  why: z.string().nullable(),
  /** Since when it is in this state: wall clock, ms since the epoch; null where nobody knows. Of one that is gone, when it was seen last. */
  since: z.number().nullable(),
  /** When its reservation ends, wall clock, ms; null: when it is returned. */
  until: z.number().nullable(),
  /** When it is tried again, wall clock, ms; null: not by itself. */
  retryAt: z.number().nullable(),
  /** What a person can do, as a sentence; null when there is nothing to do. */
  hint: z.string().nullable(),
});
export type DeviceView = z.infer<typeof deviceView>;
export const deviceList = z.array(deviceView);

/** Ten years, ms. */
const longest = 3650 * 86_400_000;

export const reserveRequest = z.strictObject({
  /** ms; null: until it is returned. */
  for: z.int().positive().max(longest).nullable().default(null),
  /** Login name of the person. */
  by: z.string().min(1).max(64).nullable().default(null),
});

export const quarantineRequest = z.strictObject({ reason: z.string().min(1).max(1_000) });

/** What a person wants done with a device. */
export type DeviceChange =
  | ({ readonly act: 'reserve' } & z.infer<typeof reserveRequest>)
  | ({ readonly act: 'quarantine' } & z.infer<typeof quarantineRequest>)
  | { readonly act: 'return' | 'clear' | 'forget' };

export const deviceAnswer = z.object({
  uuid: z.string(),
  /** False when it was so already. */
  changed: z.boolean(),
  /** As it is afterwards; null when nothing is known of it any more. */
  device: deviceView.nullable(),
});
export type DeviceAnswer = z.infer<typeof deviceAnswer>;

/** How many proofs a list holds when nobody says otherwise, and at most. */
export const proofsListed = 100;
export const proofsAtMost = 10_000;

const proofView = z.object({
  device: z.string(),
  slot: z.string(),
  /** The agent that had the device before. */
  agent: z.string(),
  /** `clean`, `wait`, `occupied`, `dirty`, `unknown` or `host`. */
  verdict: z.string(),
  /** What was looked at and what it said. */
  evidence: z.json(),
  /** ms from the agent's end until the verdict. */
  took: z.number(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});
export type ProofView = z.infer<typeof proofView>;
export const proofList = z.array(proofView);
