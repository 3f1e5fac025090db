/** What people paused and drained, so that it outlives the manager it was said to. */
export const holds: readonly string[] = [
  // Pool '': all pools, also those that a later config adds. A drain has the reason ''.
  `CREATE TABLE holds (
    pool TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('pause', 'drain')),
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (pool, kind, reason)
  ) STRICT, WITHOUT ROWID`,
];
