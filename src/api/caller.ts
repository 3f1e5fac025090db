import type { Role } from '../contract/calls.ts';

/** What a token or a session can be for. */
export type AccessRole = Exclude<Role, 'anyone'>;

export interface Caller {
  readonly role: AccessRole;
  /** As the client said when it asked for the login, unchecked. */
  readonly user: string | null;
  /** When the login ends, wall clock, ms; null: never. */
  readonly until: number | null;
}
