/** Which pipelines may use an encrypted value that is bound to none itself: the first that used it, and those it was allowed to. */
import { z } from 'zod';
import type { Database } from './db.ts';

export interface SecretPin {
  /** Hash of the value's ciphertext, 32 hex digits. */
  readonly fingerprint: string;
  /** `ORGANISATION/SLUG`, or with `*` for the pipeline, or for both. */
  readonly pipeline: string;
  /** Variable that it was used as, without `SECRET_`; null when it was allowed before it was used. */
  readonly name: string | null;
  /** `used`: it was the first to use the value. `allowed`: a person said so. */
  readonly origin: 'used' | 'allowed';
  /** Wall clock, ms since the epoch. */
  readonly at: number;
}

export interface SecretPinTable {
  /** Sorted by when each value was pinned first. */
  all(): SecretPin[];
  of(fingerprint: string): SecretPin[];
  /** Pins a value that is pinned to nothing; false when it is pinned already, to whomever. */
  first(pin: Omit<SecretPin, 'origin'>): boolean;
  /** False when it was allowed, or was the first, before. */
  allow(pin: Pick<SecretPin, 'fingerprint' | 'pipeline' | 'at'>): boolean;
  /** Takes the pin of one pipeline, or null: all of the value, so that the next that uses it is the first again. How many went. */
  forget(fingerprint: string, pipeline: string | null): number;
}

const row = z.object({
  fingerprint: z.string(),
  pipeline: z.string(),
  name: z.string().nullable(),
  origin: z.enum(['used', 'allowed']),
  at: z.int(),
});

export function secretPinTable(db: Database): SecretPinTable {
  const columns = 'fingerprint, pipeline, name, origin, pinned_at AS at';
  const all = db.prepare(
    `SELECT ${columns} FROM secret_pins AS pin
    ORDER BY (SELECT min(pinned_at) FROM secret_pins AS one WHERE one.fingerprint = pin.fingerprint), fingerprint, pinned_at, pipeline`,
  );
  const of = db.prepare(`SELECT ${columns} FROM secret_pins WHERE fingerprint = ? ORDER BY pinned_at, pipeline`);
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
    all: () => all.all().map((found) => row.parse(found)),
    of: (fingerprint) => of.all(fingerprint).map((found) => row.parse(found)),
    first: ({ fingerprint, pipeline, name, at }) => first.run(fingerprint, pipeline, name, at, fingerprint).changes === 1,
    allow: ({ fingerprint, pipeline, at }) => allow.run(fingerprint, pipeline, at).changes === 1,
    forget: (fingerprint, pipeline) =>
      Number((pipeline === null ? forgetAll.run(fingerprint) : forget.run(fingerprint, pipeline)).changes),
  };
}
