/** What other CI services than the own queue need to be remembered. No registration was ever written before this. */
export const services: readonly string[] = [
  'DROP TABLE registrations',

  // place: where at the service the registration is, in the service's own words.
  `CREATE TABLE registrations (
    agent TEXT PRIMARY KEY,
    service TEXT NOT NULL,
    place TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'made', 'removed')),
    placeholder INTEGER NOT NULL,
    remote TEXT,
    intent_at INTEGER NOT NULL,
    made_at INTEGER,
    removed_at INTEGER
  ) STRICT, WITHOUT ROWID`,
  "CREATE INDEX registrations_open ON registrations (service, intent_at) WHERE state <> 'removed'",

  `CREATE TABLE service_jobs (
    id TEXT PRIMARY KEY,
    seen_at INTEGER NOT NULL,
    body TEXT NOT NULL
  ) STRICT, WITHOUT ROWID`,
  'CREATE INDEX service_jobs_by_time ON service_jobs (seen_at)',
];
