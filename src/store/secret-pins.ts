/** Which pipelines may use an encrypted value that is bound to none itself: the first that used it, and those it was allowed to. */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const row = z.object({
  /** Hash of the value's ciphertext, 32 hex digits. */
  fingerprint: z.string(),
  /** `ORGANISATION/SLUG`, or with `*` for the pipeline, or for both. */
  pipeline: z.string(),
  /** Variable that it was used as, without `SECRET_`; null when it was allowed before it was used. */
  name: z.string().nullable(),
  /** `used`: it was the first to use the value. `allowed`: a person said so. */
  origin: z.enum(['used', 'allowed']),
  /** Wall clock, ms since the epoch. */
  at: z.int(),
});

export type SecretPin = Readonly<z.infer<typeof row>>;
export type SecretPinTable = ReturnType<typeof secretPinTable>;

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
    /** Sorted by when each value was pinned first. */
    all: (): SecretPin[] => all.all(),
    of: (fingerprint: string): SecretPin[] => of.all(fingerprint),
    /** Pins a value that is pinned to nothing; false when it is pinned already, to whomever. */
    first: ({ fingerprint, pipeline, name, at }: Omit<SecretPin, 'origin'>): boolean =>
      first.run(fingerprint, pipeline, name, at, fingerprint).changes === 1,
    /** False when it was allowed, or was the first, before. */
    allow: ({ fingerprint, pipeline, at }: Pick<SecretPin, 'fingerprint' | 'pipeline' | 'at'>): boolean =>
      allow.run(fingerprint, pipeline, at).changes === 1,
    /** Takes the pin of one pipeline, or null: all of the value, so that the next that uses it is the first again. How many went. */
    forget: (fingerprint: string, pipeline: string | null): number =>
      Number((pipeline === null ? forgetAll.run(fingerprint) : forget.run(fingerprint, pipeline)).changes),
  };
}
