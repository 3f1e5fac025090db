/** The first tables: what DESIGN calls slots, leases, registrations, proofs, history and the own queue's jobs. */
export const first: readonly string[] = [
  `CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
  ) STRICT, WITHOUT ROWID`,

  // The slot's times are of the boot named beside it and mean nothing in another one.
  `CREATE TABLE slots (
    key TEXT PRIMARY KEY,
    boot TEXT NOT NULL,
    body TEXT NOT NULL
  ) STRICT, WITHOUT ROWID`,

  `CREATE TABLE leases (
    device TEXT NOT NULL,
    slot TEXT NOT NULL,
    share INTEGER NOT NULL DEFAULT 1,
    leased_at INTEGER NOT NULL,
    PRIMARY KEY (device, slot)
  ) STRICT, WITHOUT ROWID`,

  `CREATE TABLE registrations (
    agent TEXT PRIMARY KEY,
    service TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'made', 'removed')),
    placeholder INTEGER NOT NULL DEFAULT 0,
    remote TEXT,
    intent_at INTEGER NOT NULL,
    made_at INTEGER,
    removed_at INTEGER
  ) STRICT, WITHOUT ROWID`,

  `CREATE TABLE proofs (
    id INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    slot TEXT NOT NULL,
    agent TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('clean', 'occupied', 'faulty', 'missing', 'unknown')),
    detail TEXT NOT NULL,
    proved_at INTEGER NOT NULL
  ) STRICT`,
  'CREATE INDEX proofs_of_device ON proofs (device, id)',

  `CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL UNIQUE,
    pool TEXT NOT NULL,
    slot TEXT NOT NULL,
    name TEXT NOT NULL,
    job TEXT,
    made_at INTEGER NOT NULL,
    released_at INTEGER,
    ended_at INTEGER,
    exit TEXT
  ) STRICT`,
  'CREATE INDEX history_of_slot ON history (slot, id)',
  'CREATE INDEX history_of_job ON history (job, id) WHERE job IS NOT NULL',
  'CREATE INDEX history_ended ON history (ended_at) WHERE ended_at IS NOT NULL',

  // seq is the submission order; AUTOINCREMENT keeps it growing after the newest job was pruned.
  `CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    pool TEXT NOT NULL,
    done INTEGER NOT NULL,
    submitted_at INTEGER NOT NULL,
    ended_at INTEGER,
    request TEXT NOT NULL,
    progress TEXT NOT NULL
  ) STRICT`,
  'CREATE INDEX jobs_open ON jobs (seq) WHERE done = 0',
  'CREATE INDEX jobs_ended ON jobs (ended_at) WHERE done = 1',
];
