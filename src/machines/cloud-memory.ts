/** What a controller knows of one cloud since it started: its time, its latest list, and which calls are under way or have failed. */
import { messageOf, OnejobError } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';
import { type Cloud, type Listing, ownThings } from '../ports/cloud.ts';
import { thingKey } from '../store/machine.ts';
import { type CloudView, type Listed, orphansAfter, type TypeFacts } from './plan.ts';

export interface OwnedCloud {
  readonly cloud: Cloud;
  /** The owner in the tags. */
  readonly owner: string;
}

/** Seconds for which facts about a type hold. */
const factsHold = 86_400;

export class CloudMemory {
  readonly name: string;
  readonly cloud: Cloud;
  readonly owner: string;
  /** Owners of what was called gone lately: it may appear after all. */
  readonly late: ReadonlySet<string>;
  listed: Listed | null = null;
  /** Why the cloud does not list anything, if no other try changes that. */
  refusal: OnejobError | null = null;
  /** Since when its time is known. */
  since: number | null = null;
  deafAt = 0;
  readonly calling = new Set<string>();
  readonly asked = new Map<string, number>();
  readonly notBefore = new Map<string, number>();
  /** Why things could not be asked to go, by `thingKey`. */
  readonly refused = new Map<string, string>();
  readonly #types = new Map<string, TypeFacts & { readonly at: number }>();
  readonly #clock: Clock;
  /** ms that the cloud's clock, or ours until it is known, is ahead of `clock.now()`: no step of the wall clock changes it. */
  #base: number;
  #orphans: ReadonlyMap<string, number> = new Map();

  constructor(name: string, { cloud, owner }: OwnedCloud, clock: Clock, late: readonly string[]) {
    this.name = name;
    this.cloud = cloud;
    this.owner = owner;
    this.late = new Set(late);
    this.#clock = clock;
    this.#base = clock.wall() - clock.now();
  }

  /** Seconds since the epoch. */
  get now(): number {
    return Math.floor((this.#base + this.#clock.now()) / 1000);
  }

  get types(): ReadonlyMap<string, TypeFacts> {
    return this.#types;
  }

  learnt(type: string, facts: TypeFacts, at: number): void {
    this.#types.set(type, { ...facts, at });
  }

  view(): CloudView {
    const { now, since, deafAt, listed, calling, asked, notBefore } = this;
    for (const [type, { at }] of this.#types) if (now > at + factsHold) this.#types.delete(type);
    return { now, since, deafAt, listed, calling, asked, notBefore, types: this.#types, orphans: this.#orphans };
  }

  /** Takes over the time of the cloud's latest answer. Whether it is the first: what was heard before has the time of another clock. */
  hearTime(): boolean {
    const skew = this.cloud.skew();
    if (skew === null) return false;
    this.#base = this.#clock.wall() + skew - this.#clock.now();
    if (this.since !== null) return false;
    this.since = this.now;
    return true;
  }

  /** No list came. `from`, `at`: when it was asked for and given up. */
  unlisted(error: unknown, from: number, at: number): void {
    this.listed = { things: this.listed?.things ?? [], unknown: [], from, at, failed: messageOf(error) };
    this.refusal = error instanceof OnejobError && !error.retry ? error : null;
  }

  /** Lists came, one for each owner. */
  took(listings: readonly Listing[], from: number, at: number): Listed {
    const lists = listings.map(ownThings);
    const [things, unknown] = [lists.flatMap((one) => one.things), lists.flatMap((one) => one.unknown)];
    const listed: Listed = { things, unknown, from, at, failed: null };
    this.listed = listed;
    this.refusal = listings.flatMap(({ refused }) => refused ?? [])[0] ?? null;
    this.#orphans = orphansAfter(this.#orphans, listed);
    const there = new Set(things.map(thingKey));
    if (unknown.length === 0)
      for (const known of [this.asked, this.refused]) for (const key of known.keys()) if (!there.has(key)) known.delete(key);
    return listed;
  }
}
