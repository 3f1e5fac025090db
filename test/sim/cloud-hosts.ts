/**
 * A cloud and its controller in virtual time: machines that boot late or never, lists that are incomplete, calls whose answers get lost,
 * a cloud that says "done" about what lives, and a controller that is killed between any two effects. The promises: nothing outlives its
 * end of life, nothing is created twice, what is called gone is gone, and what belongs to others is never touched.
 */
import {
  type Cloud,
  CloudError,
  type Listing,
  type Made,
  type Offer,
  type Order,
  type Thing,
  type ThingKind,
} from '../../src/cloud/cloud.ts';
import { type Controller, createController } from '../../src/cloud/controller.ts';
import type { HostConfig } from '../../src/cloud/hosts.ts';
import type { Machine } from '../../src/cloud/machine.ts';
import { drained, ended } from '../../src/cloud/plan.ts';
import type { MachineTable } from '../../src/store/machines.ts';
import { asWorld, SimProcess } from './process.ts';
import { SimTime, seeded } from './time.ts';

export interface CloudPlay {
  readonly hosts?: number;
  /** ms of virtual time in which faults and jobs come. */
  readonly span?: number;
  /** How often calls fail, 0 to 1. */
  readonly trouble?: number;
  /** Changes the rules of a host. */
  readonly rules?: Partial<HostConfig>;
  /** Whether the manager is killed now and then. */
  readonly kills?: boolean;
  /** No jobs, no people, and a cloud with capacity. */
  readonly isCalm?: boolean;
}

/** What exists at the cloud. */
interface Existing {
  readonly kind: ThingKind;
  readonly id: string;
  readonly tags: Pick<Order, 'owner' | 'run' | 'host' | 'born' | 'expires'>;
  readonly offer: Offer | null;
  /** ms of virtual time: lists show it from then on. */
  readonly visible: number;
  state: Thing['state'];
  /** Whether the cloud itself ends it at its end. */
  isEndSet: boolean;
  /** Whether somebody asked for its end. */
  isAsked: boolean;
  readonly createdAt: number;
  /** The call that made it said that it had not. */
  isDenied: boolean;
}

const second = 1000;
const minute = 60 * second;
const hour = 60 * minute;
export const usualSpan = 10 * hour;

export class CloudWorld {
  readonly time: SimTime;
  readonly #random: () => number;
  readonly #existing = new Map<string, Existing>();
  readonly #rows = new Map<string, string>();
  readonly #wants = new Map<string, number>();
  readonly #tokens = new Set<string>();
  readonly story: string[] = [];
  /** What was made, listed and removed. */
  readonly counts = { created: 0, lists: 0, destroys: 0, kills: 0, jobs: 0, gone: 0, calls: 0 };
  /** Jobs that wait, and machines that run one. */
  #waiting = 0;
  readonly #busy = new Map<string, number>();
  readonly #idleSince = new Map<string, number>();
  readonly #skew: number;
  /** ms that the cloud's clock is ahead of virtual time, as the controller's adapter knows it. */
  #heard: number | null = null;
  #isTroubled = true;
  readonly #play: Required<CloudPlay>;
  readonly #hosts: readonly HostConfig[];
  #running: { process: SimProcess; controller: Controller } | null = null;
  #toKill = Number.POSITIVE_INFINITY;
  #broken: Error | null = null;
  /** What the latest list left out. */
  #lagged: string | null = null;
  /** ms of virtual time since when a controller has run without a break. */
  #runsSince = Number.POSITIVE_INFINITY;
  /** Whether the cloud keeps what it confirmed about the end of machines. */
  readonly #isCloudTrue: boolean;

  constructor(seed: number, play: CloudPlay = {}) {
    this.#random = seeded(seed);
    this.time = new SimTime(this.#random);
    this.#play = {
      hosts: 1,
      span: usualSpan,
      trouble: this.#pick([0, 0.02, 0.1, 0.3]),
      rules: {},
      kills: true,
      isCalm: false,
      ...play,
    };
    this.#isTroubled = !this.#play.isCalm;
    this.#skew = this.#pick([0, 0, 600, -600]) * second;
    this.#isCloudTrue = this.#chance(0.7);
    this.#hosts = Array.from({ length: this.#play.hosts }, (_, at) => ({
      ...{ host: `burst${at}`, cloud: 'sim', types: ['big', 'small'], spot: this.#pick(['never', 'prefer', 'only'] as const) },
      ...{ image: null, disk: 50, min: this.#pick([0, 0, 0, 1]), max: 1 + Math.floor(this.#random() * 3) },
      ...{ idle: 10 * minute, lifetime: this.#pick([1, 2, 6]) * hour, boot: 20 * minute, budget: null, prices: {} },
      ...{ opengl: 'none', setup: [], agents: 1 },
      ...this.#play.rules,
    }));
    // What others have in the same account must stay.
    const now = this.#cloudNow();
    const foreign = { run: 'onejob-00000000000000f0', host: 'burst0', born: now, expires: now - 1 };
    this.#exist({ kind: 'machine', id: 'foreign', tags: { ...foreign, owner: 'theirs' }, offer: null, visible: 0 });
    const later = { ...foreign, run: 'onejob-00000000000000e0', expires: now + 365 * 86_400, owner: 'ours' };
    this.#exist({ kind: 'machine', id: 'elsewhere', tags: later, offer: null, visible: 0 });
    this.#exist({ kind: 'disk', id: 'elsewhere-disk', tags: later, offer: null, visible: 0 });
  }

  #pick<T>(of: readonly T[]): T {
    return of[Math.floor(this.#random() * of.length)] as T;
  }

  #chance(share: number): boolean {
    return this.#random() < share;
  }

  /** Whether something goes wrong now. */
  #fails(share = 1): boolean {
    return this.#isTroubled && this.#chance(this.#play.trouble * share);
  }

  #cloudNow(): number {
    // Its own clock does not step with ours.
    return Math.floor((this.time.wall - this.time.jumped + this.#skew) / 1000);
  }

  tell(what: string): void {
    this.story.push(`${(this.time.now / 1000).toFixed(1)} s  ${what}`);
  }

  broken(what: string): never {
    this.tell(`BROKEN: ${what}`);
    // Inside a call it would only reach the controller.
    this.#broken ??= new Error(what);
    throw this.#broken;
  }

  #exist(thing: Pick<Existing, 'kind' | 'id' | 'tags' | 'offer' | 'visible'>): Existing {
    const made: Existing = {
      ...{ ...thing, state: 'running', isEndSet: false, isAsked: false, createdAt: this.time.now, isDenied: false },
    };
    this.#existing.set(thing.id, made);
    return made;
  }

  /** Plays to the end and checks every promise. */
  async play(): Promise<void> {
    this.#start();
    this.#jobsCome();
    if (this.#play.kills) this.#killsCome();
    let isOver = false;
    this.time.after(this.#play.span, () => {
      isOver = true;
    });
    this.#look();
    this.#peopleCome();
    this.#clockSteps();
    await this.time.run(() => isOver || this.#broken !== null, this.#play.span + minute);
    if (this.#broken !== null) throw this.#broken;
    this.tell('no more trouble, and no more jobs');
    this.#isTroubled = false;
    this.#waiting = 0;
    this.#toKill = Number.POSITIVE_INFINITY;
    if (this.#running === null) this.#start();
    const controller = () => this.#running?.controller ?? this.broken('no controller runs');
    for (const { host } of this.#hosts) controller().setWaiting(host, 0);
    const most = Math.max(...this.#hosts.map(({ lifetime }) => lifetime)) + hour;
    const isQuiet = () => {
      if (this.#broken !== null) return true;
      if (this.#running === null) return false;
      const kept = this.#hosts.reduce((sum, { min }) => sum + min, 0);
      const rows = this.#running.controller.machines();
      return rows.length <= kept && this.#ours().every(({ tags }) => rows.some(({ run }) => run === tags.run));
    };
    await this.time.run(isQuiet, most);
    if (this.#broken !== null) throw this.#broken;
    this.#othersLive();
    this.#running?.controller.close();
    this.#running?.process.kill();
  }

  /** Lets `ms` pass. */
  async calm(ms: number): Promise<void> {
    if (this.#running === null) this.#start();
    let isOver = false;
    this.time.after(ms, () => {
      isOver = true;
    });
    await this.time.run(() => isOver, ms + minute);
  }

  #ours(): Existing[] {
    return [...this.#existing.values()].filter(({ tags, id }) => tags.owner === 'ours' && !id.startsWith('elsewhere'));
  }

  #othersLive(): void {
    for (const id of ['foreign', 'elsewhere', 'elsewhere-disk'])
      if (!this.#existing.has(id)) this.broken(`${id}, which belongs to others, was removed`);
  }

  #start(): void {
    if (this.#running !== null) return;
    const process = new SimProcess(this.time, () => {
      this.#toKill -= 1;
      if (this.#toKill <= 0) this.#kill();
    });
    let controller: Controller | null = null;
    process.run(() => {
      controller = createController({
        ...{ clock: process, log: { info() {}, warn() {}, error() {} }, hosts: this.#hosts },
        clouds: new Map([['sim', { cloud: this.#cloudOf(process), owner: 'ours' }]]),
        store: this.#storeOf(process),
        userData: () => 'text',
      });
      controller.start();
      for (const { host } of this.#hosts) controller.setWaiting(host, this.#waiting);
    });
    if (controller !== null && !process.isDead) {
      this.#running = { process, controller };
      this.#runsSince = this.time.now;
    } else this.time.after(minute, () => this.#start());
  }

  #kill(): void {
    const { process } = this.#running ?? {};
    this.#toKill = Number.POSITIVE_INFINITY;
    if (process === undefined) return;
    this.counts.kills += 1;
    this.tell('the controller is killed');
    this.#running = null;
    this.#runsSince = Number.POSITIVE_INFINITY;
    process.kill();
    asWorld(() => this.time.after(this.#random() * this.#pick([second, minute, 30 * minute]), () => this.#start()));
  }

  #killsCome(): void {
    const next = (): void => {
      this.time.after(this.#random() * 2 * hour, () => {
        if (!this.#isTroubled) return;
        this.#toKill = 1 + Math.floor(this.#random() * 30);
        next();
      });
    };
    next();
  }

  #storeOf(process: SimProcess): { machines: MachineTable; transaction: never } {
    let pending: (() => void)[] = [];
    const rows = () => [...this.#rows.values()].map((body) => JSON.parse(body) as Machine);
    const machines: MachineTable = {
      put: (machine) => void pending.push(() => this.#put(machine)),
      live: () => rows().filter(({ state }) => state !== 'gone'),
      gone: (since) => rows().filter((one) => one.state === 'gone' && one.since >= since),
      newest: (limit) =>
        rows()
          .filter(({ state }) => state === 'gone')
          .slice(-limit),
      get: (run) => {
        const body = this.#rows.get(run);
        return body === undefined ? null : (JSON.parse(body) as Machine);
      },
      prune: () => {},
      wanted: () => new Map(this.#wants),
      want: (host, count) => void pending.push(() => void this.#wants.set(host, count)),
    };
    const transaction = (_: unknown, fn: () => unknown): unknown => {
      process.point('commit');
      pending = [];
      const result = fn();
      for (const effect of pending) effect();
      process.point('commit');
      return result;
    };
    return { machines, transaction: transaction as never };
  }

  #put(machine: Machine): void {
    const { run, state, why } = machine;
    const before = this.#rows.get(run);
    this.#rows.set(run, JSON.stringify(machine));
    if (before !== undefined && (JSON.parse(before) as Machine).state === state) return;
    this.tell(`${run} ${state}${why === null ? '' : ` (${why})`}`);
    if (state !== 'gone') return;
    this.counts.gone += 1;
    const left = this.#ours().find((thing) => thing.tags.run === run && thing.visible <= this.time.now - 30 * second);
    if (left !== undefined) this.broken(`${run} is called gone, and ${left.kind} ${left.id} lives`);
  }

  /** A call of the cloud: a kill before it, while it is under way, or after it. */
  async #call<T>(process: SimProcess, longest: number, effect: () => T): Promise<T> {
    this.counts.calls += 1;
    process.point('service');
    const [before, after] = [this.#random() * longest, this.#random() * longest];
    const result = await new Promise<T>((resolve, reject) => {
      // The cloud does it even if nobody waits for the answer.
      asWorld(() =>
        this.time.after(before, () => {
          try {
            const value = effect();
            this.time.after(after, () => process.run(() => resolve(value)));
          } catch (error) {
            this.time.after(after, () => process.run(() => reject(error)));
          }
        }),
      );
    });
    if (process.isDead) return await new Promise<never>(() => {});
    process.point('service');
    this.#heard = this.#cloudNow() * 1000 - this.time.now;
    return result;
  }

  #cloudOf(process: SimProcess): Cloud {
    const unreachable = (isAmbiguous: boolean) =>
      new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true, isAmbiguous });
    this.#heard = null;
    return {
      ...{ name: 'sim', type: 'sim', credential: 'test', capabilities: { guestEnds: false, endRemoves: true } },
      usualImage: { from: 'image', has: 'everything' },
      skew: () => (this.#heard === null ? null : this.#heard + this.time.now - this.time.wall),
      zones: (type) =>
        this.#call(process, second, () => {
          if (this.#fails()) throw unreachable(false);
          return type === 'big' ? ['a', 'b'] : [null];
        }),
      price: async () => ({ perHour: 1, asOf: '2020-01-01' }),
      preflight: async () => [],
      deliver: async () => {},
      console: () => this.#call(process, second, () => ''),
      create: (order) => this.#call(process, 20 * second, () => this.#create(order, unreachable)),
      setEnd: (_, made: Made) =>
        this.#call(process, 2 * second, () => {
          if (this.#fails()) throw unreachable(true);
          if (this.#fails()) throw new CloudError('E_CLOUD_END', 'The cloud does not confirm the end.');
          const found = this.#existing.get(made.id);
          if (found === undefined) throw new CloudError('E_CLOUD_REQUEST', 'There is no such machine.');
          if (!found.isEndSet && this.#isCloudTrue) this.#endLater(found);
          found.isEndSet = true;
          return 'timer';
        }),
      list: (owner, scope) => this.#call(process, 3 * second, () => this.#list(owner, scope.places)),
      destroy: (thing) =>
        this.#call(process, 5 * second, () => {
          this.counts.destroys += 1;
          if (this.#fails()) throw unreachable(true);
          const found = this.#existing.get(thing.id);
          if (found === undefined) return;
          this.#mayDestroy(found);
          found.isAsked = true;
          if (this.#fails()) return;
          if (this.#fails()) throw unreachable(true);
          this.#vanish(found, this.#random() * this.#pick([10 * second, 2 * minute, 6 * minute]));
        }),
    };
  }

  /** ms of virtual time at which the cloud's clock shows `seconds`. */
  #when(seconds: number): number {
    return Math.max(0, (seconds - this.#cloudNow()) * 1000);
  }

  #endLater(found: Existing): void {
    this.time.after(this.#when(found.tags.expires) + this.#random() * 30 * second, () => this.#vanish(found, 0));
  }

  #vanish(found: Existing, ms: number): void {
    if (!this.#existing.has(found.id)) return;
    found.state = 'ending';
    this.time.after(ms, () => {
      this.#existing.delete(found.id);
      if (found.kind !== 'machine') return;
      this.#busy.delete(found.tags.run);
      const disk = this.#existing.get(`${found.id}-disk`);
      // A disk may survive its machine.
      if (disk !== undefined && !this.#fails()) this.#existing.delete(disk.id);
    });
  }

  #mayDestroy({ tags, id }: Existing): void {
    if (tags.owner !== 'ours' || id.startsWith('elsewhere')) this.broken(`${id} of others was asked to go`);
    const body = this.#rows.get(tags.run);
    const row = body === undefined ? null : (JSON.parse(body) as Machine);
    if (row === null) {
      if (this.#cloudNow() < tags.expires) this.broken(`${id} was asked to go, and no row says why`);
      return;
    }
    if (row.state !== 'ending') this.broken(`${id} was asked to go while its row is ${row.state}`);
    const isForced = row.isFailure || row.why === 'Somebody asked for it.' || this.#cloudNow() >= tags.expires;
    if (this.#busy.has(tags.run) && !isForced) this.broken(`${tags.run} was asked to go (${row.why}) while a job ran on it`);
  }

  #create(order: Order, unreachable: (isAmbiguous: boolean) => CloudError): Made {
    const { token, offer, owner, run, host, born, expires } = order;
    if (this.#tokens.has(token)) this.broken(`token ${token} was used twice`);
    this.#tokens.add(token);
    if (!this.#rows.has(run)) this.broken(`${run} is created, and no row knows it`);
    const rules = this.#hosts.find((one) => one.host === host);
    const there = this.#ours().filter((one) => one.kind === 'machine' && one.tags.host === host && !one.isAsked);
    const known = there.filter((one) => one.state !== 'ending' && !one.isDenied && one.visible <= one.createdAt + minute);
    if (rules !== undefined && known.length >= rules.max)
      this.broken(`a machine is created for ${host}, which has ${known.length} of ${rules.max}`);
    if (this.#isTroubled && this.#chance(0.2)) {
      const zones = offer.type === 'big' && this.#chance(0.5) ? ['b'] : [];
      throw new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { zones, retry: true });
    }
    if (this.#fails(0.3)) throw new CloudError('E_CLOUD_QUOTA', 'The quota is 0.');
    if (this.#fails()) throw unreachable(true);
    this.counts.created += 1;
    const id = `i-${this.counts.created}`;
    const tags = { owner, run, host, born, expires };
    const visible = this.time.now + (this.#fails() ? this.#random() * this.#pick([minute, 10 * minute]) : this.#random() * second);
    const found = this.#exist({ kind: 'machine', id, tags, offer, visible });
    this.#exist({ kind: 'disk', id: `${id}-disk`, tags, offer: null, visible });
    this.#boot(found);
    if (this.#fails()) throw unreachable(true);
    // Reported as failed, and created all the same.
    found.isDenied = this.#fails(0.5);
    if (found.isDenied) throw new CloudError('E_CLOUD_CAPACITY', 'No capacity.', { retry: true });
    return { id, place: 'here', zone: offer.zone };
  }

  #list(owner: string, _places: readonly string[]): Listing {
    this.counts.lists += 1;
    if (this.#fails()) throw new CloudError('E_CLOUD_UNREACHABLE', 'The cloud gave no answer.', { retry: true });
    const all = [...this.#existing.values()].filter(({ tags, visible }) => tags.owner === owner && visible <= this.time.now);
    const isPartial = this.#fails();
    // A list may lag behind once, but not twice in a row.
    const lag = !isPartial && this.#lagged === null && this.#fails() ? (this.#pick(all)?.tags.run ?? null) : null;
    if (!isPartial) this.#lagged = lag;
    const things = (isPartial ? all.filter(() => this.#chance(0.5)) : all.filter(({ tags }) => tags.run !== lag)).map(
      ({ kind, id, tags, state, offer }) => ({
        ...{ kind, id, place: 'here', run: tags.run, host: tags.host, born: tags.born, expires: tags.expires, state, offer },
      }),
    );
    return { things, unknown: isPartial ? ['zone b (unreachable)'] : [] };
  }

  /** What runs on the machine: it joins, takes jobs, and reports. */
  #boot(machine: Existing): void {
    const { run } = machine.tags;
    const lives = () => this.#existing.get(machine.id) === machine && machine.state !== 'ending';
    const asController = (fn: (controller: Controller) => void): boolean => {
      const running = this.#running;
      if (running === null) return false;
      running.process.run(() => fn(running.controller));
      return !running.process.isDead;
    };
    if (machine.offer?.spot && this.#fails(2))
      this.time.after(this.#random() * 2 * hour, () => {
        if (!lives()) return;
        asController((controller) => controller.change(run, (one, now) => drained(one, now, 'The cloud takes it back.', true)));
        this.time.after(2 * minute, () => this.#vanish(machine, 0));
      });
    if (this.#fails()) return;
    let isDrained = false;
    // It may crash for good, or lose its network.
    const dies = this.#fails(0.5) ? this.time.now + this.#random() * hour : Number.POSITIVE_INFINITY;
    const beat = (): void => {
      if (!lives() || this.time.now > dies) return;
      let row: Machine | null = null;
      const isHeard = asController((controller) => {
        row = controller.get(run);
        const busy = this.#busy.has(run) ? 1 : 0;
        const idleFor = busy === 1 ? 0 : (this.time.now - (this.#idleSince.get(run) ?? this.time.now)) / 1000;
        controller.report(run, { busy, agents: 1, idleFor, problem: null });
      });
      const state = (row as Machine | null)?.state;
      if (isHeard && (state === 'draining' || state === 'ending')) isDrained = true;
      if (isDrained && !this.#busy.has(run)) {
        asController((controller) => controller.change(run, (one, now) => ended(one, now, 'It has drained.', false)));
      } else if (!isDrained && this.#waiting > 0 && !this.#busy.has(run)) this.#takeJob(machine);
      this.time.after(15 * second, beat);
    };
    const join = (): void => {
      if (!lives()) return;
      let isIn = false;
      asController((controller) => {
        const row = controller.get(run);
        if (row === null || row.state === 'ending') return;
        controller.joined(run);
        isIn = true;
      });
      if (!isIn) return void this.time.after(10 * second, join);
      this.#idleSince.set(run, this.time.now);
      beat();
    };
    this.time.after(minute + this.#random() * 5 * minute, join);
  }

  #takeJob(machine: Existing): void {
    const { run } = machine.tags;
    this.#waiting -= 1;
    this.counts.jobs += 1;
    this.#tellWaiting();
    this.#busy.set(run, this.time.now);
    this.time.after(minute + this.#random() * 20 * minute, () => {
      this.#busy.delete(run);
      this.#idleSince.set(run, this.time.now);
    });
  }

  #tellWaiting(): void {
    const running = this.#running;
    running?.process.run(() => {
      for (const { host } of this.#hosts) running.controller.setWaiting(host, this.#waiting);
    });
  }

  /** Looks every minute at what outlives its end of life. */
  #look(): void {
    for (const thing of this.#ours()) {
      const over = this.#cloudNow() - thing.tags.expires;
      const isSeen = this.time.now - Math.max(this.#runsSince, thing.visible) > 30 * minute;
      // Calls that fail again and again are what takes that long.
      if (over > 1800 && isSeen && !thing.isAsked && this.#play.trouble < 0.3)
        this.broken(`${thing.kind} ${thing.id} lives ${over} s after its end`);
    }
    this.time.after(minute, () => this.#look());
  }

  #peopleCome(): void {
    this.time.after(this.#random() * 3 * hour, () => {
      const running = this.#running;
      const { host } = this.#pick(this.#hosts);
      const act = this.#pick(['up', 'up', 'up', 'down', 'now']);
      this.tell(`somebody asks for ${act} of ${host}`);
      running?.process.run(() => {
        if (act === 'up') running.controller.up(host);
        else running.controller.down(host, act === 'now');
      });
      if (this.#isTroubled) this.#peopleCome();
    });
  }

  /** Somebody, or NTP, sets the clock of the controller's host. */
  #clockSteps(): void {
    this.time.after(this.#random() * 8 * hour, () => {
      if (!this.#isTroubled) return;
      this.time.jumped = this.#pick([0, 8 * hour, -8 * hour, 90 * second]);
      this.tell(`the wall clock is ${this.time.jumped / 1000} s off`);
      this.#clockSteps();
    });
  }

  #jobsCome(): void {
    const next = (): void => {
      this.time.after(this.#random() * this.#pick([minute, 10 * minute, 2 * hour]), () => {
        if (!this.#isTroubled) return;
        this.#waiting += 1 + Math.floor(this.#random() * 3);
        this.#tellWaiting();
        next();
      });
    };
    next();
  }
}
