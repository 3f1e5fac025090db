/**
 * Every migration, in order, as statements. The database's `user_version` is the number of applied ones. Never change what a released
 * one leaves to the last one: only tables that a later one drops are not created any more.
 */

/** The first tables: slots, history and jobs of the own queue. */
export const first: readonly string[] = [
  'CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID',

  // The times of a slot are of this boot, and mean nothing in another one.
  'CREATE TABLE slots (key TEXT PRIMARY KEY, boot TEXT NOT NULL, body TEXT NOT NULL) STRICT, WITHOUT ROWID',

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

  // seq is the submission order; with AUTOINCREMENT it grows even after the newest job was deleted.
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

/** Devices across restarts, and proofs with evidence. Nothing was leased before. */
const devices: readonly string[] = [
  'DROP TABLE IF EXISTS leases',
  'DROP TABLE IF EXISTS proofs',

  // The slots record who holds a device; this is what is known of it while it cannot be seen.
  'CREATE TABLE devices (uuid TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID',

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

/** Data of CI services other than the own queue. No registration was written before. */
const services: readonly string[] = [
  'DROP TABLE IF EXISTS registrations',

  // place: the location of the registration in the service's own words.
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

  'CREATE TABLE service_jobs (id TEXT PRIMARY KEY, seen_at INTEGER NOT NULL, body TEXT NOT NULL) STRICT, WITHOUT ROWID',
  'CREATE INDEX service_jobs_by_time ON service_jobs (seen_at)',
];

/** Which pipelines may use an encrypted value that is not bound to any itself. */
const secretPins: readonly string[] = [
  // A fingerprint is a hash of a ciphertext. A pipeline is ORGANISATION/SLUG, or ORGANISATION/* for all.
  `CREATE TABLE secret_pins (
    fingerprint TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    name TEXT,
    origin TEXT NOT NULL CHECK (origin IN ('used', 'allowed')),
    pinned_at INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, pipeline)
  ) STRICT, WITHOUT ROWID`,
];

/** Pauses and drains by people, which outlive the manager. */
const holds: readonly string[] = [
  // Pool '': all pools, including those that a later config adds. A drain has the reason ''.
  `CREATE TABLE holds (
    pool TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('pause', 'drain')),
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (pool, kind, reason)
  ) STRICT, WITHOUT ROWID`,
];

/** Which daemon accepted a job, so that a temporary one does not take those of a permanent one. */
const acceptedBy: readonly string[] = [
  // Null for a permanent daemon, and for older jobs; else the config of the temporary daemon.
  'ALTER TABLE jobs ADD COLUMN temporary TEXT',
];

/** Two states of a slot became one, `ending`. */
const oneEnding: readonly string[] = [
  `UPDATE slots SET body = json_set(body,
    '$.agent.signal', iif(json_extract(body, '$.agent.kind') = 'stopping', 'TERM', 'KILL'),
    '$.agent.kind', 'ending')
   WHERE json_extract(body, '$.agent.kind') IN ('stopping', 'killing')`,
];

/** How jobs of all services ended, and sums of them by hour that outlive them. */
const outcomes: readonly string[] = [
  "ALTER TABLE history ADD COLUMN devices TEXT NOT NULL DEFAULT '[]'",
  'ALTER TABLE history ADD COLUMN image TEXT',
  'ALTER TABLE history ADD COLUMN memory INTEGER',
  'CREATE INDEX proofs_of_agent ON proofs (agent)',

  "CREATE INDEX jobs_of_array ON jobs (json_extract(request, '$.array.id')) WHERE json_extract(request, '$.array.id') IS NOT NULL",

  // seq breaks ties of ended_at, for pages.
  `CREATE TABLE outcomes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL UNIQUE,
    service TEXT NOT NULL,
    pool TEXT NOT NULL,
    agent TEXT,
    image TEXT,
    devices TEXT NOT NULL,
    kind TEXT NOT NULL,
    failed INTEGER NOT NULL,
    body TEXT NOT NULL,
    wait INTEGER,
    run INTEGER,
    ended_at INTEGER NOT NULL
  ) STRICT`,
  'CREATE INDEX outcomes_ended ON outcomes (ended_at)',
  'CREATE INDEX outcomes_of_pool ON outcomes (pool, ended_at)',
  'CREATE INDEX outcomes_of_service ON outcomes (service, ended_at)',
  'CREATE INDEX outcomes_of_kind ON outcomes (kind, ended_at)',
  'CREATE INDEX outcomes_of_pool_and_kind ON outcomes (pool, kind, ended_at)',
  'CREATE INDEX outcomes_failed ON outcomes (ended_at) WHERE failed = 1',
  'CREATE INDEX outcomes_failed_of_pool ON outcomes (pool, ended_at) WHERE failed = 1',
  'CREATE INDEX outcomes_of_agent ON outcomes (agent) WHERE agent IS NOT NULL',
  `CREATE TABLE outcome_devices (
    device TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (device, ended_at, seq)
  ) STRICT, WITHOUT ROWID`,
  'CREATE INDEX outcome_devices_of ON outcome_devices (seq)',

  // axis: pool, service, image or device. Sums: waits and runs count only jobs whose times are known.
  `CREATE TABLE outcome_hours (
    hour INTEGER NOT NULL,
    axis TEXT NOT NULL,
    value TEXT NOT NULL,
    pool TEXT NOT NULL,
    kind TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    waits INTEGER NOT NULL,
    wait INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    run INTEGER NOT NULL,
    longest INTEGER NOT NULL,
    PRIMARY KEY (axis, hour, value, pool, kind)
  ) STRICT, WITHOUT ROWID`,
];

/** What people were told by `notify`. */
const notices: readonly string[] = ['CREATE TABLE notices (key TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID'];

/** Sandboxes of failed jobs that are kept for people. */
const held: readonly string[] = ['CREATE TABLE held (agent TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID'];

/** The image of each pool that has proved itself. */
const provedImages: readonly string[] = [
  'CREATE TABLE proved_images (pool TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID',
];

/** Ended jobs of an image, by pages; sums by day, so that questions about a year read few rows. */
const outcomesOfImage: readonly string[] = [
  'CREATE INDEX outcomes_of_image ON outcomes (image, ended_at) WHERE image IS NOT NULL',
  'CREATE INDEX outcomes_of_image_and_kind ON outcomes (image, kind, ended_at) WHERE image IS NOT NULL',
  'CREATE INDEX outcomes_failed_of_image ON outcomes (image, ended_at) WHERE failed = 1 AND image IS NOT NULL',

  // As outcome_hours; days are those of UTC.
  `CREATE TABLE outcome_days (
    day INTEGER NOT NULL,
    axis TEXT NOT NULL,
    value TEXT NOT NULL,
    pool TEXT NOT NULL,
    kind TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    waits INTEGER NOT NULL,
    wait INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    run INTEGER NOT NULL,
    longest INTEGER NOT NULL,
    PRIMARY KEY (axis, day, value, pool, kind)
  ) STRICT, WITHOUT ROWID`,
  `INSERT INTO outcome_days
   SELECT hour - hour % 86400000, axis, value, pool, kind, sum(jobs), sum(waits), sum(wait), sum(runs), sum(run), max(longest)
   FROM outcome_hours GROUP BY 1, 2, 3, 4, 5`,
];

/** Machines in clouds, also those that are gone, and how many people asked for. */
const machines: readonly string[] = [
  `CREATE TABLE machines (
    run TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    gone INTEGER NOT NULL,
    since INTEGER NOT NULL,
    body TEXT NOT NULL
  ) STRICT`,
  'CREATE INDEX machines_live ON machines (run) WHERE gone = 0',
  'CREATE INDEX machines_gone ON machines (since) WHERE gone = 1',
  'CREATE TABLE machines_wanted (host TEXT PRIMARY KEY, machines INTEGER NOT NULL) STRICT, WITHOUT ROWID',
];

/** When a wish for machines is over. */
const wishEnds: readonly string[] = ['ALTER TABLE machines_wanted ADD COLUMN until INTEGER'];

/** How the card of a measurement was, as JSON. */
const variances: readonly string[] = ['ALTER TABLE history ADD COLUMN variance TEXT'];

export const migrations: readonly (readonly string[])[] = [
  ...[
    first,
    devices,
    services,
    secretPins,
    holds,
    acceptedBy,
    oneEnding,
    outcomes,
    notices,
    held,
    provedImages,
    outcomesOfImage,
    machines,
    wishEnds,
    variances,
  ],
];
