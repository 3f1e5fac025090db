/**
 * Keeps the machines of `hosts`: makes them when jobs wait or people ask, and removes them for certain. It plans (`plan.ts`), writes
 * down what it is about to do, and calls the clouds. No job passes through it: each machine runs its own onejob.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { hasCode, messageOf, OnejobError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { offerText } from '../clouds/offer.ts';
import { type Clock, doubling, Timers } from '../core/clock.ts';
import { type Cloud, CloudError, type Made, type Offer, type Order, ownThings, type Price, type Thing } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import { isWanted, type Machine, mayLive, thingKey } from '../store/machine.ts';
import type { Store } from '../store/store.ts';
import { hashOf, newSecret } from './join/protocol.ts';
import { createOffers } from './offers.ts';
import {
  afterList,
  type CloudView,
  drained,
  ended,
  type Failing,
  type Listed,
  type MachineStep,
  orphansAfter,
  plan,
  type Report,
  resolved,
  stepKey,
  type TypeFacts,
} from './plan.ts';

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

export interface OwnedCloud {
  readonly cloud: Cloud;
  /** The owner in the tags. */
  readonly owner: string;
}

export type Controller = ReturnType<typeof createController>;

/** Seconds for which facts about a type hold. */
const factsHold = 86_400;
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
/** ms; a wall clock that was wrong makes no wish longer. */
const wishLongest = 86_400_000;
/** Seconds for which receipts are kept. */
const receiptsKept = 400 * 86_400;

export function createController(parts: ControllerParts) {
  const { clock, log, store, clouds, hosts } = parts;
  const machines = new Map<string, Machine>(store.machines.live().map((machine) => [machine.run, machine]));
  const idleOf = new Map(hosts.map(({ host, idle }) => [host, idle]));
  const wishes = store.machines.wanted();
  const wishOf = (host: string): number => wishes.get(host)?.machines ?? 0;
  /** When wishes are over, by `clock.now()`, which no step of the wall clock changes. */
  const wishEnds = new Map(
    [...wishes].flatMap(([host, { until }]) =>
      until === null ? [] : [[host, clock.now() + Math.min(until - clock.wall(), wishLongest)] as const],
    ),
  );
  const waiting = new Map<string, number>();
  const reports = new Map<string, Report>();
  const offers = createOffers();
  const failing = new Map<string, Failing>();
  const ending = new AbortController();
  const timers = new Timers(clock);
  let reasons: ReadonlyMap<string, string> = new Map();
  let isStarted = false;
  let isPlanned = false;

  interface Memory {
    listed: Listed | null;
    /** Why the cloud does not list anything, if no other try changes that. */
    refusal: OnejobError | null;
    readonly types: Map<string, TypeFacts & { readonly at: number }>;
    readonly calling: Set<string>;
    readonly asked: Map<string, number>;
    readonly notBefore: Map<string, number>;
    orphans: ReadonlyMap<string, number>;
    since: number | null;
    deafAt: number;
    /** ms that the cloud's clock, or ours until it is known, is ahead of `clock.now()`: no step of the wall clock changes it. */
    base: number;
    /** Owners of what was called gone lately: it may appear after all. */
    readonly late: ReadonlySet<string>;
    /** Why things could not be asked to go, by `thingKey`. */
    readonly refused: Map<string, string>;
  }
  const late = Map.groupBy(store.machines.gone(Math.floor(clock.wall() / 1000) - lateFor), ({ cloud }) => cloud);
  const memories = new Map<string, Memory>(
    [...clouds.keys()].map((name) => [
      name,
      {
        listed: null,
        refusal: null,
        types: new Map(),
        calling: new Set(),
        asked: new Map(),
        notBefore: new Map(),
        orphans: new Map(),
        since: null,
        deafAt: 0,
        base: clock.wall() - clock.now(),
        late: new Set(late.get(name)?.map(({ owner }) => owner)),
        refused: new Map(),
      },
    ]),
  );

  const nowOf = (cloud: string): number => {
    const base = memories.get(cloud)?.base ?? clock.wall() - clock.now();
    return Math.floor((base + clock.now()) / 1000);
  };
  const memoryOf = (cloud: string): Memory => {
    const found = memories.get(cloud);
    if (found === undefined) throw new OnejobError('E_BUG', `There is no cloud ${cloud}.`);
    return found;
  };

  /** Durable: what was asked of a cloud must not be forgotten. */
  function commit(...changes: readonly Machine[]): void {
    if (changes.length === 0) return;
    store.transaction({ durable: true }, () => {
      for (const machine of changes) store.machines.put(machine);
    });
    for (const machine of changes) {
      const before = machines.get(machine.run);
      if (mayLive(machine)) machines.set(machine.run, machine);
      else {
        machines.delete(machine.run);
        reports.delete(machine.run);
      }
      if (before?.state !== machine.state) {
        tell(machine);
        count(machine);
      }
      parts.changed?.(machine);
    }
    soon();
  }

  function tell(machine: Machine): void {
    const { run, host, offer, why, isFailure, state } = machine;
    const facts = { machine: run, host, offer: offerText(offer), ...(why !== null && { why }) };
    if (isFailure && state === 'ending') log.warn('machine ends', facts);
    else log.info(`machine ${state === 'intent' ? 'is created' : state}`, facts);
  }

  function soon(): void {
    if (!isStarted || isPlanned) return;
    isPlanned = true;
    queueMicrotask(() => {
      isPlanned = false;
      if (ending.signal.aborted) return;
      try {
        tick();
      } catch (error) {
        troubled(error);
      }
    });
  }

  /** The store may refuse a commit. What was not written was not begun. */
  function troubled(error: unknown): void {
    log.error('failed to look after machines', { error });
    timers.arm('look', clock.now() + failedAgain * 1000, soon);
  }

  function viewOf(name: string): CloudView {
    const { types, ...rest } = memoryOf(name);
    const now = nowOf(name);
    for (const [type, { at }] of types) if (now > at + factsHold) types.delete(type);
    return { ...rest, now, types };
  }

  /** A store that is full must not keep machines from being removed. */
  function expire(host: string): void {
    try {
      want(host, 0);
    } catch (error) {
      wishEnds.set(host, clock.now() + failedAgain * 1000);
      troubled(error);
    }
  }

  function tick(): void {
    for (const [host, end] of wishEnds) if (clock.now() >= end) expire(host);
    // Nobody waits for a machine that no try brings: each command that waits is told why.
    for (const [host] of wishes) if (wishOf(host) > 0 && of(host).length === 0 && refusal(host) !== null) expire(host);
    const earliest = Math.min(...[...clouds.keys()].map(nowOf));
    const today = Math.floor(earliest / 86_400) * 86_400;
    const deaf = parts.deaf?.() ?? null;
    if (deaf !== null) for (const [name, memory] of memories) if (memory.since !== null) memory.deafAt = nowOf(name);
    const hasBudget = hosts.some(({ budget }) => budget !== null);
    const found = plan({
      clouds: new Map([...clouds.keys()].map((name) => [name, viewOf(name)])),
      wanted: new Map([...wishes].map(([host, { machines }]) => [host, machines])),
      hosts,
      reports,
      waiting,
      offers,
      failing,
      only: parts.only ?? null,
      deaf,
      machines: [...machines.values()],
      goneToday: hasBudget ? store.machines.gone(today) : [],
    });
    reasons = found.reasons;
    try {
      commit(...found.steps.flatMap((step) => (step.do === 'change' ? [step.machine] : [])));
    } catch (error) {
      // What is recorded already continues.
      troubled(error);
    }
    for (const step of found.steps) if (step.do !== 'change') act(step).catch(troubled);
    timers.arm('look', Math.min(clock.now() + found.lookAgain * 1000, ...wishEnds.values()), soon);
  }

  /** Machines that fail before they join, or cannot work then, are made ever more slowly. */
  function count(machine: Machine): void {
    const { host, cloud, state, isFailure, joinedAt, stage, made, why } = machine;
    if (state !== 'ending' || !isFailure || made === null || (joinedAt !== null && stage !== 'failed')) return;
    const failures = (failing.get(host)?.failures ?? 0) + 1;
    const wait = failures === 1 ? 0 : doubling(failingFirst, failingLongest, failures - 1);
    const at = nowOf(cloud);
    failing.set(host, { failures, at, until: at + wait, why: why ?? '' });
  }

  /** Why no try brings a machine of the host until a person changes something. */
  function refusal(name: string): OnejobError | null {
    const host = hosts.find((one) => one.host === name);
    const memory = host === undefined ? undefined : memories.get(host.cloud);
    if (host === undefined || memory === undefined) return null;
    if (memory.refusal !== null) return memory.refusal;
    const next = offers.next(host, memory.types, nowOf(host.cloud));
    if (next.offer !== null || next.because.some(({ lasting }) => lasting === null)) return null;
    return next.because[0]?.lasting ?? null;
  }

  async function act(step: Exclude<MachineStep, { do: 'change' }>): Promise<void> {
    const name = step.do === 'create' ? step.host.cloud : step.do === 'setEnd' ? step.machine.cloud : step.cloud;
    const owned = clouds.get(name);
    if (owned === undefined) return;
    const memory = memoryOf(name);
    if (step.do === 'create') return create(step.host, step.offer, step.price, owned);
    const key = stepKey(step);
    memory.calling.add(key);
    try {
      if (step.do === 'list') await list(name, owned, memory);
      else if (step.do === 'learn') await learn(step.type, owned.cloud, memory, nowOf(name));
      else if (step.do === 'setEnd') await setEnd(step.machine, step.made, owned.cloud);
      else await destroy(step.thing, owned.cloud, memory, nowOf(name));
      memory.notBefore.delete(key);
    } catch (error) {
      if (ending.signal.aborted) return;
      memory.notBefore.set(key, nowOf(name) + failedAgain);
      const why = messageOf(error);
      const thing = step.do === 'destroy' ? thingKey(step.thing) : null;
      if (step.do === 'learn') offers.unknown(name, step.type, error, nowOf(name));
      // What is refused again and again is told once; status goes on to show it.
      const isTold = thing !== null && memory.refused.get(thing) === why;
      if (thing !== null) memory.refused.set(thing, why);
      if (!isTold) log.warn(`cloud ${name}: call failed`, { call: key, error });
    } finally {
      memory.calling.delete(key);
      if (!ending.signal.aborted) soon();
    }
  }

  async function create(host: HostConfig, offer: Offer, price: Price | null, { cloud, owner }: OwnedCloud): Promise<void> {
    const born = nowOf(cloud.name);
    const run = `onejob-${randomBytes(8).toString('hex')}`;
    const joinToken = newSecret();
    const image = host.image ?? cloud.usualImage;
    const intent: Machine = {
      run,
      owner,
      cloud: cloud.name,
      host: host.host,
      offer,
      token: randomUUID(),
      born,
      expires: born + Math.round(host.lifetime / 1000),
      state: 'intent',
      since: born,
      made: null,
      end: null,
      why: null,
      isFailure: false,
      joinedAt: null,
      stage: null,
      items: [],
      absent: [],
      seenAt: null,
      tokenHash: hashOf(joinToken),
      credentialHash: null,
      by: cloud.credential,
      price,
      console: null,
      registrations: null,
    };
    const { token, expires } = intent;
    let userData: string;
    try {
      userData = parts.userData(host, cloud, { run, token: joinToken });
    } catch (error) {
      log.error('no machine can be made', { host: host.host, error });
      offers.failed(cloud.name, offer, error, born);
      soon();
      return;
    }
    const order: Order = { owner, run, host: host.host, born, expires, offer, token, image, userData, disk: host.disk };
    const { calling } = memoryOf(cloud.name);
    commit(intent);
    calling.add(`create ${run}`);
    const result = await settled(cloud.create(order, ending.signal));
    calling.delete(`create ${run}`);
    // Nobody will know how a call ended that was given up; the next controller looks.
    if (ending.signal.aborted) return;
    const now = nowOf(cloud.name);
    const current = machines.get(run) ?? intent;
    if (result.ok) {
      offers.succeeded(cloud.name, offer);
      const state = current.state === 'intent' ? 'made' : current.state;
      commit({ ...current, state, made: result.value, since: now, absent: [] });
      return;
    }
    const { error } = result;
    // An answer that says nothing about the machine may still say that there is no capacity.
    offers.failed(cloud.name, offer, error, now);
    const isCertain = error instanceof CloudError ? !error.isAmbiguous : hasCode(error, 'E_SECRET');
    if (isCertain) {
      commit({ ...resolved(current, now, messageOf(error), true), since: now, absent: [] });
      return;
    }
    log.warn('it is unknown whether a machine was created', { machine: run, host: host.host, error });
    commit({ ...current, since: now, absent: [] });
  }

  /** @throws CloudError if it is worth another try */
  async function setEnd({ run }: Machine, made: Made, cloud: Cloud): Promise<void> {
    const machine = machines.get(run);
    if (machine === undefined) return;
    const result = await settled(cloud.setEnd(machine, made, ending.signal));
    const current = machines.get(run);
    if (current === undefined || ending.signal.aborted) return;
    const now = nowOf(cloud.name);
    if (result.ok) {
      const state = current.state !== 'made' ? current.state : current.joinedAt === null ? 'booting' : 'joined';
      commit({ ...current, state, since: state === current.state ? current.since : now, end: result.value });
      return;
    }
    const { error } = result;
    if (error instanceof CloudError && error.retry && error.code !== 'E_CLOUD_END') throw error;
    offers.failed(cloud.name, current.offer, error, now);
    commit(ended(current, now, messageOf(error), true));
  }

  async function list(name: string, { cloud, owner }: OwnedCloud, memory: Memory): Promise<void> {
    const here = [...machines.values()].filter((one) => one.cloud === name);
    const places = [...new Set(here.flatMap(({ made }) => made?.place ?? []))];
    // Machines that were made for an earlier owner are still ours.
    const owners = new Set([owner, ...here.map((one) => one.owner), ...memory.late]);
    const began = clock.now();
    const scope = { places, everywhere: false };
    const result = await settled(Promise.all([...owners].map((one) => cloud.list(one, scope, ending.signal))));
    if (ending.signal.aborted) return;
    const skew = cloud.skew();
    if (skew !== null) {
      memory.base = clock.wall() + skew - clock.now();
      // What was said before has the time of another clock.
      if (memory.since === null) for (const { run } of here) reports.delete(run);
      memory.since ??= nowOf(name);
    }
    const at = nowOf(name);
    // The cloud tells whole seconds, so its time may have moved by one meanwhile.
    const from = at - Math.ceil((clock.now() - began) / 1000) - 1;
    if (!result.ok) {
      memory.listed = { things: memory.listed?.things ?? [], unknown: [], from, at, failed: messageOf(result.error) };
      memory.refusal = result.error instanceof OnejobError && !result.error.retry ? result.error : null;
      log.warn(`cloud ${name}: failed to list`, { error: result.error });
      return;
    }
    const lists = result.value.map(ownThings);
    const [things, unknown] = [lists.flatMap((one) => one.things), lists.flatMap((one) => one.unknown)];
    const listed: Listed = { things, unknown, from, at, failed: null };
    memory.listed = listed;
    memory.refusal = result.value.flatMap(({ refused }) => refused ?? [])[0] ?? null;
    memory.orphans = orphansAfter(memory.orphans, listed);
    const there = new Set(listed.things.map(thingKey));
    if (unknown.length === 0)
      for (const known of [memory.asked, memory.refused]) for (const key of known.keys()) if (!there.has(key)) known.delete(key);
    const appeared = new Set(listed.things.flatMap(({ run }) => (run === null || machines.has(run) ? [] : [run])));
    const known = [...machines.values()].filter((one) => one.cloud === name);
    const gone = [...appeared].flatMap((run) => store.machines.get(run) ?? []);
    const byRun = Map.groupBy(things, ({ run }) => run ?? '');
    const changes = [...known, ...gone].flatMap((machine) => {
      const after = afterList(machine, listed, byRun.get(machine.run) ?? [], {
        isCreating: memory.calling.has(`create ${machine.run}`),
        heardAt: reports.get(machine.run)?.at ?? null,
      });
      return after === machine ? [] : [after];
    });
    commit(...changes);
  }

  async function learn(type: string, cloud: Cloud, memory: Memory, now: number): Promise<void> {
    const price = (spot: boolean) => cloud.price({ type, spot }, ending.signal).catch(() => null);
    const [zones, usual, spot] = await Promise.all([cloud.zones(type, ending.signal), price(false), price(true)]);
    memory.types.set(type, { zones, price: usual, spotPrice: spot, at: now });
  }

  async function destroy(thing: Pick<Thing, 'kind' | 'id' | 'place'>, cloud: Cloud, memory: Memory, now: number): Promise<void> {
    memory.asked.set(thingKey(thing), now);
    const machine = [...machines.values()].find(({ made }) => made?.id === thing.id);
    // A console is lost with its machine, and says why it did not join.
    if (machine?.console === null && machine.joinedAt === null && thing.kind === 'machine') {
      const text = await cloud.console(thing, ending.signal).catch(() => '');
      const current = machines.get(machine.run);
      if (current !== undefined && text !== '') commit({ ...current, console: text.slice(-consoleKept) });
    }
    await cloud.destroy(thing, ending.signal);
    memory.refused.delete(thingKey(thing));
  }

  const change = (run: string, how: (machine: Machine, now: number) => Machine): void => {
    const machine = machines.get(run);
    if (machine === undefined) return;
    const after = how(machine, nowOf(machine.cloud));
    if (after !== machine) commit(after);
  };

  const of = (host: string): Machine[] => [...machines.values()].filter((machine) => machine.host === host);

  return {
    start(): void {
      isStarted = true;
      const oldest = Math.floor(clock.wall() / 1000) - receiptsKept;
      store.machines.prune(oldest);
      soon();
    },
    /** How many jobs wait for machines of the host. */
    setWaiting(host: string, jobs: number): void {
      if (waiting.get(host) === jobs) return;
      waiting.set(host, jobs);
      soon();
    },
    /**
     * Asks for a machine of the host, if none works, and ends a `down`. Offers that were unavailable are asked for at once. The wish
     * is over after `wait` ms.
     */
    up(host: string, wait: number): void {
      failing.delete(host);
      const isThere = of(host).some((machine) => machine.state === 'joined' && isWanted(machine));
      if (isThere) want(host, 0);
      else want(host, 1, wait);
      const found = hosts.find((one) => one.host === host);
      if (found !== undefined && !isThere) {
        offers.forget(found);
        const memory = memories.get(found.cloud);
        if (memory !== undefined) memory.refusal = null;
      }
      soon();
    },
    /** How many machines people wait for. */
    wanted: (host: string): number => Math.max(0, wishOf(host)),
    waiting: (host: string): number => waiting.get(host) ?? 0,
    /**
     * Looks for machines of the host that are not in the ledger, such as those of an earlier stage of a pipeline, to remove them.
     * Only the onejob that made them knows their secrets, so without `drains` they end at once; with it, those that run are told to drain
     * first. Returns their runs, and what could not be listed.
     */
    async adopt(host: string, drains = false): Promise<{ readonly runs: readonly string[]; readonly unknown: readonly string[] }> {
      const runs: string[] = [];
      const unknown: string[] = [];
      for (const [name, { cloud, owner }] of clouds) {
        const result = await settled(cloud.list(owner, { places: [], everywhere: false }, ending.signal));
        ending.signal.throwIfAborted();
        if (!result.ok) {
          unknown.push(`cloud ${name}: ${messageOf(result.error)}`);
          continue;
        }
        const listed = ownThings(result.value);
        unknown.push(...listed.unknown.map((what) => `cloud ${name}: ${what}`));
        const strange = listed.things.filter((thing) => thing.host === host && thing.run !== null && !machines.has(thing.run));
        for (const [run, things] of Map.groupBy(strange, (thing) => thing.run ?? ''))
          if (store.machines.get(run) === null) {
            commit(adopted(run, things, { cloud, owner, host, now: nowOf(name), drains }));
            runs.push(run);
          }
      }
      return { runs, unknown };
    },
    /** Ends all machines of the host: those that work drain first, unless `now`. It gets no others until `up`. */
    down(host: string, now = false): void {
      want(host, -1);
      for (const { run } of of(host))
        change(run, (machine, time) => {
          const why = 'It was ended with "onejob cloud down".';
          return machine.state === 'joined' && !now ? drained(machine, time, why) : endedNow(machine, time, why, now);
        });
    },
    /** Takes back an `up`: ends the machines of the host that have not joined, and makes no other for it. */
    callOff(host: string): void {
      if (wishOf(host) > 0) want(host, 0);
      for (const { run, joinedAt } of of(host))
        if (joinedAt === null)
          change(run, (machine, time) =>
            endedNow(machine, time, 'It is no longer wanted: "onejob cloud up" was interrupted or gave up.', true),
          );
    },
    /** The machine reports that it was set up. */
    joined(run: string): void {
      change(run, (machine, now) => {
        if (machine.joinedAt !== null || !isWanted(machine)) return machine;
        if (wishOf(machine.host) > 0) want(machine.host, 0);
        const state = machine.state === 'booting' ? 'joined' : machine.state;
        return { ...machine, state, since: state === machine.state ? machine.since : now, joinedAt: now, stage: 'joined' };
      });
    },
    report(run: string, report: Omit<Report, 'at' | 'workedAt'>): void {
      const machine = machines.get(run);
      if (machine === undefined) return;
      const before = reports.get(run);
      const at = nowOf(machine.cloud);
      const works = report.busy > 0 || report.problem === null;
      reports.set(run, { ...report, at, workedAt: works ? at : (before?.workedAt ?? null) });
      // One that has just joined may not know its problem yet; one that joined before the others failed says nothing about the next.
      const isProof = report.busy > 0 || (works && machine.joinedAt !== null && at >= machine.joinedAt + provenAfter);
      if (isProof && (machine.joinedAt ?? 0) > (failing.get(machine.host)?.at ?? 0)) failing.delete(machine.host);
      const idle = (idleOf.get(machine.host) ?? 0) / 1000;
      // Most reports say what the last one said.
      const isIdle = report.idleFor >= idle && (before?.idleFor ?? 0) < idle;
      if (isIdle || before?.busy !== report.busy || before.agents !== report.agents || before.problem !== report.problem) soon();
    },
    /** Nobody can hear the machine, which is not its fault: it lives, and neither works nor fails. */
    unheard(run: string, problem: string): void {
      const machine = machines.get(run);
      if (machine === undefined) return;
      const { busy = 0, agents = 0, problem: before } = reports.get(run) ?? {};
      const at = nowOf(machine.cloud);
      reports.set(run, { busy, agents, idleFor: 0, problem, at, workedAt: at });
      if (before !== problem) soon();
    },
    /** The machine has so many jobs more, or fewer, than it last reported: it says so itself only later. */
    took(run: string, change: 1 | -1): void {
      const report = reports.get(run);
      if (report === undefined) return;
      reports.set(run, { ...report, busy: Math.max(0, report.busy + change), idleFor: 0 });
      soon();
    },
    /** Changes a machine by what it said. */
    change,
    get: (run: string): Machine | null => machines.get(run) ?? null,
    machines: (): readonly Machine[] => [...machines.values()],
    reports: (): ReadonlyMap<string, Report> => reports,
    receipts: (limit: number): readonly Machine[] => store.machines.newest(limit),
    /** Why the host has fewer machines than its jobs need, as the end of a sentence, or null. */
    reason: (host: string): string | null => reasons.get(host) ?? null,
    /** The latest list of the cloud; null: there was none. */
    listed: (cloud: string): Listed | null => memoryOf(cloud).listed,
    refusal,
    /** Why things of the cloud could not be asked to go, one sentence each. */
    refused: (cloud: string): readonly string[] => [...memoryOf(cloud).refused.values()],
    nowOf,
    /** Ends its own work. Machines stay, and end at their end of life at the latest. */
    close(): void {
      ending.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
      timers.clear();
      for (const { cloud } of clouds.values()) cloud.close?.();
    },
  };

  /** `wait`: ms until it is over; null: it is not. */
  function want(host: string, count: number, wait: number | null = null): void {
    if (wait === null && wishOf(host) === count) return;
    const wish = { machines: count, until: wait === null ? null : Math.round(clock.wall() + wait) };
    store.transaction({ durable: true }, () => store.machines.want(host, wish));
    wishes.set(host, wish);
    if (wait === null) wishEnds.delete(host);
    else wishEnds.set(host, clock.now() + wait);
  }
}

/** The row of a machine that another onejob made, and that is to be removed. */
function adopted(
  run: string,
  things: readonly Thing[],
  { cloud, owner, host, now, drains }: OwnedCloud & { readonly host: string; readonly now: number; readonly drains: boolean },
): Machine {
  const machine = things.find(({ kind }) => kind === 'machine');
  const state = drains && machine?.state === 'running' ? 'draining' : 'ending';
  const [{ born, expires } = { born: null, expires: null }] = things;
  return {
    run,
    owner,
    cloud: cloud.name,
    host,
    offer: machine?.offer ?? { type: 'unknown', spot: false, zone: null },
    token: '',
    born: born ?? now,
    expires: expires ?? now,
    state,
    since: now,
    end: null,
    why: 'It was ended with "onejob cloud down".',
    made: machine === undefined ? null : { id: machine.id, place: machine.place, zone: null },
    isFailure: false,
    joinedAt: null,
    stage: null,
    items: [],
    absent: [],
    seenAt: now,
    tokenHash: '',
    credentialHash: null,
    by: cloud.credential,
    price: null,
    console: null,
    registrations: null,
  };
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
