/**
 * Which pipelines may use an encrypted value that is not bound to any itself: the first that used it, and those that a person
 * allowed.
 */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const row = z.object({
  /** Hash of the value's ciphertext, 32 hex digits. */
  fingerprint: z.string(),
  /** `ORGANISATION/SLUG`, or with `*` for the pipeline, or for both. */
  pipeline: z.string(),
  /** Variable in which it was used, without `SECRET_`; null if it was allowed before it was used. */
  name: z.string().nullable(),
  /** `used`: the first to use the value. `allowed`: by a person. */
  origin: z.enum(['used', 'allowed']),
  /** Wall clock, ms since the epoch. */
  at: z.int(),
});

export type SecretPin = Readonly<z.infer<typeof row>>;

export function secretPinTable(db: Database) {
  const columns = 'fingerprint, pipeline, name, origin, pinned_at AS at';
  const all = query(
    db,
    row,
    `SELECT ${columns} FROM secret_pins AS pin
    ORDER BY (SELECT min(pinned_at) FROM secret_pins AS one WHERE one.fingerprint = pin.fingerprint), fingerprint, pinned_at, pipeline`,
  );
  const of = query(db, row, `SELECT ${columns} FROM secret_pins WHERE fingerprint = ? ORDER BY pinned_at, pipeline`);
  const first = db.prepare(
    `INSERT INTO secret_pins (fingerprint, pipeline, name, origin, pinned_at) SELECT ?, ?, ?, 'used', ?
    WHERE NOT EXISTS (SELECT 1 FROM secret_pins WHERE fingerprint = ?)`,
  );
  const allow = db.prepare(
    `INSERT INTO secret_pins (fingerprint, pipeline, name, origin, pinned_at) VALUES (?, ?, NULL, 'allowed', ?)
    ON CONFLICT DO NOTHING`,
  );
  const forget = db.prepare('DELETE FROM secret_pins WHERE fingerprint = ? AND pipeline = ?');
  const forgetAll = db.prepare('DELETE FROM secret_pins WHERE fingerprint = ?');
  return {
    /** Sorted by the first pin of each value. */
    all: (): SecretPin[] => all.all(),
    of: (fingerprint: string): SecretPin[] => of.all(fingerprint),
    /** Pins a value that has no pins; false if it has any. */
    first: ({ fingerprint, pipeline, name, at }: Omit<SecretPin, 'origin'>): boolean =>
      first.run(fingerprint, pipeline, name, at, fingerprint).changes === 1,
    /** False if it was allowed, or the first, before. */
    allow: ({ fingerprint, pipeline, at }: Pick<SecretPin, 'fingerprint' | 'pipeline' | 'at'>): boolean =>
      allow.run(fingerprint, pipeline, at).changes === 1,
    /**
     * Removes the pin of one pipeline, or with null all pins of the value, so that the next pipeline is the first again. Returns
     * how many were removed.
     */
    forget: (fingerprint: string, pipeline: string | null): number =>
      Number((pipeline === null ? forgetAll.run(fingerprint) : forget.run(fingerprint, pipeline)).changes),
  };
}
