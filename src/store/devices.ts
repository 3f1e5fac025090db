/** Devices across restarts: those that were leased, quarantined or reserved, and every proof. */
import { z } from 'zod';
import type { AgentId, DeviceId } from '../core/slot.ts';
import { baseline } from '../gpu/baseline.ts';
import { type Database, query, understand } from './db.ts';

const known = z.object({
  uuid: z.string(),
  model: z.string(),
  pciId: z.string().nullable(),
  profile: z.string().nullable(),
  parent: z.string().nullable(),
  /** Wall clock, ms since the epoch. */
  lastSeen: z.number(),
  /** Slot that had it last. A device that was never leased is not missed. */
  slot: z.string().nullable(),
  /** Whether that slot still has it, and so gets it again after a restart. */
  isLeased: z.boolean(),
  /** Out of use until it is proved healthy, or a person clears it. */
  quarantine: z
    .object({
      reason: z.string(),
      /** What may clear it: a look that finds it healthy, a reset, a reboot, or only a person. */
      remedy: z.enum(['look', 'reset', 'reboot', 'replace', 'person']),
      hint: z.string().nullable(),
      evidence: z.json(),
      boot: z.string(),
      /** Wall clock, ms. */
      since: z.number(),
      /** Failures in a row. */
      failures: z.number(),
      /** When it is tried again, wall clock, ms; null: only a person clears it. */
      retryAt: z.number().nullable(),
    })
    .nullable(),
  /** Reserved by a person. Wall clock, ms; `until` null: until it is returned. */
  reserved: z.object({ by: z.string().nullable(), since: z.number(), until: z.number().nullable() }).nullable(),
  /** °C that it has without work, once that is learnt. */
  idleTemperature: z.number().optional(),
  /** Its clocks are locked for the agent's measurement, or perhaps are: they must be set back. `since`: wall clock, ms. */
  locked: z.object({ agent: z.string(), mhz: z.number(), since: z.number() }).nullable().optional(),
  /**
   * Its state just before the last release, for which agent: the proof compares with it. A state that another version wrote counts as
   * none; whose processes are ours is known all the same.
   */
  baseline: z.object({ agent: z.string(), containers: z.array(z.string()), saw: baseline.nullable().catch(null) }).nullable(),
});

export type KnownDevice = Readonly<z.infer<typeof known>>;

export function deviceTable(db: Database) {
  const all = db.prepare('SELECT uuid, body FROM devices ORDER BY uuid');
  const save = db.prepare('INSERT INTO devices (uuid, body) VALUES (?, ?) ON CONFLICT (uuid) DO UPDATE SET body = excluded.body');
  const remove = db.prepare('DELETE FROM devices WHERE uuid = ?');
  return {
    /** By UUID. @throws OnejobError E_STATE_CORRUPT if a row is invalid */
    all: (): KnownDevice[] =>
      all.all().map(({ uuid, body }) => understand(db, `device ${uuid}`, () => known.parse(JSON.parse(String(body))))),
    save: (device: KnownDevice): void => void save.run(device.uuid, JSON.stringify(device)),
    remove: (uuid: DeviceId): void => void remove.run(uuid),
  };
}

/** A proof: the state of a device after an agent, and how long the check took. */
const proof = z.object({
  device: z.string(),
  slot: z.string(),
  agent: z.string(),
  /** `clean`, `occupied`, `dirty`, … */
  verdict: z.string(),
  evidence: z.string().transform((text) => z.json().parse(JSON.parse(text))),
  /** ms from the agent's end to the verdict. */
  took: z.number(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});

export type Proof = Readonly<z.infer<typeof proof>>;

export function proofTable(db: Database) {
  const columns = 'device, slot, agent, verdict, evidence, took, proved_at AS at';
  const add = db.prepare(
    'INSERT INTO proofs (device, slot, agent, verdict, evidence, took, proved_at) VALUES (?, ?, ?, ?, ?, ?, ?)',
  );
  const counted = z.object({ id: z.int(), verdict: z.string(), took: z.number() });
  const last = query(db, counted, 'SELECT id, verdict, took FROM proofs ORDER BY id DESC LIMIT 1');
  const after = query(db, counted, 'SELECT id, verdict, took FROM proofs WHERE id > ? ORDER BY id LIMIT ?');
  const all = query(db, proof, `SELECT ${columns} FROM proofs ORDER BY id DESC LIMIT ?`);
  const of = query(db, proof, `SELECT ${columns} FROM proofs WHERE device = ? ORDER BY id DESC LIMIT ?`);
  const ofAgent = query(db, proof, `SELECT ${columns} FROM proofs WHERE agent = ? ORDER BY id LIMIT ?`);
  const prune = db.prepare('DELETE FROM proofs WHERE proved_at < ?');
  return {
    add: ({ device, slot, agent, verdict, evidence, took, at }: Proof): void =>
      void add.run(device, slot, agent, verdict, JSON.stringify(evidence), Math.round(took), at),
    /** Number of the last one; 0 without any. */
    last: (): number => last.get()?.id ?? 0,
    /** At most `limit` that were added after that number, the oldest first. */
    after: (id: number, limit: number) => after.all(id, limit),
    /** Newest first; null: for all devices. */
    of: (device: DeviceId | null, limit: number): Proof[] => (device === null ? all.all(limit) : of.all(device, limit)),
    /** After one agent, oldest first. */
    ofAgent: (agent: AgentId, limit: number): Proof[] => ofAgent.all(agent, limit),
    /** Deletes those before `time`. */
    prune: (time: number): void => void prune.run(time),
  };
}
