/** Which daemon accepted a job, so that a temporary one takes none of a daemon that stays. */
export const acceptedBy: readonly string[] = [
  // Null for a daemon that stays, and for every job of before; else the config that the temporary daemon had.
  'ALTER TABLE jobs ADD COLUMN temporary TEXT',
];
