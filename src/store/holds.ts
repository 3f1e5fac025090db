/** Pauses and drains by people: they hold until they are ended, whatever becomes of the manager meanwhile. */
import { z } from 'zod';
import type { Database } from './db.ts';

export interface Hold {
  /** null: all pools, also those that a later config adds. */
  readonly pool: string | null;
  readonly kind: 'pause' | 'drain';
  /** Who holds a pause; empty for a drain. */
  readonly reason: string;
  /** Wall clock, ms since the epoch. */
  readonly since: number;
}

export interface HoldTable {
  /** Oldest first. */
  all(): Hold[];
  /** Saying it again changes nothing. */
  add(hold: Hold): void;
  /** No such hold is no error. */
  remove(hold: Omit<Hold, 'since'>): void;
}

const row = z.object({ pool: z.string(), kind: z.enum(['pause', 'drain']), reason: z.string(), since: z.int() });

export function holdTable(db: Database): HoldTable {
  const all = db.prepare('SELECT pool, kind, reason, since FROM holds ORDER BY since, pool, kind, reason');
  const add = db.prepare('INSERT INTO holds (pool, kind, reason, since) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING');
  const remove = db.prepare('DELETE FROM holds WHERE pool = ? AND kind = ? AND reason = ?');
  return {
    all: () =>
      all.all().map((found) => {
        const { pool, ...hold } = row.parse(found);
        return { ...hold, pool: pool === '' ? null : pool };
      }),
    add: ({ pool, kind, reason, since }) => void add.run(pool ?? '', kind, reason, since),
    remove: ({ pool, kind, reason }) => void remove.run(pool ?? '', kind, reason),
  };
}
