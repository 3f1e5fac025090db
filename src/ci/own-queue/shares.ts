/** How people share the own queue: at most so many cards at once, and turns by what each has used lately (`fair-share.ts`). */
import type { PeopleTable } from '../../config/people.ts';
import type { PlanLine } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import { waitsSince } from '../../store/jobs.ts';
import type { Store } from '../../store/store.ts';
import { type Contender, hours, nextOf, overLimit, type Spent, spentAt, spentBy } from './fair-share.ts';
import type { Job } from './job.ts';
import { whyNot, whyNotImage } from './people.ts';
import type { QueuePool } from './request.ts';

interface SharesParts {
  readonly people: PeopleTable;
  readonly store: Pick<Store, 'shares'>;
  readonly clock: Clock;
  readonly pools: ReadonlyMap<string, QueuePool>;
  /** Jobs that an agent has. */
  readonly active: () => Iterable<Job>;
}

/** ms that a job counts at least while it runs: agents that become free at once go to people in turn. */
const leastRun = 360_000;
/** The account of root, and of all who came before there were `people`. */
const root = 'root';

interface Waits extends Contender {
  readonly job: Job;
}

export class Shares {
  readonly #parts: SharesParts;
  /** When somebody last got an agent, by pool and person. After a restart the age of the job counts. */
  readonly #served = new Map<string, number>();
  /** When jobs of agents began, for those that were given back and begin again. */
  readonly #begun = new Map<string, number>();

  constructor(parts: SharesParts) {
    this.#parts = parts;
  }

  /** Why a job may not start now though it waits for nothing else, as a sentence; null: it may. */
  whyHeld({ request }: Job): string | null {
    const { people, pools } = this.#parts;
    const { person: uid, pool, image } = request;
    if (uid === undefined) return null;
    const person = people.of(uid);
    const no = whyNot(person, uid, pool);
    if (no !== null || person === null) return no;
    const { group, name } = person;
    const other = whyNotImage(person, image, pools.get(pool));
    if (other !== null) return other;
    if (group.cards === null && group.cardsEach === null) return null;
    const uses = [...this.#parts.active()].map((job) => ({ uid: job.request.person, cards: this.#cards(job) }));
    const sum = (isMeant: (other: number) => boolean) =>
      uses.reduce((all, one) => (one.uid !== undefined && isMeant(one.uid) ? all + one.cards : all), 0);
    return overLimit(this.#cards({ request }), [
      { whose: name, most: group.cardsEach, inUse: sum((other) => other === uid) },
      { whose: `the group "${group.name}"`, most: group.cards, inUse: sum((other) => people.of(other)?.group.name === group.name) },
    ]);
  }

  /** The next of these, each the first of somebody; null: all of them have to wait. */
  choose(firsts: readonly Job[]): Job | null {
    return this.#next(firsts)?.next.job ?? null;
  }

  /** Inside a commit: what a change of a job's agent means for its owner. */
  changed(before: Job | null, after: Job): void {
    const { clock, people, store } = this.#parts;
    const [was, is] = [before?.progress.state, after.progress.state];
    const now = clock.wall();
    if (was === 'queued' && is !== 'queued' && is !== 'done') this.#served.set(`${after.request.pool} ${whoseIs(after)}`, now);
    if (was !== 'running' && is === 'running') this.#begun.set(after.id, now);
    if (was !== 'running' || is === 'running') return;
    const from = this.#begun.get(after.id) ?? after.progress.startedAt ?? now;
    this.#begun.delete(after.id);
    const key = this.#account(after);
    const spent = this.#stored(key, now) + spentBy({ cards: this.#amount(after), from, to: now }, people.halfLife);
    store.shares.save(key, { amount: spent, at: now });
  }

  /** Lines for `plan`: who is next in a pool and why, and what keeps jobs waiting. */
  plan(pool: string, firsts: readonly Job[]): PlanLine[] {
    if (firsts.length === 0) return [];
    const found = this.#next(firsts);
    const held = firsts.flatMap((job) => {
      const because = this.whyHeld(job);
      return because === null ? [] : [{ slot: pool, intent: `hold job ${job.id}`, because }];
    });
    if (found === null || firsts.length - held.length < 2) return held;
    const what = this.#hasCards(pool) ? 'card-hours' : 'agent-hours';
    const said = ({ who, used, weight }: Waits) =>
      `${who} has used ${hours(used)} ${what} lately${weight === 1 ? '' : ` with weight ${weight}`}`;
    const { next, overdue } = found;
    const why = overdue
      ? `${next.who} has got nothing for longer than the half-life`
      : found.all
          .toSorted((a, b) => a.used / a.weight - b.used / b.weight)
          .slice(0, 5)
          .map(said)
          .join(', ');
    return [...held, { slot: pool, intent: `job ${next.job.id} is next`, because: why }];
  }

  #next(firsts: readonly Job[]) {
    const { people, clock } = this.#parts;
    const now = clock.wall();
    const all = firsts
      .filter((job) => this.whyHeld(job) === null)
      .map((job): Waits => {
        const person = job.request.person === undefined ? null : people.of(job.request.person);
        const served = this.#served.get(`${job.request.pool} ${whoseIs(job)}`) ?? 0;
        return {
          job,
          who: person?.name ?? root,
          priority: job.request.priority,
          used: this.#used(job, now),
          weight: person?.group.weight ?? 1,
          since: Math.max(served, waitsSince(job)),
        };
      });
    const found = nextOf(all, now, people.halfLife);
    return found === null ? null : { ...found, all };
  }

  /** What the owner of a job has used of what it waits for, as of now, with what runs. */
  #used(job: Job, now: number): number {
    const key = this.#account(job);
    let used = this.#stored(key, now);
    for (const one of this.#parts.active()) {
      if (this.#account(one) !== key) continue;
      const from = this.#begun.get(one.id) ?? one.progress.startedAt ?? now;
      used += spentBy({ cards: this.#amount(one), from: Math.min(from, now - leastRun), to: now }, this.#parts.people.halfLife);
    }
    return used;
  }

  #stored(key: string, now: number): number {
    const { store, people } = this.#parts;
    const spent: Spent = store.shares.all()[key] ?? { amount: 0, at: now };
    return spentAt(spent, now, people.halfLife);
  }

  /** Cards and agents without cards are counted apart: who computes on CPUs alone takes no card from anybody. */
  #account(job: Pick<Job, 'request'>): string {
    return `${whoseIs(job)} ${this.#cards(job) === 0 ? 'agents' : 'cards'}`;
  }

  /** An agent without cards counts as one; one with all cards too, since only its pool knows how many that are. */
  #amount(job: Pick<Job, 'request'>): number {
    const cards = this.#cards(job);
    return cards === 0 || cards === Number.POSITIVE_INFINITY ? 1 : cards;
  }

  #cards({ request: { devices, pool } }: Pick<Job, 'request'>): number {
    const its = this.#parts.pools.get(pool);
    const cards = devices ?? its?.recipe.wants?.gpus ?? its?.devices.count ?? 0;
    return cards === 'all' ? Number.POSITIVE_INFINITY : cards;
  }

  #hasCards(pool: string): boolean {
    const its = this.#parts.pools.get(pool);
    return (its?.recipe.wants?.gpus ?? its?.devices.count ?? 0) !== 0;
  }
}

function whoseIs({ request }: Pick<Job, 'request'>): string {
  return String(request.person ?? root);
}
