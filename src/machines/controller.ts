/**
 * Keeps the machines of `hosts`: makes them when jobs wait or people ask, and removes them for certain. It plans (`plan.ts`), writes
 * down what it is about to do, and calls the clouds. No job passes through it: each machine runs its own onejob.
 */
import { hasCode, messageOf, OnejobError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { offerText } from '../clouds/offer.ts';
import { type Clock, doubling, Timers } from '../core/clock.ts';
import { type Cloud, CloudError, type Made, type Offer, type Order, ownThings, type Price, type Thing } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import { isWanted, type Machine, mayLive, thingKey } from '../store/machine.ts';
import type { Store } from '../store/store.ts';
import { CloudMemory, type OwnedCloud } from './cloud-memory.ts';
import { newSecret } from './join/protocol.ts';
import { adopted, intended } from './machine-row.ts';
import { Offers } from './offers.ts';
import {
  afterList,
  drained,
  ended,
  type Failing,
  type Listed,
  type MachineStep,
  plan,
  type Report,
  resolved,
  stepKey,
} from './plan.ts';
import { createWishes } from './wishes.ts';

export interface ControllerParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Pick<Store, 'machines' | 'transaction'>;
  readonly clouds: ReadonlyMap<string, OwnedCloud>;
  readonly hosts: readonly HostConfig[];
  /** The text for cloud-init of a new machine, with its join token. */
  readonly userData: (host: HostConfig, cloud: Cloud, birth: { readonly run: string; readonly token: string }) => string;
  /** The only host whose number of machines it looks after; default: all. It sees to the end of all machines. */
  readonly only?: string;
  /** Called after each change of a machine. */
  readonly changed?: (machine: Machine) => void;
  /** Why machines cannot join, as the end of a sentence; null: they can. */
  readonly deaf?: () => string | null;
}

/** Runs and hosts that it does not know change nothing. */
export interface Controller {
  start(): void;
  /** How many jobs wait for machines of the host. */
  setWaiting(host: string, jobs: number): void;
  waiting(host: string): number;
  /**
   * Asks for a machine of the host, unless one is ready, and ends a `down`. Offers that were unavailable are asked for at once. The wish
   * is over after `wait` ms.
   */
  up(host: string, wait: number): void;
  /** How many machines people wait for. */
  wanted(host: string): number;
  /**
   * Looks for machines of the host that are not in the ledger, such as those of an earlier stage of a pipeline, to remove them.
   * Only the onejob that made them knows their secrets, so without `drains` they end at once; with it, those that run are told to drain
   * first. Returns their runs, and what could not be listed.
   */
  adopt(host: string, drains?: boolean): Promise<{ readonly runs: readonly string[]; readonly unknown: readonly string[] }>;
  /** Ends all machines of the host: those that work drain first, unless `now`. It gets no others until `up`. */
  down(host: string, now?: boolean): void;
  /** Takes back an `up`: ends the machines of the host that have not joined, and makes no other for it. */
  callOff(host: string): void;
  /** The machine reports that it was set up. */
  joined(run: string): void;
  report(run: string, report: Omit<Report, 'at' | 'workedAt'>): void;
  /** Nobody can hear the machine, which is not its fault: it lives, and neither works nor fails. */
  unheard(run: string, problem: string): void;
  /** The machine has so many jobs more, or fewer, than it last reported: it says so itself only later. */
  took(run: string, change: 1 | -1): void;
  /** Changes a machine by what it said. `now`: seconds by the clock of its cloud. */
  change(run: string, how: (machine: Machine, now: number) => Machine): void;
  get(run: string): Machine | null;
  /** All but those that are gone. */
  machines(): readonly Machine[];
  reports(): ReadonlyMap<string, Report>;
  receipts(limit: number): readonly Machine[];
  /** Why the host has fewer machines than its jobs need, as the end of a sentence, or null. */
  reason(host: string): string | null;
  /** The latest list of the cloud; null: there was none. */
  listed(cloud: string): Listed | null;
  /** Why no try brings a machine of the host until a person changes something. */
  refusal(host: string): OnejobError | null;
  /** Why things of the cloud could not be asked to go, one sentence each. */
  refused(cloud: string): readonly string[];
  /** Seconds since the epoch by the clock of the cloud. */
  nowOf(cloud: string): number;
  /** Ends its own work. Machines stay, and end at their end of life at the latest. */
  close(): void;
}

export const createController = (parts: ControllerParts): Controller => new MachineController(parts);

/** Seconds until a failed call of each kind is made again. */
const failedAgain = 20;
/** Characters of a console that a receipt keeps. */
const consoleKept = 4_000;
/** Seconds until another machine is made for a host whose second one failed, and the longest such time. */
const [failingFirst, failingLongest] = [300, 7200];
/** Seconds before its start from which a controller knows owners. */
const lateFor = 86_400;
/** Seconds after which a machine that has joined and has no problem proves that machines of its host can work. */
const provenAfter = 300;
/** Seconds for which receipts are kept. */
const receiptsKept = 400 * 86_400;

type Call = Exclude<MachineStep, { readonly do: 'change' | 'create' }>;

class MachineController implements Controller {
  readonly #parts: ControllerParts;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #store: ControllerParts['store'];
  readonly #clouds: ReadonlyMap<string, CloudMemory>;
  readonly #machines: Map<string, Machine>;
  readonly #wishes: ReturnType<typeof createWishes>;
  readonly #waiting = new Map<string, number>();
  readonly #reports = new Map<string, Report>();
  readonly #offers = new Offers();
  readonly #failing = new Map<string, Failing>();
  readonly #ending = new AbortController();
  readonly #timers: Timers;
  #reasons: ReadonlyMap<string, string> = new Map();
  #isStarted = false;
  #isPlanned = false;

  constructor(parts: ControllerParts) {
    const { clock, log, store, clouds } = parts;
    this.#parts = parts;
    this.#clock = clock;
    this.#log = log;
    this.#store = store;
    this.#timers = new Timers(clock);
    this.#wishes = createWishes(clock, store);
    this.#machines = new Map(store.machines.live().map((machine) => [machine.run, machine]));
    const late = Map.groupBy(store.machines.gone(Math.floor(clock.wall() / 1000) - lateFor), ({ cloud }) => cloud);
    const lateOf = (name: string): string[] => late.get(name)?.map(({ owner }) => owner) ?? [];
    this.#clouds = new Map([...clouds].map(([name, owned]) => [name, new CloudMemory(name, owned, clock, lateOf(name))]));
  }

  start(): void {
    this.#isStarted = true;
    this.#store.machines.prune(Math.floor(this.#clock.wall() / 1000) - receiptsKept);
    this.#soon();
  }

  close(): void {
    this.#ending.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
    this.#timers.clear();
    for (const { cloud } of this.#clouds.values()) cloud.close?.();
  }

  nowOf(cloud: string): number {
    return this.#clouds.get(cloud)?.now ?? Math.floor(this.#clock.wall() / 1000);
  }

  #of(host: string): Machine[] {
    return [...this.#machines.values()].filter((machine) => machine.host === host);
  }

  #in(cloud: string): Machine[] {
    return [...this.#machines.values()].filter((machine) => machine.cloud === cloud);
  }

  /** Durable: what was asked of a cloud must not be forgotten. */
  #commit(...changes: readonly Machine[]): void {
    if (changes.length === 0) return;
    this.#store.transaction({ durable: true }, () => {
      for (const machine of changes) this.#store.machines.put(machine);
    });
    for (const machine of changes) {
      const before = this.#machines.get(machine.run);
      if (mayLive(machine)) this.#machines.set(machine.run, machine);
      else {
        this.#machines.delete(machine.run);
        this.#reports.delete(machine.run);
      }
      if (before?.state !== machine.state) {
        this.#tell(machine);
        this.#count(machine);
      }
      this.#parts.changed?.(machine);
    }
    this.#soon();
  }

  #tell({ run, host, offer, why, isFailure, state }: Machine): void {
    const facts = { machine: run, host, offer: offerText(offer), ...(why !== null && { why }) };
    if (isFailure && state === 'ending') this.#log.warn('machine ends', facts);
    else this.#log.info(`machine ${state === 'intent' ? 'is created' : state}`, facts);
  }

  /** Machines that fail before they join, or cannot work then, are made ever more slowly. */
  #count({ host, cloud, state, isFailure, joinedAt, stage, made, why }: Machine): void {
    if (state !== 'ending' || !isFailure || made === null || (joinedAt !== null && stage !== 'failed')) return;
    const failures = (this.#failing.get(host)?.failures ?? 0) + 1;
    const wait = failures === 1 ? 0 : doubling(failingFirst, failingLongest, failures - 1);
    const at = this.nowOf(cloud);
    this.#failing.set(host, { failures, at, until: at + wait, why: why ?? '' });
  }

  /** Plans once more, after what happens now. */
  #soon(): void {
    if (!this.#isStarted || this.#isPlanned) return;
    this.#isPlanned = true;
    queueMicrotask(() => {
      this.#isPlanned = false;
      if (this.#ending.signal.aborted) return;
      try {
        this.#tick();
      } catch (error) {
        this.#troubled(error);
      }
    });
  }

  /** The store may refuse a commit. What was not written was not begun. */
  #troubled(error: unknown): void {
    this.#log.error('failed to look after machines', { error });
    this.#lookAt(this.#clock.now() + failedAgain * 1000);
  }

  #lookAt(at: number): void {
    this.#timers.arm('look', at, () => this.#soon());
  }

  #tick(): void {
    this.#expireWishes();
    const { hosts, only = null } = this.#parts;
    const today = Math.floor(Math.min(...[...this.#clouds.values()].map(({ now }) => now)) / 86_400) * 86_400;
    const deaf = this.#parts.deaf?.() ?? null;
    if (deaf !== null) for (const memory of this.#clouds.values()) if (memory.since !== null) memory.deafAt = memory.now;
    const found = plan({
      clouds: new Map([...this.#clouds].map(([name, memory]) => [name, memory.view()])),
      wanted: this.#wishes.all(),
      hosts,
      reports: this.#reports,
      waiting: this.#waiting,
      offers: this.#offers,
      failing: this.#failing,
      only,
      deaf,
      machines: this.machines(),
      goneToday: hosts.some(({ budget }) => budget !== null) ? this.#store.machines.gone(today) : [],
    });
    this.#reasons = found.reasons;
    try {
      this.#commit(...found.steps.flatMap((step) => (step.do === 'change' ? [step.machine] : [])));
    } catch (error) {
      // What is recorded already continues.
      this.#troubled(error);
    }
    for (const step of found.steps) if (step.do !== 'change') this.#act(step).catch((error) => this.#troubled(error));
    this.#lookAt(Math.min(this.#clock.now() + found.lookAgain * 1000, this.#wishes.nextEnd));
  }

  #expireWishes(): void {
    for (const host of this.#wishes.over()) this.#expire(host);
    // Nobody waits for a machine that no try brings: each command that waits is told why.
    for (const [host, count] of this.#wishes.all())
      if (count > 0 && this.#of(host).length === 0 && this.refusal(host) !== null) this.#expire(host);
  }

  /** A store that is full must not keep machines from being removed. */
  #expire(host: string): void {
    try {
      this.#wishes.set(host, 0);
    } catch (error) {
      this.#wishes.postpone(host, failedAgain * 1000);
      this.#troubled(error);
    }
  }

  refusal(name: string): OnejobError | null {
    const host = this.#parts.hosts.find((one) => one.host === name);
    const memory = host === undefined ? undefined : this.#clouds.get(host.cloud);
    if (host === undefined || memory === undefined) return null;
    if (memory.refusal !== null) return memory.refusal;
    const next = this.#offers.next(host, memory.types, memory.now);
    if (next.offer !== null || next.because.some(({ lasting }) => lasting === null)) return null;
    return next.because[0]?.lasting ?? null;
  }

  async #act(step: Call | Extract<MachineStep, { readonly do: 'create' }>): Promise<void> {
    const name = step.do === 'create' ? step.host.cloud : step.do === 'setEnd' ? step.machine.cloud : step.cloud;
    const memory = this.#clouds.get(name);
    if (memory === undefined) return;
    if (step.do === 'create') return this.#create(step.host, step.offer, step.price, memory);
    const key = stepKey(step);
    memory.calling.add(key);
    try {
      await this.#call(step, memory);
      memory.notBefore.delete(key);
    } catch (error) {
      if (!this.#ending.signal.aborted) this.#failed(step, error, memory);
    } finally {
      memory.calling.delete(key);
      if (!this.#ending.signal.aborted) this.#soon();
    }
  }

  #call(step: Call, memory: CloudMemory): Promise<void> {
    switch (step.do) {
      case 'list':
        return this.#list(memory);
      case 'learn':
        return this.#learn(step.type, memory);
      case 'setEnd':
        return this.#setEnd(step.machine, step.made, memory);
      case 'destroy':
        return this.#destroy(step.thing, memory);
    }
  }

  #failed(step: Call, error: unknown, { name, now, notBefore, refused }: CloudMemory): void {
    const key = stepKey(step);
    notBefore.set(key, now + failedAgain);
    if (step.do === 'learn') this.#offers.unknown(name, step.type, error, now);
    if (step.do === 'destroy') {
      const [thing, why] = [thingKey(step.thing), messageOf(error)];
      // What is refused again and again is told once; status continues to show it.
      if (refused.get(thing) === why) return;
      refused.set(thing, why);
    }
    this.#log.warn(`cloud ${name}: call failed`, { call: key, error });
  }

  async #create(host: HostConfig, offer: Offer, price: Price | null, memory: CloudMemory): Promise<void> {
    const { cloud } = memory;
    const joinToken = newSecret();
    const intent = intended(host, memory, { offer, price, joinToken, now: memory.now });
    const { run, owner, born, expires, token } = intent;
    let userData: string;
    try {
      userData = this.#parts.userData(host, cloud, { run, token: joinToken });
    } catch (error) {
      this.#log.error('no machine can be made', { host: host.host, error });
      this.#offers.failed(cloud.name, offer, error, born);
      this.#soon();
      return;
    }
    const image = host.image ?? cloud.usualImage;
    const order: Order = { owner, run, host: host.host, born, expires, offer, token, image, userData, disk: host.disk };
    this.#commit(intent);
    memory.calling.add(`create ${run}`);
    const result = await settled(cloud.create(order, this.#ending.signal));
    memory.calling.delete(`create ${run}`);
    // Nobody will know how a call ended that was given up; the next controller looks.
    if (this.#ending.signal.aborted) return;
    const { now } = memory;
    const current = this.#machines.get(run) ?? intent;
    if (result.ok) {
      this.#offers.succeeded(cloud.name, offer);
      const state = current.state === 'intent' ? 'made' : current.state;
      this.#commit({ ...current, state, made: result.value, since: now, absent: [] });
    } else this.#notCreated(current, result.error, now);
  }

  #notCreated(machine: Machine, error: unknown, now: number): void {
    const { run, host, cloud, offer } = machine;
    // An answer that says nothing about the machine may still say that there is no capacity.
    this.#offers.failed(cloud, offer, error, now);
    const isCertain = error instanceof CloudError ? !error.isAmbiguous : hasCode(error, 'E_SECRET');
    if (!isCertain) this.#log.warn('it is unknown whether a machine was created', { machine: run, host, error });
    const after = isCertain ? resolved(machine, now, messageOf(error), true) : machine;
    this.#commit({ ...after, since: now, absent: [] });
  }

  /** @throws CloudError if it is worth another try */
  async #setEnd({ run }: Machine, made: Made, memory: CloudMemory): Promise<void> {
    const machine = this.#machines.get(run);
    if (machine === undefined) return;
    const result = await settled(memory.cloud.setEnd(machine, made, this.#ending.signal));
    const current = this.#machines.get(run);
    if (current === undefined || this.#ending.signal.aborted) return;
    const { now } = memory;
    if (result.ok) {
      const state = current.state !== 'made' ? current.state : current.joinedAt === null ? 'booting' : 'joined';
      this.#commit({ ...current, state, since: state === current.state ? current.since : now, end: result.value });
      return;
    }
    const { error } = result;
    if (error instanceof CloudError && error.retry && error.code !== 'E_CLOUD_END') throw error;
    this.#offers.failed(memory.name, current.offer, error, now);
    this.#commit(ended(current, now, messageOf(error), true));
  }

  async #list(memory: CloudMemory): Promise<void> {
    const { name, cloud, owner, late } = memory;
    const here = this.#in(name);
    const places = [...new Set(here.flatMap(({ made }) => made?.place ?? []))];
    // Machines that were made for an earlier owner are still ours.
    const owners = new Set([owner, ...here.map((one) => one.owner), ...late]);
    const began = this.#clock.now();
    const scope = { places, everywhere: false };
    const result = await settled(Promise.all([...owners].map((one) => cloud.list(one, scope, this.#ending.signal))));
    if (this.#ending.signal.aborted) return;
    if (memory.hearTime()) for (const { run } of here) this.#reports.delete(run);
    const at = memory.now;
    // The cloud tells whole seconds, so its time may have moved by one meanwhile.
    const from = at - Math.ceil((this.#clock.now() - began) / 1000) - 1;
    if (!result.ok) {
      memory.unlisted(result.error, from, at);
      this.#log.warn(`cloud ${name}: failed to list`, { error: result.error });
      return;
    }
    this.#commit(...this.#changesBy(memory.took(result.value, from, at), memory));
  }

  #changesBy(listed: Listed, { name, calling }: CloudMemory): Machine[] {
    const byRun = Map.groupBy(listed.things, ({ run }) => run ?? '');
    const appeared = [...byRun.keys()].filter((run) => run !== '' && !this.#machines.has(run));
    const gone = appeared.flatMap((run) => this.#store.machines.get(run) ?? []);
    return [...this.#in(name), ...gone].flatMap((machine) => {
      const after = afterList(machine, listed, byRun.get(machine.run) ?? [], {
        isCreating: calling.has(`create ${machine.run}`),
        heardAt: this.#reports.get(machine.run)?.at ?? null,
      });
      return after === machine ? [] : [after];
    });
  }

  async #learn(type: string, memory: CloudMemory): Promise<void> {
    const { cloud, now } = memory;
    const { signal } = this.#ending;
    const priceOf = (spot: boolean) => cloud.price({ type, spot }, signal).catch(() => null);
    const [zones, price, spotPrice] = await Promise.all([cloud.zones(type, signal), priceOf(false), priceOf(true)]);
    memory.learnt(type, { zones, price, spotPrice }, now);
  }

  async #destroy(thing: Pick<Thing, 'kind' | 'id' | 'place'>, { cloud, now, asked, refused }: CloudMemory): Promise<void> {
    const { signal } = this.#ending;
    asked.set(thingKey(thing), now);
    const machine = [...this.#machines.values()].find(({ made }) => made?.id === thing.id);
    // A console is lost with its machine, and says why it did not join.
    if (machine?.console === null && machine.joinedAt === null && thing.kind === 'machine') {
      const text = await cloud.console(thing, signal).catch(() => '');
      const current = this.#machines.get(machine.run);
      if (current !== undefined && text !== '') this.#commit({ ...current, console: text.slice(-consoleKept) });
    }
    await cloud.destroy(thing, signal);
    refused.delete(thingKey(thing));
  }

  change(run: string, how: (machine: Machine, now: number) => Machine): void {
    const machine = this.#machines.get(run);
    if (machine === undefined) return;
    const after = how(machine, this.nowOf(machine.cloud));
    if (after !== machine) this.#commit(after);
  }

  setWaiting(host: string, jobs: number): void {
    if (this.#waiting.get(host) === jobs) return;
    this.#waiting.set(host, jobs);
    this.#soon();
  }

  waiting(host: string): number {
    return this.#waiting.get(host) ?? 0;
  }

  wanted(host: string): number {
    return Math.max(0, this.#wishes.of(host));
  }

  up(host: string, wait: number): void {
    this.#failing.delete(host);
    const isThere = this.#of(host).some((machine) => machine.state === 'joined' && isWanted(machine));
    if (isThere) this.#wishes.set(host, 0);
    else this.#wishes.set(host, 1, wait);
    const found = this.#parts.hosts.find((one) => one.host === host);
    if (found !== undefined && !isThere) {
      this.#offers.forget(found);
      const memory = this.#clouds.get(found.cloud);
      if (memory !== undefined) memory.refusal = null;
    }
    this.#soon();
  }

  down(host: string, now = false): void {
    this.#wishes.set(host, -1);
    const why = 'It was ended with "onejob cloud down".';
    for (const { run } of this.#of(host))
      this.change(run, (machine, time) =>
        machine.state === 'joined' && !now ? drained(machine, time, why) : endedNow(machine, time, why, now),
      );
  }

  callOff(host: string): void {
    if (this.#wishes.of(host) > 0) this.#wishes.set(host, 0);
    const why = 'It is no longer wanted: "onejob cloud up" was interrupted or gave up.';
    for (const { run, joinedAt } of this.#of(host))
      if (joinedAt === null) this.change(run, (machine, time) => endedNow(machine, time, why, true));
  }

  async adopt(host: string, drains = false): Promise<{ readonly runs: readonly string[]; readonly unknown: readonly string[] }> {
    const runs: string[] = [];
    const unknown: string[] = [];
    for (const memory of this.#clouds.values()) {
      const { name, cloud, owner } = memory;
      const result = await settled(cloud.list(owner, { places: [], everywhere: false }, this.#ending.signal));
      this.#ending.signal.throwIfAborted();
      if (!result.ok) {
        unknown.push(`cloud ${name}: ${messageOf(result.error)}`);
        continue;
      }
      const listed = ownThings(result.value);
      unknown.push(...listed.unknown.map((what) => `cloud ${name}: ${what}`));
      const strange = listed.things.filter((thing) => thing.host === host && thing.run !== null && !this.#machines.has(thing.run));
      for (const [run, things] of Map.groupBy(strange, (thing) => thing.run ?? ''))
        if (this.#store.machines.get(run) === null) {
          this.#commit(adopted(run, things, memory, { host, now: memory.now, drains }));
          runs.push(run);
        }
    }
    return { runs, unknown };
  }

  joined(run: string): void {
    this.change(run, (machine, now) => {
      if (machine.joinedAt !== null || !isWanted(machine)) return machine;
      if (this.#wishes.of(machine.host) > 0) this.#wishes.set(machine.host, 0);
      const state = machine.state === 'booting' ? 'joined' : machine.state;
      return { ...machine, state, since: state === machine.state ? machine.since : now, joinedAt: now, stage: 'joined' };
    });
  }

  report(run: string, report: Omit<Report, 'at' | 'workedAt'>): void {
    const machine = this.#machines.get(run);
    if (machine === undefined) return;
    const before = this.#reports.get(run);
    const at = this.nowOf(machine.cloud);
    const works = report.busy > 0 || report.problem === null;
    this.#reports.set(run, { ...report, at, workedAt: works ? at : (before?.workedAt ?? null) });
    // One that has just joined may not know its problem yet; one that joined before the others failed says nothing about the next.
    const isProof = report.busy > 0 || (works && machine.joinedAt !== null && at >= machine.joinedAt + provenAfter);
    if (isProof && (machine.joinedAt ?? 0) > (this.#failing.get(machine.host)?.at ?? 0)) this.#failing.delete(machine.host);
    const idle = (this.#parts.hosts.find(({ host }) => host === machine.host)?.idle ?? 0) / 1000;
    // Most reports say what the last one said.
    const isIdle = report.idleFor >= idle && (before?.idleFor ?? 0) < idle;
    if (isIdle || before?.busy !== report.busy || before.agents !== report.agents || before.problem !== report.problem)
      this.#soon();
  }

  unheard(run: string, problem: string): void {
    const machine = this.#machines.get(run);
    if (machine === undefined) return;
    const { busy = 0, agents = 0, problem: before } = this.#reports.get(run) ?? {};
    const at = this.nowOf(machine.cloud);
    this.#reports.set(run, { busy, agents, idleFor: 0, problem, at, workedAt: at });
    if (before !== problem) this.#soon();
  }

  took(run: string, change: 1 | -1): void {
    const report = this.#reports.get(run);
    if (report === undefined) return;
    this.#reports.set(run, { ...report, busy: Math.max(0, report.busy + change), idleFor: 0 });
    this.#soon();
  }

  get(run: string): Machine | null {
    return this.#machines.get(run) ?? null;
  }

  machines(): readonly Machine[] {
    return [...this.#machines.values()];
  }

  reports(): ReadonlyMap<string, Report> {
    return this.#reports;
  }

  receipts(limit: number): readonly Machine[] {
    return this.#store.machines.newest(limit);
  }

  reason(host: string): string | null {
    return this.#reasons.get(host) ?? null;
  }

  listed(cloud: string): Listed | null {
    return this.#clouds.get(cloud)?.listed ?? null;
  }

  refused(cloud: string): readonly string[] {
    return [...(this.#clouds.get(cloud)?.refused.values() ?? [])];
  }
}

/** Also a machine that drains is ended at once when somebody cannot wait. */
function endedNow(machine: Machine, time: number, why: string, now: boolean): Machine {
  if (machine.state === 'draining' && !now) return machine;
  if (machine.state === 'intent' && machine.why !== null) return machine;
  return machine.state === 'ending' ? machine : ended({ ...machine, why: null }, time, why, false);
}

async function settled<T>(
  promise: Promise<T>,
): Promise<{ readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: unknown }> {
  try {
    return { ok: true, value: await promise };
  } catch (error) {
    return { ok: false, error };
  }
}
