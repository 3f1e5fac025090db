import type { Person } from '../config/people.ts';
import type { Role } from '../contract/calls.ts';

/** What a token or a session can be for, or a person's socket. */
export type AccessRole = Exclude<Role, 'anyone'>;

export interface Caller {
  readonly role: AccessRole;
  /** Without `person`: as the client said when it asked for the login, unchecked. */
  readonly user: string | null;
  /** When the login ends, wall clock, ms; null: never. */
  readonly until: number | null;
  /** Who it is, as the kernel says; null: root, or somebody who has a token of root's. */
  readonly person: Person | null;
}

/** A person on a socket or in a browser. */
export function callerOf(person: Person, until: number | null = null): Caller {
  const role = { look: 'read', submit: 'submit', operate: 'operator' } as const;
  return { role: role[person.group.role], user: person.name, until, person };
}
