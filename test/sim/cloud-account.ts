/** A simulated account at a cloud: what exists in it, its calls, and everything that may go wrong with them. */
import {
  type Cloud,
  CloudError,
  type Listing,
  type Made,
  type Offer,
  type Order,
  type Thing,
  type ThingKind,
} from '../../src/ports/cloud.ts';
import type { BadDay } from './cloud-faults.ts';
import { asWorld, type SimProcess } from './process.ts';

export type Tags = Pick<Order, 'owner' | 'run' | 'host' | 'born' | 'expires'>;

/** What exists at the cloud. */
export interface Existing {
  readonly kind: ThingKind;
  readonly id: string;
  readonly tags: Tags;
  readonly offer: Offer | null;
  readonly zone: string;
  /** Who ordered it; null: somebody else, whose things must stay. */
  readonly maker: string | null;
  /** ms of virtual time: lists show it from then on. */
  readonly visible: number;
  readonly createdAt: number;
  state: Thing['state'];
  /** Whether the cloud itself ends it at its end. */
  isEndSet: boolean;
  /** The call that made it said that it had not. */
  isDenied: boolean;
  /** ms of virtual time when somebody asked for its end; null: nobody has. */
  askedAt: number | null;
  /** ms of virtual time; null: it exists. */
  vanishedAt: number | null;
  /** How many lists with it its maker has got; some were lost, because another list failed. */
  shown: number;
}

/** What a machine comes with, and what its end at the cloud does. */
const layouts = [
  { name: 'plain', pieces: ['disk'], endRemoves: true },
  { name: 'schedule', pieces: ['disk', 'interface'], endRemoves: true },
  { name: 'group', pieces: ['group', 'disk', 'interface'], endRemoves: false },
] as const satisfies readonly { name: string; pieces: readonly ThingKind[]; endRemoves: boolean }[];

export interface AccountParts {
  readonly day: BadDay;
  /** ms that the cloud's clock is ahead. */
  readonly skew: number;
  /** How many create calls time out at first, each in another way. */
  readonly timeouts: number;
  /** Checks a create call. */
  readonly ordered: (order: Order, by: string) => void;
  /** Checks a call that ends something. */
  readonly asked: (thing: Existing, by: string) => void;
  readonly booted: (machine: Existing) => void;
  readonly vanished: (thing: Existing) => void;
}

const second = 1000;
const minute = 60 * second;
/** Lists of each caller that are remembered. */
const remembered = 30;

export class Account {
  readonly things = new Map<string, Existing>();
  /** Every machine of ours that ever was. */
  readonly machines: Existing[] = [];
  readonly counts = { created: 0, pieces: 0, lists: 0, destroys: 0, calls: 0 };
  /** The latest complete lists, by who has got them. */
  readonly complete = new Map<string, { readonly at: number; readonly runs: ReadonlySet<string> }[]>();
  readonly endRemoves: boolean;
  readonly #parts: AccountParts;
  readonly #day: BadDay;
  readonly #layout: (typeof layouts)[number];
  /** Whether the cloud keeps what it confirmed about the end of machines. */
  readonly #isTrue: boolean;
  #orders = 0;
  /** What lists of each caller have left out. */
  readonly #lagged = new Set<string>();
  #timeouts: number;

  constructor(parts: AccountParts) {
    this.#parts = parts;
    this.#day = parts.day;
    this.#isTrue = this.#day.chance(0.7);
    this.#layout = this.#day.pick(layouts);
    this.endRemoves = this.#layout.endRemoves;
    this.#timeouts = parts.timeouts;
  }

  /** Seconds since the epoch. Its own clock does not step with ours. */
  get now(): number {
    const { time } = this.#day;
    return Math.floor((time.wall - time.jumped + this.#parts.skew) / 1000);
  }

  /** ms of virtual time until the cloud's clock shows `seconds`. */
  #until(seconds: number): number {
    return Math.max(0, (seconds - this.now) * 1000);
  }

  exist(thing: Pick<Existing, 'kind' | 'id' | 'tags' | 'maker'> & Partial<Existing>): Existing {
    const made: Existing = {
      offer: null,
      zone: 'a',
      visible: 0,
      createdAt: this.#day.time.now,
      state: 'running',
      isEndSet: false,
      isDenied: false,
      askedAt: null,
      vanishedAt: null,
      shown: 0,
      ...thing,
    };
    this.things.set(made.id, made);
    if (made.kind === 'machine' && made.maker !== null) this.machines.push(made);
    return made;
  }

  ours(): Existing[] {
    return [...this.things.values()].filter(({ maker }) => maker !== null);
  }

  #remove(thing: Existing): void {
    if (!this.things.delete(thing.id)) return;
    thing.vanishedAt = this.#day.time.now;
    this.#parts.vanished(thing);
  }

  /** It goes in `ms`, and what belongs to it with it. */
  vanish(found: Existing, ms: number): void {
    if (!this.things.has(found.id)) return;
    found.state = 'ending';
    this.#day.time.after(ms, () => {
      this.#remove(found);
      if (found.kind !== 'machine' && found.kind !== 'group') return;
      const goes: readonly ThingKind[] = found.kind === 'machine' ? ['disk', 'interface'] : ['machine', 'disk', 'interface'];
      // A disk may survive its machine.
      for (const one of this.things.values())
        if (one.tags.run === found.tags.run && goes.includes(one.kind) && !this.#day.fails()) this.#remove(one);
    });
  }

  #endLater(found: Existing): void {
    this.#day.time.after(this.#until(found.tags.expires) + this.#day.random() * 30 * second, () => {
      if (!this.things.has(found.id)) return;
      if (this.#layout.endRemoves) this.vanish(found, 0);
      else found.state = 'stopped';
    });
  }

  /** A call: a kill before it, while it is under way, or after it. */
  async #call<T>(process: SimProcess, longest: number, effect: () => T, told: (answer: T) => void = () => {}): Promise<T> {
    this.counts.calls += 1;
    process.point('service');
    const day = this.#day;
    const [before, after] = [day.random() * longest, day.random() * longest];
    const result = await new Promise<T>((resolve, reject) => {
      // The cloud does it even if nobody waits for the answer.
      asWorld(() =>
        day.time.after(before, () => {
          try {
            if (day.lasts('expired')) throw new CloudError('E_CLOUD_CREDENTIAL', 'The credential has expired.');
            if (day.lasts('throttled')) throw new CloudError('E_CLOUD_THROTTLED', 'Too many requests.', { retry: true });
            const value = effect();
            day.time.after(after, () => process.run(() => resolve(value)));
          } catch (error) {
            day.time.after(after, () => process.run(() => reject(error)));
          }
        }),
      );
    });
    if (process.isDead) return await new Promise<never>(() => {});
    process.point('service');
    told(result);
    return result;
  }

  /** The account as a process sees it. `by`: whose process. */
  cloudFor(process: SimProcess, by: string): Cloud {
    const day = this.#day;
    let heard: number | null = null;
    const call = async <T>(longest: number, effect: () => T, told?: (answer: T) => void): Promise<T> => {
      const result = await this.#call(process, longest, effect, told);
      // The header tells whole seconds.
      heard = this.now * 1000 - day.time.now;
      return result;
    };
    return {
      name: 'sim',
      type: 'sim',
      credential: 'test',
      capabilities: { holdsEnd: true, guestEnds: false, endRemoves: this.#layout.endRemoves },
      usualImage: { from: 'image', has: 'everything' },
      skew: () => (heard === null ? null : heard + day.time.now - day.time.wall),
      zones: (type) =>
        call(second, () => {
          if (day.fails()) throw unreachable(false);
          return type === 'big' ? ['a', 'b'] : [null];
        }),
      price: async () => ({ perHour: 1, asOf: '2020-01-01' }),
      preflight: async () => [],
      deliver: async () => {},
      console: () => call(second, () => ''),
      create: (order) => call(20 * second, () => this.#create(order, by)),
      setEnd: (_, made) => call(2 * second, () => this.#setEnd(made)),
      list: (owner, scope) => {
        const caller = `${by} ${owner}`;
        let at = 0;
        const effect = (): Listing => {
          at = day.time.now;
          return this.#list(owner, caller, scope.everywhere);
        };
        return call(3 * second, effect, ({ things, unknown }) => {
          for (const { id } of things) {
            const thing = this.things.get(id);
            if (thing?.maker === by) thing.shown += 1;
          }
          if (unknown.length > 0) return;
          const list = { at, runs: new Set(things.flatMap(({ run }) => run ?? [])) };
          this.complete.set(caller, [...(this.complete.get(caller) ?? []).slice(-remembered), list]);
        });
      },
      destroy: (thing) => call(5 * second, () => this.#destroy(thing.id, by)),
    };
  }

  #create(order: Order, by: string): Made {
    const { offer, owner, run, host, born, expires } = order;
    this.#parts.ordered(order, by);
    this.#orders += 1;
    const day = this.#day;
    const tags = { owner, run, host, born, expires };
    const id = `i-${this.#orders}`;
    const zone = offer.zone ?? day.pick(['a', 'b']);
    const lateness = (): number =>
      day.time.now + (day.fails() ? day.random() * day.pick([minute, 10 * minute]) : day.random() * second);
    const visible = lateness();
    const piece = (kind: ThingKind): void =>
      void this.exist({ kind, id: `${id}-${kind}`, tags, zone, maker: by, visible: day.fails() ? lateness() : visible });
    if (day.has('pieces', 0.2)) {
      // Some of them, but at least one.
      const kinds: ThingKind[] = [...this.#layout.pieces].slice(0, 1 + Math.floor(day.random() * this.#layout.pieces.length));
      for (const kind of kinds) piece(kind);
      this.counts.pieces += 1;
      throw day.pick([
        unreachable(true),
        new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { retry: true }),
        new CloudError('E_CLOUD_REQUEST', 'The machine is refused.'),
      ]);
    }
    if (day.lasts('quota')) throw new CloudError('E_CLOUD_QUOTA', 'The quota is 0.');
    if (day.lasts('stockout')) throw new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { retry: true });
    if (day.isTroubled && day.chance(0.2)) {
      const zones = offer.type === 'big' && day.chance(0.5) ? ['b'] : [];
      throw new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { zones, retry: true });
    }
    if (day.fails(0.3)) throw new CloudError('E_CLOUD_QUOTA', 'The quota is 0.');
    if (day.fails()) throw unreachable(true);
    // Alternately before and after it was made.
    const timesOut = this.#timeouts > 0;
    if (timesOut) {
      this.#timeouts -= 1;
      if (this.#timeouts % 2 === 0) throw unreachable(true);
    }
    this.counts.created += 1;
    for (const kind of this.#layout.pieces) piece(kind);
    const found = this.exist({ kind: 'machine', id, tags, offer, zone, maker: by, visible });
    this.#parts.booted(found);
    if (timesOut || day.fails()) throw unreachable(true);
    // Reported as failed, and created all the same.
    found.isDenied = day.fails(0.5);
    if (found.isDenied) throw new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { retry: true });
    return { id, place: 'here', zone: offer.zone };
  }

  #setEnd(made: Made): string {
    if (this.#day.fails()) throw unreachable(true);
    if (this.#day.fails()) throw new CloudError('E_CLOUD_END', 'The cloud does not confirm the end.');
    const found = this.things.get(made.id);
    if (found === undefined) throw new CloudError('E_CLOUD_REQUEST', 'There is no such machine.');
    if (!found.isEndSet && this.#isTrue) this.#endLater(found);
    found.isEndSet = true;
    const { tags, zone, maker } = found;
    if (this.#layout.name === 'schedule' && !this.things.has(`${found.id}-schedule`))
      this.exist({ kind: 'schedule', id: `${found.id}-schedule`, tags, zone, maker });
    return 'timer';
  }

  #destroy(id: string, by: string): void {
    const day = this.#day;
    this.counts.destroys += 1;
    if (day.chance(0.1)) day.begin('expired');
    if (day.fails()) throw unreachable(true);
    const found = this.things.get(id);
    if (found === undefined) return;
    this.#parts.asked(found, by);
    if (found.kind === 'group' && day.fails()) throw new CloudError('E_CLOUD_REQUEST', 'The deletion of the group is blocked.');
    found.askedAt ??= day.time.now;
    if (day.fails()) return;
    if (day.fails()) throw unreachable(true);
    this.vanish(found, day.random() * day.pick([10 * second, 2 * minute, 6 * minute]));
  }

  #list(owner: string, caller: string, everywhere: boolean): Listing {
    const day = this.#day;
    if (!everywhere) this.counts.lists += 1;
    if (day.fails()) throw new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true });
    const all = [...this.things.values()].filter(({ tags, visible }) => tags.owner === owner && visible <= day.time.now);
    const isHalf = day.lasts('half lists');
    const isPartial = isHalf || day.fails();
    // A list may lag behind, but not twice for one machine, and not for one that came late.
    const late = !isPartial && day.fails() ? day.pick(all) : undefined;
    const cameLate = ({ tags, visible, createdAt }: Existing): boolean =>
      tags.run === late?.tags.run && visible > createdAt + second;
    const isOdd = [...this.things.values()].some(cameLate) || this.#lagged.has(`${caller} ${late?.tags.run}`);
    const lag = late === undefined || isOdd ? null : late.tags.run;
    if (lag !== null) this.#lagged.add(`${caller} ${lag}`);
    const isShown = ({ zone, tags }: Existing): boolean => {
      if (isHalf) return zone !== 'b';
      return isPartial ? day.chance(0.5) : tags.run !== lag;
    };
    const things = all.filter(isShown).map(({ kind, id, tags, state, offer }) => ({
      kind,
      id,
      place: 'here',
      run: tags.run,
      host: tags.host,
      born: tags.born,
      expires: tags.expires,
      state,
      offer,
    }));
    return { things, unknown: isPartial ? ['zone b (unreachable)'] : [] };
  }
}

const unreachable = (isAmbiguous: boolean): CloudError =>
  new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true, isAmbiguous });
