/** Which pipelines may use an encrypted value that is bound to none itself. */
export const secretPins: readonly string[] = [
  // A fingerprint is a hash of a ciphertext. A pipeline is ORGANISATION/SLUG, or ORGANISATION/* for all of it.
  `CREATE TABLE secret_pins (
    fingerprint TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    name TEXT,
    origin TEXT NOT NULL CHECK (origin IN ('used', 'allowed')),
    pinned_at INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, pipeline)
  ) STRICT, WITHOUT ROWID`,
];
