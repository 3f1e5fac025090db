/** Every proof there was: which device, after which agent, what was found and how long it took. */
import { z } from 'zod';
import type { DeviceId } from '../core/slot.ts';
import { type Database, query } from './db.ts';

const row = z.object({
  device: z.string(),
  slot: z.string(),
  /** The agent that had it before. */
  agent: z.string(),
  /** `clean`, `occupied`, `dirty`, … */
  verdict: z.string(),
  /** What was looked at and what it said. */
  evidence: z.string().transform((text) => z.json().parse(JSON.parse(text))),
  /** ms from the agent's end until the verdict. */
  took: z.number(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});

export type Proof = Readonly<z.infer<typeof row>>;
export type ProofTable = ReturnType<typeof proofTable>;

export function proofTable(db: Database) {
  const columns = 'device, slot, agent, verdict, evidence, took, proved_at AS at';
  const add = db.prepare(
    'INSERT INTO proofs (device, slot, agent, verdict, evidence, took, proved_at) VALUES (?, ?, ?, ?, ?, ?, ?)',
  );
  const all = query(db, row, `SELECT ${columns} FROM proofs ORDER BY id DESC LIMIT ?`);
  const of = query(db, row, `SELECT ${columns} FROM proofs WHERE device = ? ORDER BY id DESC LIMIT ?`);
  const prune = db.prepare('DELETE FROM proofs WHERE proved_at < ?');
  return {
    add: ({ device, slot, agent, verdict, evidence, took, at }: Proof): void =>
      void add.run(device, slot, agent, verdict, JSON.stringify(evidence), Math.round(took), at),
    /** Newest first; null: of every device. */
    of: (device: DeviceId | null, limit: number): Proof[] => (device === null ? all.all(limit) : of.all(device, limit)),
    /** Forgets those before `time`. */
    prune: (time: number): void => void prune.run(time),
  };
}
