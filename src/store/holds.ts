/** Pauses and drains by people: they hold until they are ended, whatever becomes of the manager meanwhile. */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const row = z.object({
  /** null: all pools, also those that a later config adds. */
  pool: z.string().transform((name) => (name === '' ? null : name)),
  kind: z.enum(['pause', 'drain']),
  /** Who holds a pause; empty for a drain. */
  reason: z.string(),
  /** Wall clock, ms since the epoch. */
  since: z.int(),
});

export type Hold = Readonly<z.infer<typeof row>>;
export type HoldTable = ReturnType<typeof holdTable>;

export function holdTable(db: Database) {
  const all = query(db, row, 'SELECT pool, kind, reason, since FROM holds ORDER BY since, pool, kind, reason');
  const add = db.prepare('INSERT INTO holds (pool, kind, reason, since) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING');
  const remove = db.prepare('DELETE FROM holds WHERE pool = ? AND kind = ? AND reason = ?');
  return {
    /** Oldest first. */
    all: (): Hold[] => all.all(),
    /** Saying it again changes nothing. */
    add: ({ pool, kind, reason, since }: Hold): void => void add.run(pool ?? '', kind, reason, since),
    /** No such hold is no error. */
    remove: ({ pool, kind, reason }: Omit<Hold, 'since'>): void => void remove.run(pool ?? '', kind, reason),
  };
}
