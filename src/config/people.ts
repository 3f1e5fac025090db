/**
 * People of this host and what they may do (`people`). A user has what the first group of the config says that he is in; who is in
 * none has nothing. Root is never one of them, and may do everything.
 */
import type { Submitter } from '../contract/people.ts';
import { type Clock, every } from '../core/clock.ts';
import type { Accounts } from '../system/accounts.ts';

/** `look` sees what is there, `submit` also runs jobs, `operate` may do everything. */
export type PeopleRole = 'look' | 'submit' | 'operate';

export interface PeopleGroup {
  /** Of the host. */
  readonly name: string;
  readonly role: PeopleRole;
  /** Where they may run jobs. */
  readonly pools: readonly string[];
  /** Folders of the host that their jobs may have as volumes, with all below them. */
  readonly volumes: readonly { readonly host: string; readonly readOnly: boolean }[];
  /** Globs of images that their jobs may name; else they have that of the pool. */
  readonly images: readonly string[];
  /** Whose output they may read. */
  readonly logs: 'own' | 'all';
  /** Cards at once, all of them together and each; null: no limit. */
  readonly cards: number | null;
  readonly cardsEach: number | null;
  /** How much each of them may use compared with others. */
  readonly weight: number;
}

export interface PeopleConfig {
  readonly groups: readonly PeopleGroup[];
  /** ms after which what somebody used counts half. */
  readonly halfLife: number;
}

export interface Person extends Submitter {
  readonly group: PeopleGroup;
}

/** What the rest of onejob knows of people. */
export interface PeopleTable extends Pick<PeopleConfig, 'halfLife'> {
  /** null: may do nothing. */
  of(uid: number): Person | null;
  all(): Person[];
  /** Calls `listener` whenever people or their groups have changed; returns a function that stops it. */
  onChange(listener: () => void): () => void;
}

/** By uid. */
export function peopleOf(accounts: Accounts, groups: readonly PeopleGroup[]): Map<number, Person> {
  const people = new Map<number, Person>();
  for (const group of groups) {
    const found = accounts.groups.get(group.name);
    if (found === undefined) continue;
    const members = new Set(found.members);
    for (const { name, uid, gid } of accounts.users)
      if (uid !== 0 && !people.has(uid) && (gid === found.gid || members.has(name))) people.set(uid, { uid, name, group });
  }
  return people;
}

/** ms between two looks at who is in the groups. */
const lookEvery = 30_000;

export class People implements PeopleTable {
  readonly halfLife: number;
  readonly #groups: readonly PeopleGroup[];
  readonly #read: (names: readonly string[]) => Promise<Accounts>;
  readonly #listeners = new Set<() => void>();
  #found: ReadonlyMap<number, Person> = new Map();
  #missing: readonly string[] = [];
  #stop = (): void => {};

  constructor({ groups, halfLife }: PeopleConfig, read: (names: readonly string[]) => Promise<Accounts>) {
    this.halfLife = halfLife;
    this.#groups = groups;
    this.#read = read;
  }

  /** Looks once, and from then on now and then. While a database does not answer, everybody keeps what he has. */
  async start(clock: Clock, failed: (error: unknown) => void): Promise<void> {
    await this.look().catch(failed);
    this.#stop = every(clock, lookEvery, () => this.look(), failed);
  }

  async look(): Promise<void> {
    const accounts = await this.#read(this.#groups.map(({ name }) => name));
    const [before, now] = [this.#found, peopleOf(accounts, this.#groups)];
    this.#missing = this.#groups.map(({ name }) => name).filter((name) => !accounts.groups.has(name));
    this.#found = now;
    const isSame = (one: Person) => before.get(one.uid)?.group === one.group && before.get(one.uid)?.name === one.name;
    if (before.size === now.size && [...now.values()].every(isSame)) return;
    for (const listener of [...this.#listeners]) listener();
  }

  of(uid: number): Person | null {
    return this.#found.get(uid) ?? null;
  }

  all(): Person[] {
    return [...this.#found.values()];
  }

  /** Groups of the config that the host does not have. */
  get missing(): readonly string[] {
    return this.#missing;
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  close(): void {
    this.#stop();
    this.#listeners.clear();
  }
}
