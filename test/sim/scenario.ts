/**
 * Scenarios are data: a config, and how often what happens within how many hours. A seed makes a plan of concrete happenings
 * of it, which a run plays. Whatever breaks can be played again from the seed, or with fewer happenings.
 */

import { join } from 'node:path';
import { isEmpty, type Slot } from '../../src/core/slot.ts';
import { openStore } from '../../src/store/store.ts';
import { seeded } from '../support/seeded.ts';
import { isDiskFull } from './builtins.ts';
import { type Line, type MoreParts, SimHost } from './host.ts';
import type { Effect, SimProcess } from './process.ts';
import { enginePromises } from './promises.ts';
import { noFaults } from './runtime.ts';
import { StuckError } from './time.ts';

/** A value that is drawn: between two numbers, one of several, or itself. */
type Drawn = unknown;

/** `count` of these, each at a moment of its own within `within` (hours; default all of them). Pairs of numbers are drawn between. */
export interface Wish {
  readonly what: string;
  readonly count: number;
  readonly within?: readonly [from: number, to: number];
  readonly [field: string]: Drawn;
}

export interface Happening {
  /** Virtual ms from the beginning. */
  readonly at: number;
  readonly what: string;
  readonly [field: string]: unknown;
}

export interface Scenario {
  readonly name: string;
  /** One sentence for people. */
  readonly about: string;
  /** The config file; `$DIR` in it is the host's own folder. */
  readonly config: string;
  /** Name of the runtime that its pools use; default `process`. */
  readonly runtime?: string;
  /** Whether that runtime makes sandboxes from images. */
  readonly images?: boolean;
  /** How many sandboxes have room at a time where the Engine starts them, in turn. */
  readonly grants?: number;
  /** Virtual time in which things happen; afterwards all comes to its end. */
  readonly hours: number;
  readonly happens: readonly Wish[];
  /** Hours after all has come to its end in which nothing may happen; default 1. */
  readonly calm?: number;
  /** ms that a sync of the disk takes: from, to; default a few. */
  readonly syncs?: readonly [from: number, to: number];
  /** Names of the outside systems that take part, besides the Engine and the users of the own queue. */
  readonly with?: readonly string[];
  /** What must have happened at least, by the counts of a run: without it the scenario says nothing. */
  readonly atLeast: Readonly<Record<string, number>>;
  /** Played once for each effect of the manager: it is killed at the first, the second, and so on. The seed says at which. */
  readonly eachEffect?: Effect | 'any';
  /** With `eachEffect`: it is not killed there, but the Engine goes away, or the disk is full, for so many ms; or the power is cut. */
  readonly instead?: { readonly what: 'outage' | 'full' | 'power'; readonly ms: number };
  /** Seeds that the gate plays, from 0 on; default 3. */
  readonly seeds?: number;
}

/** A system outside of onejob, with the people who use it. */
export interface Outside {
  readonly name: string;
  readonly takes: Readonly<Record<string, (happening: Happening) => void | Promise<void>>>;
  /** What it brings into a manager that starts. */
  parts?(process: SimProcess): ReturnType<MoreParts>;
  /** Promises that were broken since the last call, each as `S3: sentence`. */
  broken(): readonly string[];
  /** Everything that was asked of it has come to its end; a sentence of what has not, or null. */
  unsettled(): string | null;
  /** What goes wrong by chance ends: from now on it works. */
  calm?(): void;
  /** What is left after the last manager has ended, and should not be. */
  census(): readonly string[];
  counts(): Readonly<Record<string, number>>;
}

export type MakeOutside = (host: SimHost, random: () => number) => Outside;

export interface Outcome {
  readonly scenario: string;
  readonly seed: number;
  /** The first promise that broke, in words; null when all held. */
  readonly broken: string | null;
  readonly counts: Readonly<Record<string, number>>;
  /** Two runs of the same seed have the same. */
  readonly hash: number;
  /** Virtual ms. */
  readonly virtual: number;
  readonly story: readonly Line[];
  readonly happenings: readonly Happening[];
}

const hour = 3_600_000;
/** Virtual time in which everything comes to its end after the last thing happened. */
const patience = 48 * hour;

/** What happens, drawn from the seed; in order. */
export function draw({ happens, hours }: Scenario, seed: number): Happening[] {
  const random = seeded(seed ^ 0xd1ce);
  const made: Happening[] = [];
  for (const { count, within = [0, hours], ...wish } of happens) {
    for (let n = 0; n < count; n++) {
      const at = (within[0] + random() * (within[1] - within[0])) * hour;
      const fields = Object.entries(wish).map(([field, value]) => [field, drawn(value, random)]);
      made.push({ ...(Object.fromEntries(fields) as { what: string }), at });
    }
  }
  return made.sort((one, other) => one.at - other.at);
}

function drawn(value: unknown, random: () => number): unknown {
  if (Array.isArray(value) && value.length === 2 && value.every((part) => typeof part === 'number')) {
    const [from, to] = value as [number, number];
    return Math.floor(from + random() * (to - from));
  }
  if (typeof value === 'object' && value !== null && 'oneOf' in value) {
    const { oneOf } = value as { oneOf: readonly unknown[] };
    return drawn(oneOf[Math.floor(random() * oneOf.length)], random);
  }
  return value;
}

/** What happens to the host itself, in every scenario. */
/** `room`: for how many sandboxes its engine has room, if it starts them itself. */
function takenByHost(host: SimHost, room: number | null): Outside['takes'] {
  const { engine, time } = host;
  const number = (value: unknown, otherwise: number): number => (typeof value === 'number' ? value : otherwise);
  return {
    /** kill -9, at once or at the `after`-th effect (`of`: one kind); another manager starts `down` ms later. */
    crash({ after, of, down }) {
      if (after === undefined) host.crash(number(down, 1_000));
      else host.crashAfter(number(after, 1), (of as Effect | undefined) ?? null, number(down, 1_000));
    },
    /** The host loses power, at once or at the `after`-th effect (`of`: one kind), and boots `down` ms later. */
    power({ after, of, down }) {
      const cut = (where = ''): void => host.cutPower(number(down, 5_000), where);
      if (after === undefined) cut();
      else host.atEffect(number(after, 1), (of as Effect | undefined) ?? null, (effect) => cut(`at a ${effect}`));
    },
    /** As `onejob down` or SIGTERM (`how`: drain, end, leave); `second`: ms after which it is told to end at once. */
    stop({ how, down, grace, second }) {
      const { up } = host;
      if (typeof second === 'number')
        time.after(second, () => {
          if (host.up !== up) return;
          host.ending();
          host.process?.run(() => host.up?.shutdown.begin({ how: 'end', grace: 0, forget: false }));
        });
      void host.stop(how as 'drain', { down: number(down, 1_000), grace: typeof grace === 'number' ? grace : null });
    },
    /** Somebody holds all pools back (`how`: pause, drain), and resumes them `ms` after that was done. */
    hold({ how = 'pause', ms }) {
      if (host.isHeld) return;
      host.isHeld = true;
      const resume = (): void =>
        host.ask(
          'resume',
          (manager) => void manager.resume(null, 'somebody'),
          () => (host.isHeld = false),
        );
      const held = (): void => {
        host.heldSince = time.now;
        time.after(number(ms, 10_000), () => {
          host.heldSince = null;
          resume();
        });
      };
      const hold = (manager: NonNullable<typeof host.up>['manager']): void =>
        how === 'drain' ? manager.drain(null) : manager.pause(null, 'somebody');
      host.ask(String(how), hold, held);
    },
    /** Somebody edits the config. */
    configure: ({ from, to }) => host.configure(String(from), String(to)),
    outage({ of, ms }) {
      if (of === 'engine') engine.outage(number(ms, 10_000));
    },
    /** The Engine stops, ends all that runs, and answers again after `ms`. */
    'engine.restart'({ ms }) {
      engine.restart(number(ms, 10_000));
    },
    /** Something ends one of the sandboxes: `somebody` removes it, or the `kernel` has no memory left. */
    'engine.ends'({ who, pick }) {
      const agents = [...engine.sandboxes.keys()];
      const agent = agents[Math.floor((number(pick, 0) / 1_000) * agents.length)];
      if (agent === undefined || !engine.isUp) return;
      if (who === 'kernel') engine.oom(agent);
      else engine.takeAway(agent);
    },
    /** Others take all the room but `left` for `ms`; what runs continues. */
    'engine.quota'({ left, ms }) {
      engine.capacity = number(left, 0);
      time.after(number(ms, 10_000), () => (engine.capacity = room));
    },
    'engine.node'({ pick }) {
      const running = [...engine.sandboxes.values()].filter(({ isStarted, exit }) => isStarted && exit === null);
      const sandbox = running[Math.floor((number(pick, 0) / 1_000) * running.length)];
      if (sandbox !== undefined) engine.loseNode(sandbox.spec.agent);
    },
    /** Shares of calls and events that go wrong, for `ms`. */
    faults({ ms, at: _, what: __, ...shares }) {
      engine.faults = { ...noFaults, ...shares };
      if (typeof ms === 'number') time.after(ms, () => (engine.faults = noFaults));
    },
    /** The wall clock is set. */
    jump({ ms }) {
      host.tell(`the wall clock jumps by ${ms} ms`);
      time.jumped += number(ms, 0);
    },
    full({ ms }) {
      if (isDiskFull()) return;
      host.setDiskFull(true);
      time.after(number(ms, 10_000), () => host.setDiskFull(false));
    },
  };
}

/** Nothing but a standby at the gate, or nothing at all where none is kept. */
const isStanding = ({ agent, standby, leaving }: Slot): boolean =>
  (agent.kind === 'free' || agent.kind === 'idle') && standby.kind !== 'preparing' && leaving.length === 0;

export interface PlayOptions {
  /** Instead of what the seed draws. */
  readonly happenings?: readonly Happening[];
  readonly outsides: Readonly<Record<string, MakeOutside>>;
  /** Lines of the story that the outcome has; default 200. */
  readonly lines?: number;
}

/** Plays a scenario from its seed. Never throws for what breaks in it. */
export async function play(scenario: Scenario, seed: number, options: PlayOptions): Promise<Outcome> {
  const random = seeded(seed ^ 0x0a7);
  const outsides: Outside[] = [];
  const host = new SimHost({
    seed,
    config: scenario.config,
    losesPower: scenario.instead?.what === 'power' || scenario.happens.some(({ what }) => what === 'power'),
    ...(scenario.syncs !== undefined && { syncs: scenario.syncs }),
    ...(scenario.runtime !== undefined && { runtime: scenario.runtime }),
    ...(scenario.images !== undefined && { images: scenario.images }),
    ...(scenario.grants !== undefined && { grants: scenario.grants }),
    parts: (process) => Object.assign({}, ...outsides.map((one) => one.parts?.(process) ?? {})) as ReturnType<MoreParts>,
  });
  const { time, engine } = host;
  const begun = time.now;
  outsides.push(enginePromises(host));
  for (const name of ['own', ...(scenario.with ?? [])]) {
    const make = options.outsides[name];
    if (make === undefined) throw new Error(`scenario ${scenario.name} names "${name}", and there is no such outside system`);
    outsides.push(make(host, random));
  }
  const takes: Outside['takes'] = Object.assign(
    {},
    takenByHost(host, scenario.grants ?? null),
    ...outsides.map((one) => one.takes),
  );
  const { eachEffect } = scenario;
  const happenings = options.happenings ?? draw(scenario, eachEffect === undefined ? seed : 0);
  const due: Happening[] = [];
  let left = happenings.length;
  let outages = 0;
  let jumps = 0;
  let fulls = 0;
  let holds = 0;
  for (const one of happenings) time.after(one.at, () => void due.push(one));
  // Between two steps, never inside one: whatever a manager waits for is under way.
  const happen = (): void => {
    // What it sets off comes before the next timer, whenever that is due.
    if (due.length > 0) time.after(0, () => {});
    for (let one = due.shift(); one !== undefined; one = due.shift()) {
      left -= 1;
      const take = takes[one.what];
      if (take === undefined) throw new Error(`scenario ${scenario.name}: nobody takes "${one.what}"`);
      if (one.what === 'outage' || one.what.endsWith('.outage')) outages += 1;
      if (one.what === 'jump') jumps += 1;
      if (one.what === 'full') fulls += 1;
      if (one.what === 'hold') holds += 1;
      const answer = take(one);
      if (answer instanceof Promise) answer.catch((error: unknown) => host.broken.push(`${one.what}: ${words(error)}`));
    }
  };
  let broken: string | null = null;
  const look = (): boolean => {
    happen();
    for (const one of outsides) host.broken.push(...one.broken());
    broken = host.broken[0] ?? null;
    return broken !== null;
  };
  const unsettled = (): string | null => {
    if (left > 0) return `${left} happenings are to come`;
    if (host.up === null) return 'no manager is up';
    if (host.isHeld) return 'the pools are held';
    for (const one of outsides) {
      const what = one.unsettled();
      if (what !== null) return `${one.name}: ${what}`;
    }
    return null;
  };
  try {
    if (eachEffect !== undefined) {
      const of = eachEffect === 'any' ? null : eachEffect;
      const { instead } = scenario;
      if (instead === undefined) host.crashAfter(seed + 1, of);
      else host.atEffect(seed + 1, of, () => takes[instead.what]?.({ at: 0, of: 'engine', ...instead }));
    }
    host.start();
    await time.run(() => look() || unsettled() === null, scenario.hours * hour + patience);
    if (broken === null) {
      engine.faults = noFaults;
      host.disarm();
      for (const one of outsides) one.calm?.();
      // What was lost on the way is found by a resync, at the latest.
      const isQuiet = () => host.up !== null && engine.isUp && unsettled() === null && host.slots.every(isStanding);
      await time.run(() => look() || isQuiet(), patience);
    }
    if (broken === null) {
      // One that has just started has its sandboxes still to make.
      const begin = time.now + 600_000;
      await time.run(() => look() || time.now >= begin, patience);
      const made = engine.made;
      const hours = scenario.calm ?? 1;
      const end = time.now + hours * hour;
      await time.run(() => look() || time.now >= end, patience);
      const more = engine.made - made;
      if (broken === null && more > host.slots.length)
        broken = `S9: ${more} sandboxes were made within ${hours} h in which nothing happened`;
    }
    if (broken === null) {
      void host.stop('end', { down: null, grace: 0 });
      await time.run(() => look() || host.process === null, hour);
    }
    if (broken === null) broken = census(host, outsides)[0] ?? null;
  } catch (error) {
    if (broken === null) {
      const what = error instanceof StuckError ? `S7: ${error.message}: ${unsettled() ?? slotsInWords(host)}` : words(error);
      broken = what;
    }
  }
  const counts: Record<string, number> = {
    crashes: host.crashes,
    cuts: host.cuts,
    stops: host.stops,
    starts: host.starts,
    outages,
    jumps,
    fulls,
    holds,
    engineOutages: engine.outages,
    engineRestarts: engine.restarts,
    seized: engine.seized,
    made: engine.made,
    steps: time.steps,
    ...Object.fromEntries(Object.entries(host.effects).map(([kind, count]) => [`${kind}Effects`, count])),
  };
  for (const one of outsides) Object.assign(counts, one.counts());
  if (broken === null && options.happenings === undefined && scenario.eachEffect === undefined) {
    const short = Object.entries(scenario.atLeast).find(([name, least]) => (counts[name] ?? 0) < least);
    if (short !== undefined) broken = `empty: ${short[0]} was ${counts[short[0]] ?? 0}, and the scenario needs ${short[1]}`;
  }
  host.close();
  return {
    scenario: scenario.name,
    seed,
    broken,
    counts,
    hash: host.hash,
    virtual: time.now - begun,
    happenings,
    story: host.story.slice(-(options.lines ?? 200)),
  };
}

function census(host: SimHost, outsides: readonly Outside[]): string[] {
  const left = [...host.engine.sandboxes.keys()].map((agent) => `S4: sandbox ${agent} is left`);
  return [...left, ...leftInStore(host), ...outsides.flatMap((one) => one.census())];
}

/** What the last manager wrote down: slots that are empty, and no job that is open. */
function leftInStore(host: SimHost): string[] {
  const store = openStore(join(host.dir, 'state'));
  try {
    const slots = store.slots.all().map(({ slot }) => slot);
    return [
      ...slots.filter((slot) => !isEmpty(slot)).map(({ key }) => `S4: slot ${key} is not empty on disk`),
      ...store.jobs.open().map(({ id }) => `S7: job ${id} is open on disk`),
    ];
  } finally {
    store.close();
  }
}

function slotsInWords(host: SimHost): string {
  const slots = host.slots.filter((slot) => !isStanding(slot));
  return slots.map(({ key, agent, standby, leaving }) => `${key} ${agent.kind}/${standby.kind}/${leaving.length}`).join(', ');
}

function words(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
