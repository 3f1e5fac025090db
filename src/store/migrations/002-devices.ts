/** Devices as they are known beyond a restart, and proofs with what they saw. Nothing was ever leased before this. */
export const devices: readonly string[] = [
  'DROP TABLE leases',
  'DROP TABLE proofs',

  // Who holds what stands in the slots; this is what is known of a device when it is not there to be asked.
  `CREATE TABLE devices (
    uuid TEXT PRIMARY KEY,
    body TEXT NOT NULL
  ) STRICT, WITHOUT ROWID`,

  `CREATE TABLE proofs (
    id INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    slot TEXT NOT NULL,
    agent TEXT NOT NULL,
    verdict TEXT NOT NULL,
    evidence TEXT NOT NULL,
    took INTEGER NOT NULL,
    proved_at INTEGER NOT NULL
  ) STRICT`,
  'CREATE INDEX proofs_of_device ON proofs (device, id)',
  'CREATE INDEX proofs_by_time ON proofs (proved_at)',
];
