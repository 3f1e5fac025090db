/**
 * Keeps the machines of `hosts`: makes them when jobs wait or people ask, and removes them for certain. It plans (`plan.ts`), writes
 * down what it is about to do, and calls the clouds. No job passes through it: each machine runs its own onejob.
 */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { type Clock, Timers } from '../core/clock.ts';
import { hasCode, messageOf, OnejobError } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Store } from '../store/store.ts';
import { type Cloud, CloudError, type Made, type Offer, type Order, type Price, type Thing } from './cloud.ts';
import type { HostConfig } from './hosts.ts';
import { isWanted, type Machine, mayLive, thingKey } from './machine.ts';
import { offerText } from './offer.ts';
import { createOffers, type Unavailable } from './offers.ts';
import {
  afterList,
  type Broken,
  brokenAfter,
  type CloudView,
  drained,
  ended,
  isLeftOver,
  type Listed,
  orphansAfter,
  plan,
  type Report,
  resolved,
  type Step,
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
  /** Called after each change of a machine. */
  readonly changed?: (machine: Machine) => void;
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
const failedAgain = 30;
/** Characters of a console that a receipt keeps. */
const consoleKept = 4_000;
/** Seconds for which receipts are kept. */
const receiptsKept = 400 * 86_400;

export const hashOf = (secret: string): string => createHash('sha256').update(secret).digest('hex');

export function createController(parts: ControllerParts) {
  const { clock, log, store, clouds, hosts } = parts;
  const machines = new Map<string, Machine>(store.machines.live().map((machine) => [machine.run, machine]));
  const idleOf = new Map(hosts.map(({ host, idle }) => [host, idle]));
  const wanted = store.machines.wanted();
  const waiting = new Map<string, number>();
  const reports = new Map<string, Report>();
  const broken = new Map<string, Broken>();
  const offers = createOffers();
  const ending = new AbortController();
  const timers = new Timers(clock);
  const listeners = new Set<() => void>();
  let reasons: ReadonlyMap<string, string> = new Map();
  let isStarted = false;
  let isPlanned = false;

  interface Memory {
    listed: Listed | null;
    readonly types: Map<string, TypeFacts & { readonly at: number }>;
    readonly calling: Set<string>;
    readonly asked: Map<string, number>;
    readonly notBefore: Map<string, number>;
    orphans: ReadonlyMap<string, number>;
    knowsTime: boolean;
  }
  const memories = new Map<string, Memory>(
    [...clouds.keys()].map((name) => [
      name,
      {
        listed: null,
        types: new Map(),
        calling: new Set(),
        asked: new Map(),
        notBefore: new Map(),
        orphans: new Map(),
        knowsTime: false,
      },
    ]),
  );

  const nowOf = (cloud: string): number => Math.floor((clock.wall() + (clouds.get(cloud)?.cloud.skew() ?? 0)) / 1000);
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
        count(machine);
        tell(machine);
      }
      parts.changed?.(machine);
    }
    soon();
  }

  /** A set-up that fails would else cost one machine after the other. */
  function count({ host, cloud, state, made, joinedAt, isFailure, why }: Machine): void {
    if (state === 'joined') broken.delete(host);
    if (state !== 'ending' || made === null || joinedAt !== null || !isFailure) return;
    broken.set(host, brokenAfter(broken.get(host), why ?? '', nowOf(cloud)));
  }

  function tell(machine: Machine): void {
    const { run, host, offer, why, isFailure, state } = machine;
    const facts = { machine: run, host, offer: offerText(offer), ...(why !== null && { why }) };
    if (isFailure && state === 'ending') log.warn('machine ends', facts);
    else log.info(`machine ${state === 'intent' ? 'is created' : state}`, facts);
  }

  function soon(): void {
    for (const listener of listeners) listener();
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

  function tick(): void {
    const today = Math.floor(clock.wall() / 86_400_000) * 86_400;
    const hasBudget = hosts.some(({ budget }) => budget !== null);
    const found = plan({
      clouds: new Map([...clouds.keys()].map((name) => [name, viewOf(name)])),
      ...{ hosts, reports, waiting, wanted, broken, offers },
      machines: [...machines.values()],
      goneToday: hasBudget ? store.machines.gone(today) : [],
    });
    reasons = found.reasons;
    commit(...found.steps.flatMap((step) => (step.do === 'change' ? [step.machine] : [])));
    for (const step of found.steps) if (step.do !== 'change') act(step).catch(troubled);
    timers.arm('look', clock.now() + found.lookAgain * 1000, soon);
  }

  async function act(step: Exclude<Step, { do: 'change' }>): Promise<void> {
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
      else if (step.do === 'setEnd') await setEnd(step.machine, step.made, owned.cloud, memory);
      else await destroy(step.thing, owned.cloud, memory, nowOf(name));
    } catch (error) {
      if (ending.signal.aborted) return;
      memory.notBefore.set(key, nowOf(name) + failedAgain);
      log.warn(`cloud ${name}: call failed`, { call: key, error });
    } finally {
      memory.calling.delete(key);
      if (!ending.signal.aborted) soon();
    }
  }

  async function create(host: HostConfig, offer: Offer, price: Price | null, { cloud, owner }: OwnedCloud): Promise<void> {
    const born = nowOf(cloud.name);
    const run = `onejob-${randomBytes(8).toString('hex')}`;
    const joinToken = randomBytes(32).toString('base64url');
    const image = host.image ?? cloud.usualImage;
    const intent: Machine = {
      ...{ run, owner, cloud: cloud.name, host: host.host, offer, token: randomUUID(), born },
      expires: born + Math.round(host.lifetime / 1000),
      ...{ state: 'intent', since: born, made: null, end: null, why: null, isFailure: false, joinedAt: null, stage: null },
      ...{ items: [], absent: [], seenAt: null, tokenHash: hashOf(joinToken), credentialHash: null },
      ...{ by: cloud.credential, price, console: null },
    };
    const { token, expires } = intent;
    const userData = parts.userData(host, cloud, { run, token: joinToken });
    const order: Order = { owner, run, host: host.host, born, expires, offer, token, image, userData, disk: host.disk };
    const { calling } = memoryOf(cloud.name);
    calling.add(`create ${run}`);
    commit(intent);
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
    log.warn('nobody knows whether a machine was created', { machine: run, host: host.host, error });
    commit({ ...current, since: now, absent: [] });
  }

  async function setEnd({ run }: Machine, made: Made, cloud: Cloud, memory: Memory): Promise<void> {
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
    if (error instanceof CloudError && error.retry && error.code !== 'E_CLOUD_END') {
      memory.notBefore.set(`end ${run}`, now + 10);
      log.warn('failed to set the end of a machine', { machine: run, error });
    } else {
      offers.failed(cloud.name, current.offer, error, now);
      commit(ended(current, now, messageOf(error), true));
    }
  }

  async function list(name: string, { cloud, owner }: OwnedCloud, memory: Memory): Promise<void> {
    const places = [...new Set([...machines.values()].flatMap((one) => (one.cloud === name ? (one.made?.place ?? []) : [])))];
    // By the cloud's clock as it was known before, since this answer may correct it.
    const began = clock.wall();
    const result = await settled(cloud.list(owner, { places, everywhere: false }, ending.signal));
    if (ending.signal.aborted) return;
    const [from, at] = [Math.floor((began + cloud.skew()) / 1000), nowOf(name)];
    if (!result.ok) {
      memory.listed = { things: memory.listed?.things ?? [], unknown: [], from, at, failed: messageOf(result.error) };
      log.warn(`cloud ${name}: failed to list`, { error: result.error });
      return;
    }
    const listed: Listed = { ...result.value, from, at, failed: null };
    memory.listed = listed;
    memory.knowsTime = true;
    memory.orphans = orphansAfter(memory.orphans, listed);
    const there = new Set(listed.things.map(thingKey));
    for (const key of memory.asked.keys()) if (!there.has(key) && listed.unknown.length === 0) memory.asked.delete(key);
    const appeared = new Set(listed.things.flatMap(({ run }) => (run === null || machines.has(run) ? [] : [run])));
    const known = [...machines.values()].filter((one) => one.cloud === name);
    const gone = [...appeared].flatMap((run) => store.machines.get(run) ?? []);
    const things = Map.groupBy(listed.things, ({ run }) => run ?? '');
    const changes = [...known, ...gone].flatMap((machine) => {
      const after = afterList(machine, listed, things.get(machine.run) ?? [], memory.calling.has(`create ${machine.run}`));
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
    /** Asks for a machine of the host, if none works, and ends a `down`. What made it wait before is tried again at once. */
    up(host: string): void {
      const isThere = of(host).some((machine) => machine.state === 'joined' && isWanted(machine));
      want(host, isThere ? Math.max(0, wanted.get(host) ?? 0) : 1);
      const found = hosts.find((one) => one.host === host);
      if (found !== undefined && !isThere) offers.forget(found);
      broken.delete(host);
      soon();
    },
    /** How many machines people wait for. */
    wanted: (host: string): number => Math.max(0, wanted.get(host) ?? 0),
    waiting: (host: string): number => waiting.get(host) ?? 0,
    /** Looks for machines of the host that are not in the ledger, such as those of an earlier stage of a pipeline, to remove them. */
    async adopt(host: string): Promise<void> {
      for (const [name, { cloud, owner }] of clouds) {
        const listed = await cloud.list(owner, { places: [], everywhere: false }, ending.signal);
        if (listed.unknown.length > 0)
          throw new CloudError('E_CLOUD_UNREACHABLE', `Cannot list all of cloud ${name}: ${listed.unknown.join(', ')}.`);
        const strange = listed.things.filter((thing) => thing.host === host && thing.run !== null && !machines.has(thing.run));
        for (const [run, things] of Map.groupBy(strange, (thing) => thing.run ?? ''))
          if (store.machines.get(run) === null) commit(adopted(run, things, { cloud, owner, host, now: nowOf(name) }));
      }
    },
    /** Ends all machines of the host: those that work drain first, unless `now`. It gets no others until `up`. */
    down(host: string, now = false): void {
      want(host, -1);
      for (const { run } of of(host))
        change(run, (machine, time) => {
          const why = 'Somebody asked for it.';
          return machine.state === 'joined' && !now ? drained(machine, time, why) : endedNow(machine, time, why, now);
        });
    },
    /** The machine reports that it was set up. */
    joined(run: string): void {
      change(run, (machine, now) => {
        if (machine.joinedAt !== null || !isWanted(machine)) return machine;
        if ((wanted.get(machine.host) ?? 0) > 0) want(machine.host, 0);
        const state = machine.state === 'booting' ? 'joined' : machine.state;
        return { ...machine, state, since: state === machine.state ? machine.since : now, joinedAt: now, stage: 'joined' };
      });
    },
    report(run: string, report: Omit<Report, 'at'>): void {
      const machine = machines.get(run);
      if (machine === undefined) return;
      const before = reports.get(run);
      reports.set(run, { ...report, at: nowOf(machine.cloud) });
      const idle = (idleOf.get(machine.host) ?? 0) / 1000;
      // Most reports say what the last one said.
      const isIdle = report.idleFor >= idle && (before?.idleFor ?? 0) < idle;
      if (isIdle || before?.busy !== report.busy || before.agents !== report.agents) soon();
    },
    /** Changes a machine by what it said. */
    change,
    get: (run: string): Machine | null => machines.get(run) ?? null,
    machines: (): readonly Machine[] => [...machines.values()],
    reports: (): ReadonlyMap<string, Report> => reports,
    receipts: (limit: number): readonly Machine[] => store.machines.newest(limit),
    /** Why the host has fewer machines than its jobs need, as the end of a sentence, or null. */
    reason: (host: string): string | null => reasons.get(host) ?? null,
    unavailable: (cloud: string): readonly Unavailable[] => offers.unavailable(nowOf(cloud)).filter((one) => one.cloud === cloud),
    /** What the latest list of the cloud could not see, and things that are in no ledger. */
    seen(cloud: string) {
      const { listed, orphans } = memoryOf(cloud);
      const strange = (listed?.things ?? []).filter(({ run }) => run === null || !machines.has(run));
      const now = nowOf(cloud);
      return { listed, strange: strange.map((thing) => ({ thing, isLeftOver: isLeftOver(thing, orphans, now) })) };
    },
    nowOf,
    /** Calls `listener` after each change. */
    onChange(listener: () => void): () => void {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    /** Ends its own work. Machines stay, and end at their end of life at the latest. */
    close(): void {
      ending.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
      timers.clear();
      for (const { cloud } of clouds.values()) cloud.close?.();
    },
  };

  function want(host: string, count: number): void {
    if ((wanted.get(host) ?? 0) === count) return;
    store.transaction({ durable: true }, () => store.machines.want(host, count));
    wanted.set(host, count);
  }
}

/** The row of a machine that another onejob made, and that is to be removed. */
function adopted(
  run: string,
  things: readonly Thing[],
  { cloud, owner, host, now }: OwnedCloud & { readonly host: string; readonly now: number },
): Machine {
  const machine = things.find(({ kind }) => kind === 'machine');
  const [{ born, expires } = { born: null, expires: null }] = things;
  return {
    ...{ run, owner, cloud: cloud.name, host, offer: machine?.offer ?? { type: 'unknown', spot: false, zone: null }, token: '' },
    ...{ born: born ?? now, expires: expires ?? now, state: 'ending', since: now, end: null, why: 'Somebody asked for it.' },
    made: machine === undefined ? null : { id: machine.id, place: machine.place, zone: null },
    ...{ isFailure: false, joinedAt: null, stage: null, items: [], absent: [], seenAt: now, tokenHash: '', credentialHash: null },
    ...{ by: cloud.credential, price: null, console: null },
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
