/** Pauses and drains by people. They hold until a person ends them, across managers. */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const row = z.object({
  /** null: all pools, including those that a later config adds. */
  pool: z.string().transform((name) => (name === '' ? null : name)),
  kind: z.enum(['pause', 'drain']),
  /** Reason of a pause; empty for a drain. */
  reason: z.string(),
  /** Wall clock, ms since the epoch. */
  since: z.int(),
});

export type Hold = Readonly<z.infer<typeof row>>;

export function holdTable(db: Database) {
  const all = query(db, row, 'SELECT pool, kind, reason, since FROM holds ORDER BY since, pool, kind, reason');
  const add = db.prepare('INSERT INTO holds (pool, kind, reason, since) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING');
  const remove = db.prepare('DELETE FROM holds WHERE pool = ? AND kind = ? AND reason = ?');
  return {
    /** Oldest first. */
    all: (): Hold[] => all.all(),
    /** An existing hold is not an error. */
    add: ({ pool, kind, reason, since }: Hold): void => void add.run(pool ?? '', kind, reason, since),
    /** A missing hold is not an error. */
    remove: ({ pool, kind, reason }: Omit<Hold, 'since'>): void => void remove.run(pool ?? '', kind, reason),
  };
}
