/**
 * What the controller does next: pure. A step is started and recorded before its call; what a call answers is an event like any other.
 * Every state implies its steps, so a controller that starts on an old ledger just asks for all of them again.
 */
import type { Listing, Made, Offer, Price, Thing, ThingKind } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import { costOf, isWanted, type Machine, thingKey } from '../store/machine.ts';
import type { Offers, Unavailable } from './offers.ts';

/** What a machine says about itself. */
export interface Report {
  /** Seconds by the cloud's clock. */
  readonly at: number;
  /** Jobs that run, and that can run at the same time. */
  readonly busy: number;
  readonly agents: number;
  /** Seconds without a job. */
  readonly idleFor: number;
  /** Why it cannot work, or does not know what runs on it; null: it works. */
  readonly problem: string | null;
  /** When it last had a job, or no problem, as its reports say; seconds by the cloud's clock; null: not since we listen. */
  readonly workedAt: number | null;
}

/** A list and when it was asked for and answered; seconds by the cloud's clock. */
export interface Listed extends Listing {
  readonly from: number;
  readonly at: number;
  /** Why there was no answer at all: then its things are those of the list before; null: there was. */
  readonly failed: string | null;
}

/** What a cloud says about a type. */
export interface TypeFacts {
  readonly zones: readonly (string | null)[];
  /** null: unknown. */
  readonly price: Price | null;
  readonly spotPrice: Price | null;
}

export interface CloudView {
  /** Seconds since the epoch by the cloud's clock; by ours until it is known. */
  readonly now: number;
  /** Since when the cloud's time is known; null: it is not, and nothing is late. What happened before, nobody heard. */
  readonly since: number | null;
  /** When machines could not be heard for the last time; 0: they always could. */
  readonly deafAt: number;
  readonly listed: Listed | null;
  /** By type; a missing one was not asked for yet. */
  readonly types: ReadonlyMap<string, TypeFacts>;
  /** Calls that are under way, by `stepKey`. */
  readonly calling: ReadonlySet<string>;
  /** When each thing was last asked to go, by `thingKey`. */
  readonly asked: ReadonlyMap<string, number>;
  /** In how many complete lists in a row each thing was without its machine, by `thingKey`. */
  readonly orphans: ReadonlyMap<string, number>;
  /** Calls that have failed are not made again before this time; by `stepKey`. */
  readonly notBefore: ReadonlyMap<string, number>;
}

export interface View {
  readonly clouds: ReadonlyMap<string, CloudView>;
  readonly hosts: readonly HostConfig[];
  /** All but those that are gone. */
  readonly machines: readonly Machine[];
  /** Those that are gone, of this day. */
  readonly goneToday: readonly Machine[];
  readonly reports: ReadonlyMap<string, Report>;
  /** Waiting jobs by host. */
  readonly waiting: ReadonlyMap<string, number>;
  /** Machines that people asked for, by host, and that have not joined yet; -1: they want none, whatever waits. */
  readonly wanted: ReadonlyMap<string, number>;
  readonly offers: Offers;
  /** Why machines cannot join, as the end of a sentence; null: they can. */
  readonly deaf: string | null;
  /** Hosts whose machines did not join: none is made before `until`. */
  readonly failing: ReadonlyMap<string, Failing>;
  /** The only host whose number of machines is looked after; null: all. */
  readonly only: string | null;
}

/** Machines of one host that failed, one after the other. */
export interface Failing {
  readonly failures: number;
  /** When the last one failed, and until when no other is made; seconds by the cloud's clock. */
  readonly at: number;
  readonly until: number;
  /** Why the last one ended. */
  readonly why: string;
}

export type MachineStep =
  | { readonly do: 'create'; readonly host: HostConfig; readonly offer: Offer; readonly price: Price | null }
  | { readonly do: 'learn'; readonly cloud: string; readonly type: string }
  | { readonly do: 'list'; readonly cloud: string }
  | { readonly do: 'setEnd'; readonly machine: Machine; readonly made: Made }
  | { readonly do: 'destroy'; readonly cloud: string; readonly thing: Pick<Thing, 'kind' | 'id' | 'place'> }
  /** Only the ledger changes. */
  | { readonly do: 'change'; readonly machine: Machine };

export interface Plan {
  readonly steps: readonly MachineStep[];
  /** Why a host has fewer machines than its jobs need, as a sentence, by host. */
  readonly reasons: ReadonlyMap<string, string>;
  /** Seconds until the plan may change without an event. */
  readonly lookAgain: number;
}

/** Names the call of a step, so that it is not under way twice; empty: it may be. */
export function stepKey(step: MachineStep): string {
  switch (step.do) {
    case 'create':
    case 'change':
      return '';
    case 'learn':
      return `learn ${step.type}`;
    case 'list':
      return 'list';
    case 'setEnd':
      return `end ${step.machine.run}`;
    case 'destroy':
      return `destroy ${thingKey(step.thing)}`;
  }
}

/** Seconds in which a machine that nobody knows to exist may still appear in a list. */
const appearsWithin = 120;
/** Seconds in which the cloud must confirm the end of a machine. */
const endWithin = 300;
/** Seconds between two requests to remove a thing that is not on its way, and one that is. */
const [askAgain, askAgainEnding] = [30, 300];
/** Seconds until the next list: while machines exist, and otherwise. */
const [listUsual, listSeldom] = [60, 600];
/** The same while something changes, by how long ago that began. */
const listSoon = (age: number): number => (age < 60 ? 5 : age < 600 ? 15 : listUsual);
/** Seconds that a list may be old when a machine is created by it. */
const listFresh = 120;
/** Seconds that two lists must lie apart to count as two. */
const listApart = 5;
/** Seconds for which what a machine said about itself holds. */
const reportHolds = 60;
/** Seconds without a report after which a machine counts as lost: one that was idle, and one that was busy or never heard. */
const [silentAfter, silentBusyAfter] = [1800, 7200];
/** Seconds in which a machine tries again to join. */
const joinAgain = 180;
/** Seconds after which a thing whose machine nobody knows is left over. */
const orphanAfter = 900;
/** Removed first: the others may end with them. */
const holders: ReadonlySet<ThingKind> = new Set(['machine', 'group']);

export function plan(view: View): Plan {
  const steps: MachineStep[] = [];
  const reasons = new Map<string, string>();
  let lookAgain = listSeldom;
  const at = (seconds: number): void => {
    if (seconds < lookAgain) lookAgain = Math.max(1, seconds);
  };
  const runs = new Set(view.machines.map(({ run }) => run));
  const byCloud = Map.groupBy(view.machines, ({ cloud }) => cloud);

  for (const [cloud, here] of view.clouds) {
    const { now, listed, calling } = here;
    const ours = byCloud.get(cloud) ?? [];
    const hosts = new Map(view.hosts.flatMap((host) => (host.cloud === cloud ? [[host.host, host]] : [])));
    const byHost = Map.groupBy(ours, ({ host }) => host);
    /** Machines that work or will, by host; those that drain from now on are taken away. */
    const working = new Map([...byHost].map(([host, of]) => [host, of.filter(isWanted).length]));
    const things = Map.groupBy(listed?.things ?? [], ({ run }) => run ?? '');
    /** When the youngest change began; null: nothing changes. */
    let changing: number | null = here.since === null ? now : null;
    const isChanging = (since: number): void => {
      changing = Math.max(changing ?? 0, since);
    };
    for (const machine of here.since === null ? [] : ours) {
      const host = hosts.get(machine.host);
      const next = byTime(machine, host, working.get(machine.host) ?? 0, view, here);
      if (next?.state === 'draining') working.set(machine.host, (working.get(machine.host) ?? 0) - 1);
      if (next !== null) {
        steps.push({ do: 'change', machine: next });
        at(1);
        continue;
      }
      if (machine.state === 'ending' || (machine.state === 'intent' && !calling.has(`create ${machine.run}`)))
        isChanging(machine.since);
      if (machine.state === 'made' && machine.made !== null) {
        const key = `end ${machine.run}`;
        const again = here.notBefore.get(key) ?? 0;
        if (now >= again && !calling.has(key)) steps.push({ do: 'setEnd', machine, made: machine.made });
        else at(again - now);
      }
      if (machine.state === 'ending') steps.push(...removal(cloud, machine, things.get(machine.run) ?? [], here));
      at(timeLeft(machine, host, view, here));
    }
    for (const [run, found] of here.since === null ? [] : things)
      if (run !== '' && !runs.has(run))
        for (const thing of found) {
          if (!isLeftOver(thing, here.orphans, now)) continue;
          isChanging(thing.expires ?? now);
          if (mayAsk(thing, here)) steps.push({ do: 'destroy', cloud, thing });
        }
    let isNeeded = false;
    for (const host of hosts.values()) {
      if (view.only !== null && host.host !== view.only) continue;
      const found = wish(host, byHost.get(host.host) ?? [], view, here);
      if (found.reason !== null) reasons.set(host.host, found.reason);
      if (found.until !== null) at(found.until - now);
      if (!found.isWish) continue;
      // What exists now decides, and tells the cloud's time.
      if (listed === null || now - listed.at > listFresh) isNeeded = true;
      else if (listed.failed !== null) reasons.set(host.host, listed.failed.replace(/\.$/, ''));
      else steps.push(...found.steps);
    }
    const period = changing !== null ? listSoon(now - changing) : ours.length > 0 ? listUsual : listSeldom;
    const due = listed === null ? now : listed.at + period;
    if (calling.has('list')) continue;
    if (isNeeded || now >= due) steps.push({ do: 'list', cloud });
    else at(due - now);
  }
  return { steps, reasons, lookAgain };
}

const changed = (machine: Machine, now: number, change: Partial<Machine>): Machine => ({
  ...machine,
  ...(change.state !== undefined && change.state !== machine.state && { since: now, absent: [] }),
  ...change,
});

/**
 * The machine with an end: nothing new begins on it, and it is removed. While nobody knows whether it was created, that is only noted,
 * so that it counts as one that may exist.
 */
export function ended(machine: Machine, now: number, why: string, isFailure: boolean): Machine {
  if (machine.state === 'intent') return machine.why === null ? { ...machine, why, isFailure } : machine;
  return resolved(machine, now, why, isFailure);
}

/**
 * The machine after its used join token came again with another key. Within the time of its boot one of the two is a thief, and
 * nobody knows which, so it ends. Later the token opens nothing, and anything that has it, such as a job that read the machine's user data,
 * could only end the jobs of others with it.
 */
export function tokenCameAgain(machine: Machine, now: number, host: Pick<HostConfig, 'boot'> | undefined, from: string): Machine {
  if (machine.joinedAt !== null && now >= machine.born + (host?.boot ?? 0) / 1000) return machine;
  return ended(machine, now, `Its join token was used twice, also from ${from}.`, true);
}

/** As `ended`, when it is known that the create call was not carried out, or has failed. */
export function resolved(machine: Machine, now: number, why: string, isFailure: boolean): Machine {
  if (machine.state === 'ending' || machine.state === 'gone') return machine;
  return changed(machine, now, { state: 'ending', why: machine.why ?? why, isFailure: machine.isFailure || isFailure });
}

export function drained(machine: Machine, now: number, why: string, isFailure = false): Machine {
  if (machine.state !== 'joined') return machine;
  return changed(machine, now, { state: 'draining', why, isFailure });
}

/** What time, its own reports and its host's config make of a machine; null: nothing. `working`: machines of the host that work or will. */
function byTime(
  machine: Machine,
  host: HostConfig | undefined,
  working: number,
  view: View,
  { now, calling, since, deafAt }: CloudView,
): Machine | null {
  if (machine.state === 'ending' || machine.state === 'gone') return null;
  if (now >= machine.expires) return resolved(machine, now, 'Its lifetime is over.', false);
  const report = view.reports.get(machine.run);
  const listens = view.deaf !== null || since === null ? null : Math.max(since, deafAt);
  switch (machine.state) {
    case 'intent': {
      if (calling.has(`create ${machine.run}`) || now < machine.since + appearsWithin || machine.absent.length < 2) return null;
      return resolved(machine, now, 'The create call got no answer, and no list shows a machine.', true);
    }
    case 'made':
      if (machine.why !== null) return ended(machine, now, machine.why, machine.isFailure);
      if (now < Math.max(machine.since, since ?? 0) + endWithin) return null;
      return unconfirmed(machine, now);
    case 'booting': {
      const boot = Math.round((host?.boot ?? 0) / 1000);
      // It may have tried while nobody listened.
      if (now < Math.max(machine.born + boot, (since ?? 0) + joinAgain)) return null;
      return ended(machine, now, `It did not join within ${Math.round(boot / 60)} minutes.`, true);
    }
    case 'joined': {
      if (host === undefined) return drained(machine, now, 'The config has no such host any more.');
      if (view.only !== null && view.only !== host.host) return null;
      const before = Math.min(900, Math.round(host.lifetime / 10_000));
      if (now >= machine.expires - before) return drained(machine, now, 'Its lifetime is almost over.');
      if (isSilent(machine, report, listens, now)) return ended(machine, now, 'It was silent for too long.', true);
      if (isFresh(report, now) && report.problem !== null && report.busy === 0 && now >= worksBy(machine, host, report, since))
        return ended(
          { ...machine, stage: 'failed' },
          now,
          `It could not work for ${Math.round(host.boot / 60_000)} minutes: ${report.problem}`,
          true,
        );
      if (!isFresh(report, now) || report.problem !== null || report.idleFor * 1000 < host.idle) return null;
      // Jobs that wait although it is free may wait for something else, but not all of them.
      const needed = Math.ceil((view.waiting.get(host.host) ?? 0) / Math.max(1, report.agents));
      if (working <= Math.max(host.min, needed)) return null;
      return drained(machine, now, `It had no job for ${Math.round(host.idle / 1000)} s.`);
    }
    case 'draining': {
      // Without "hosts" and "join" in the config nobody can tell it to drain.
      if (isSilent(machine, report, host === undefined ? since : listens, now))
        return ended(machine, now, 'It drained, and was silent for too long.', true);
      return null;
    }
    default:
      return null;
  }
}

/** Seconds until which a joined machine must be able to work; as much time as for its boot. */
const worksBy = ({ joinedAt }: Machine, { boot }: HostConfig, { workedAt }: Report, since: number | null): number =>
  Math.max(workedAt ?? joinedAt ?? 0, since ?? 0) + Math.round(boot / 1000);

/** Whether it has joined, and will be able to work as far as anybody knows: it has not spoken yet, or never could until now. */
function isSettling(machine: Machine, host: HostConfig, report: Report | undefined, { now, since }: CloudView): boolean {
  if (machine.state !== 'joined' || machine.joinedAt === null) return false;
  if (report === undefined) return now < Math.max(machine.joinedAt, since ?? 0) + reportHolds;
  return isFresh(report, now) && report.workedAt === null && now < worksBy(machine, host, report, since);
}

const isFresh = (report: Report | undefined, now: number): report is Report =>
  report !== undefined && now <= report.at + reportHolds;

/**
 * Whether nothing was heard of it for so long that it counts as lost. One that was busy gets more time, and a controller that cannot
 * hear concludes nothing. `listens`: since when it listens; null: it does not.
 */
function isSilent(machine: Machine, report: Report | undefined, listens: number | null, now: number): boolean {
  if (listens === null) return false;
  const patience = report !== undefined && report.busy === 0 ? silentAfter : silentBusyAfter;
  return now >= Math.max(machine.joinedAt ?? machine.since, report?.at ?? 0, listens) + patience;
}

/** A machine that works already drains first. */
function unconfirmed(machine: Machine, now: number): Machine {
  const why = `The cloud did not confirm its end within ${endWithin / 60} minutes.`;
  if (machine.joinedAt === null) return ended(machine, now, why, true);
  return changed(machine, now, { state: 'draining', why, isFailure: true });
}

/** Seconds until time changes something of the machine. */
function timeLeft(machine: Machine, host: HostConfig | undefined, view: View, { now }: CloudView): number {
  const report = view.reports.get(machine.run);
  const times = [machine.expires - now];
  if (machine.state === 'intent') times.push(machine.since + appearsWithin - now);
  if (machine.state === 'made') times.push(machine.since + endWithin - now);
  if (machine.state === 'booting' && host !== undefined) times.push(machine.born + host.boot / 1000 - now);
  if (machine.state === 'joined' && host !== undefined && report?.busy === 0)
    times.push(host.idle / 1000 - report.idleFor - (now - report.at));
  return Math.min(...times.filter((left) => left > 0), listSeldom);
}

function mayAsk(thing: Pick<Thing, 'kind' | 'id' | 'place' | 'state'>, { now, asked, calling }: CloudView): boolean {
  const key = thingKey(thing);
  if (calling.has(`destroy ${key}`)) return false;
  const last = asked.get(key);
  return last === undefined || now >= last + (thing.state === 'ending' ? askAgainEnding : askAgain);
}

function removal(cloud: string, machine: Machine, things: readonly Thing[], here: CloudView): MachineStep[] {
  // Of one second, either may have come first.
  const isListed = here.listed !== null && here.listed.from > machine.since;
  if (machine.made !== null && !things.some(({ kind }) => holders.has(kind))) {
    // The first request does not wait for a list.
    const thing = { kind: 'machine', id: machine.made.id, place: machine.made.place, state: 'running' } as const;
    const isFirst = !here.asked.has(thingKey(thing)) && !here.calling.has(`destroy ${thingKey(thing)}`);
    if (isFirst && !isListed) return [{ do: 'destroy', cloud, thing }];
  }
  if (!isListed && things.length === 0) return [];
  const first = things.filter(({ kind }) => holders.has(kind));
  return (first.length > 0 ? first : things).flatMap((thing) =>
    mayAsk(thing, here) ? [{ do: 'destroy', cloud, thing } as const] : [],
  );
}

/**
 * Whether a thing of our owner that no ledger knows is to be removed: what is past its end, and what two complete lists in a row showed
 * without a machine. A machine that lives belongs to another manager.
 */
export function isLeftOver(thing: Thing, orphans: ReadonlyMap<string, number>, now: number): boolean {
  if (thing.run === null || thing.expires === null) return false;
  if (now >= thing.expires) return true;
  return (orphans.get(thingKey(thing)) ?? 0) >= 2;
}

/**
 * Counts again after a list. An incomplete one says nothing about what it does not show, so the next one counts as the first. Nor does
 * one count that was asked for while the machine of a young thing could still appear.
 */
export function orphansAfter(before: ReadonlyMap<string, number>, listed: Listed): ReadonlyMap<string, number> {
  if (listed.failed !== null) return before;
  if (listed.unknown.length > 0) return new Map();
  const withMachine = new Set(listed.things.flatMap(({ kind, run }) => (kind === 'machine' ? [run] : [])));
  const isOrphan = ({ run, born }: Thing): boolean =>
    run !== null && !withMachine.has(run) && born !== null && listed.from >= born + orphanAfter;
  const orphans = listed.things.filter(isOrphan).map(thingKey);
  return new Map(orphans.map((key) => [key, (before.get(key) ?? 0) + 1]));
}

/** A machine after a list. `things`: of it. `isCreating`: its create call is under way. */
export function afterList(
  given: Machine,
  listed: Listed,
  things: readonly Thing[],
  { isCreating, heardAt = null }: { readonly isCreating: boolean; readonly heardAt?: number | null },
): Machine {
  const now = listed.at;
  // Written by a clock that was wrong before the cloud had told the time.
  let machine = given.since > now ? { ...given, since: now, absent: [] } : given;
  if (things.length > 0) {
    const known = new Set(machine.items.map(thingKey));
    const more = things.filter((thing) => !known.has(thingKey(thing))).map(({ kind, id, place }) => ({ kind, id, place }));
    const isNew = more.length > 0 || machine.seenAt === null || machine.absent.length > 0;
    const items = more.length === 0 ? machine.items : [...machine.items, ...more];
    const seen = isNew ? { items, seenAt: now, absent: [] as number[] } : {};
    if (machine.state === 'gone')
      return changed(machine, now, {
        ...seen,
        state: 'ending',
        why: 'It appeared after two lists without it.',
        isFailure: true,
        registrations: null,
      });
    const found = things.find(({ kind }) => kind === 'machine');
    if (machine.state === 'intent' && !isCreating && found !== undefined) {
      const made = { id: found.id, place: found.place, zone: found.offer?.zone ?? machine.offer.zone };
      return changed(machine, now, { ...seen, state: 'made', made });
    }
    if (found?.state === 'stopped' && (machine.state === 'joined' || machine.state === 'draining'))
      return ended({ ...machine, ...seen }, now, 'It was stopped.', true);
    if (found !== undefined || machine.state === 'ending') return isNew ? { ...machine, ...seen } : machine;
    // Its disks may still be listed after it has ended, or although it was never made.
    if (more.length > 0) machine = { ...machine, items };
  }
  // What speaks lives, whatever a list says.
  if (heardAt !== null && heardAt >= listed.from) return machine.absent.length === 0 ? machine : { ...machine, absent: [] };
  if (isCreating || listed.failed !== null || listed.unknown.length > 0) return machine;
  if (listed.from <= machine.since || machine.state === 'gone') return machine;
  // What was created may not be in lists yet.
  if (machine.made !== null && machine.seenAt === null && listed.from < machine.since + appearsWithin) return machine;
  const last = machine.absent.at(-1);
  if (last !== undefined && listed.from < last + listApart) return machine;
  const absent = [...machine.absent, now].slice(-2);
  const counted = { ...machine, absent };
  if (absent.length < 2 || machine.state === 'intent') return counted;
  if (machine.state === 'ending') return { ...counted, state: 'gone', since: now };
  return ended(counted, now, 'The cloud has ended it.', true);
}

/** Machines that the host should have and has not, as steps. */
function wish(host: HostConfig, of: readonly Machine[], view: View, here: CloudView) {
  const none = { isWish: false, steps: [] as MachineStep[], reason: null as string | null, until: null as number | null };
  if ((view.wanted.get(host.host) ?? 0) < 0)
    return { ...none, reason: `somebody ended it with "onejob cloud down"; run "onejob cloud up ${host.host}" to use it again` };
  const working = of.filter(isWanted);
  const isStarting = (machine: Machine): boolean =>
    machine.state !== 'joined' || isSettling(machine, host, view.reports.get(machine.run), here);
  const starting = working.filter(isStarting).length;
  const reports = working.flatMap(({ run, state }) => {
    const report = view.reports.get(run);
    return state === 'joined' && isFresh(report, here.now) && report.problem === null ? [report] : [];
  });
  const free = reports.reduce((sum, { agents, busy }) => sum + Math.max(0, agents - busy), 0);
  const each = Math.max(1, ...(reports.length > 0 ? reports.map(({ agents }) => agents) : [host.agents]));
  const forJobs = Math.ceil(Math.max(0, (view.waiting.get(host.host) ?? 0) - free) / each);
  const need = Math.max(forJobs, view.wanted.get(host.host) ?? 0, host.min - (working.length - starting)) - starting;
  const unable = working.flatMap(({ run }) => {
    const problem = view.reports.get(run)?.problem ?? null;
    return problem === null ? [] : [`${run} cannot work: ${lastLine(problem)}`];
  });
  if (need <= 0) return { ...none, reason: forJobs > 0 ? (unable[0] ?? null) : null };
  // An ending machine may still exist and cost money. So may one that no complete list has ruled out during its lifetime.
  const mayBe = ({ state, made, seenAt, expires }: Machine): boolean =>
    state !== 'ending' || made !== null || seenAt !== null || here.now >= expires;
  const room = host.max - of.filter(mayBe).length;
  if (room <= 0)
    return { ...none, reason: [`it has ${of.length} of at most ${host.max} machines`, ...unable.slice(0, 1)].join('; ') };
  if (view.deaf !== null) return { ...none, reason: `machines cannot join this daemon: ${view.deaf}` };
  const failing = view.failing.get(host.host);
  if (failing !== undefined && here.now < failing.until) {
    const times = failing.failures === 1 ? 'its last machine' : `its last ${failing.failures} machines`;
    const again = `the next one is made at ${timeOf(failing.until)} UTC`;
    return { ...none, until: failing.until, reason: `${times} failed: ${lastLine(failing.why)}; ${again}` };
  }
  // What cannot be learnt now keeps no other type waiting.
  const again = (type: string): number => here.notBefore.get(`learn ${type}`) ?? 0;
  const unknown = host.types.filter((type) => !here.types.has(type) && here.now >= again(type));
  if (unknown.length > 0) {
    const steps = unknown.flatMap((type): MachineStep[] =>
      here.calling.has(`learn ${type}`) ? [] : [{ do: 'learn', cloud: host.cloud, type }],
    );
    return { ...none, isWish: true, steps };
  }
  const known = { ...host, types: host.types.filter((type) => here.types.has(type)) };
  const untold = Math.min(...host.types.filter((type) => !here.types.has(type)).map(again));
  if (known.types.length === 0)
    return {
      ...none,
      until: untold,
      reason: `${host.cloud} gave no information about ${host.types.join(', ')}; "onejob cloud check ${host.host}" says why`,
    };
  // A budget allows no type whose price is unknown; another one may be known.
  const hasPrice = (type: string): boolean => [true, false].some((spot) => priceOf(host, { type, spot }, here) !== null);
  const priced = host.budget === null ? known.types : known.types.filter(hasPrice);
  const unpriced = known.types.filter((type) => !priced.includes(type)).map(unknownPrice);
  if (priced.length === 0) return { ...none, reason: unpriced.join('; ') };
  const next = view.offers.next({ ...host, types: priced }, here.types, here.now);
  const price = next.offer === null ? null : priceOf(host, next.offer, here);
  const poor = next.offer === null ? null : overBudget(host, next.offer, price, view, here.now);
  if (poor !== null) return { ...none, ...poor };
  const short = shortage(host, next.offer, view.offers.unavailable(here.now));
  const reason = [...unpriced, ...(short === null ? [] : [short])].join('; ') || null;
  if (next.offer === null) return { ...none, reason, until: next.until };
  return { ...none, isWish: true, reason, steps: [{ do: 'create', host, offer: next.offer, price } as MachineStep] };
}

/** The config's own price, else the cloud's; null: unknown. */
function priceOf(
  host: HostConfig,
  { type, spot }: Pick<Offer, 'type' | 'spot'>,
  here: Pick<CloudView, 'types' | 'now'>,
): Price | null {
  const own = host.prices[type];
  const today = new Date(here.now * 1000).toISOString().slice(0, 10);
  if (own !== undefined) return { perHour: own, asOf: today };
  const found = here.types.get(type);
  return (spot ? found?.spotPrice : found?.price) ?? null;
}

/** Of what a machine or the cloud said, without its full stop. */
const lastLine = (text: string): string => (text.trim().split('\n').at(-1) ?? '').replace(/\.$/, '').slice(0, 300);

/** As `14:02`, UTC. */
const timeOf = (seconds: number): string => new Date(seconds * 1000).toISOString().slice(11, 16);

/** Seconds of a day. */
const day = 86_400;

const unknownPrice = (type: string): string =>
  `the price of ${type} is unknown, so its budget rules it out; write it under "prices"`;

/** Why the budget of the day allows no other machine; null: it does. */
function overBudget(host: HostConfig, { type }: Offer, price: Price | null, view: View, now: number) {
  if (host.budget === null) return null;
  const today = Math.floor(now / day) * day;
  const until = today + day;
  if (price === null) return { reason: unknownPrice(type), until };
  let sum = 0;
  // Those that live continue for a while: an hour of each counts as spent.
  let soon = price.perHour;
  for (const machine of [...view.machines, ...view.goneToday]) {
    // What was only adopted to be removed has no price.
    if (machine.host !== host.host || machine.token === '') continue;
    const cost = costOf(machine, now, today);
    if (cost === null) return { reason: unknownPrice(machine.offer.type), until };
    sum += cost;
    if (isWanted(machine)) soon += machine.price?.perHour ?? 0;
  }
  if (sum + soon <= host.budget) return null;
  const spent = `${sum.toFixed(2)} USD since 00:00 UTC, and ${soon.toFixed(2)} for the next hour of all machines`;
  return { reason: `its budget of ${host.budget} USD a day allows no other machine (${spent})`, until };
}

/** As `no g6.xlarge in us-west-2a since 14:02; trying g5.xlarge`; null: nothing is missing. */
function shortage(host: HostConfig, next: Offer | null, unavailable: readonly Unavailable[]): string | null {
  const of = unavailable.filter(({ cloud, offer }) => cloud === host.cloud && host.types.includes(offer.type));
  if (of.length === 0) return null;
  const groups = Map.groupBy(of, ({ offer: { type, spot }, code }) => `${type}${spot ? ' (spot)' : ''}|${code}`);
  const parts = [...groups].map(([, list]) => {
    const [{ offer, code, why }] = list as [Unavailable, ...Unavailable[]];
    const since = timeOf(Math.min(...list.map((one) => one.since)));
    if (code !== 'E_CLOUD_CAPACITY') return why.replace(/\.$/, '');
    const zones = list.flatMap(({ offer: { zone } }) => zone ?? []);
    const where = zones.length === 0 ? '' : ` in ${zones.join(', ')}`;
    return `no ${offer.type}${offer.spot ? ' (spot)' : ''}${where} since ${since}`;
  });
  const then =
    next !== null
      ? `trying ${next.type}${next.spot ? ' (spot)' : ''}${next.zone === null ? '' : ` in ${next.zone}`}`
      : `trying again at ${timeOf(Math.min(...of.map(({ until }) => until)))} UTC`;
  return `${parts.join(', ')}; ${then}`;
}
