/** Every proof there was: which device, after which agent, what was found and how long it took. */
import { z } from 'zod';
import type { AgentId, DeviceId } from '../core/slot.ts';
import type { Database } from './db.ts';

export interface Proof {
  readonly device: DeviceId;
  readonly slot: string;
  /** The agent that had it before. */
  readonly agent: AgentId;
  /** `clean`, `occupied`, `dirty`, … */
  readonly verdict: string;
  /** What was looked at and what it said. */
  readonly evidence: z.infer<ReturnType<typeof z.json>>;
  /** ms from the agent's end until the verdict. */
  readonly took: number;
  /** Wall clock, ms since the epoch. */
  readonly at: number;
}

export interface ProofTable {
  add(proof: Proof): void;
  /** Newest first; null: of every device. */
  of(device: DeviceId | null, limit: number): Proof[];
  /** Forgets those before `time`. */
  prune(time: number): void;
}

const row = z.object({
  device: z.string(),
  slot: z.string(),
  agent: z.string(),
  verdict: z.string(),
  evidence: z.string(),
  took: z.number(),
  proved_at: z.number(),
});

export function proofTable(db: Database): ProofTable {
  const add = db.prepare(
    'INSERT INTO proofs (device, slot, agent, verdict, evidence, took, proved_at) VALUES (?, ?, ?, ?, ?, ?, ?)',
  );
  const all = db.prepare('SELECT * FROM proofs ORDER BY id DESC LIMIT ?');
  const of = db.prepare('SELECT * FROM proofs WHERE device = ? ORDER BY id DESC LIMIT ?');
  const prune = db.prepare('DELETE FROM proofs WHERE proved_at < ?');
  return {
    add({ device, slot, agent, verdict, evidence, took, at }) {
      add.run(device, slot, agent, verdict, JSON.stringify(evidence), Math.round(took), at);
    },
    of(device, limit) {
      const found = device === null ? all.all(limit) : of.all(device, limit);
      return found.map((one) => {
        const { proved_at, evidence, ...rest } = row.parse(one);
        return { ...rest, evidence: z.json().parse(JSON.parse(evidence)), at: proved_at };
      });
    },
    prune(time) {
      prune.run(time);
    },
  };
}
