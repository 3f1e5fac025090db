/**
 * What only a real account can show: one machine is made, looked at from all sides and removed, step by step, with how long each step
 * took. All of it has an owner of its own, so that a sweep by that owner finds everything. Whatever happens, it tries to remove what it
 * made, and says what may be left.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { hasCode, messageOf, OnejobError } from '../base/errors.ts';
import type { Finding } from '../base/finding.ts';
import { offerText, spotsOf } from '../clouds/offer.ts';
import { type Clock, sleep } from '../core/clock.ts';
import {
  type Cloud,
  CloudError,
  type CloudImage,
  type HostPlan,
  type Listing,
  type Made,
  type Offer,
  type Order,
  type Price,
  type Thing,
  tagKeys,
} from '../ports/cloud.ts';
import { sweep } from './sweep.ts';

export interface AcceptancePlan {
  /** `acceptanceOwner()`. */
  readonly owner: string;
  /** The cheapest one, as far as prices are known, is made. Never empty. */
  readonly types: readonly string[];
  readonly spot: HostPlan['spot'];
  readonly image: CloudImage;
  /** GiB */
  readonly disk: number;
  /** ms until the cloud would end the machine. */
  readonly lifetime: number;
  /** ms until the cloud is to end a second machine, which is waited for; null: none is made. */
  readonly waitForEnd: number | null;
  /** Goes on after a step that failed, as far as that makes sense. */
  readonly keepGoing: boolean;
}

export interface AcceptanceParts {
  readonly clock: Clock;
  /** Asked before anything is made. `text`: what it costs, as a phrase. */
  confirm(text: string): Promise<boolean>;
  /** Called at the end of each step. */
  ended(step: AcceptanceStep): Promise<void>;
  /** What goes on now, for a person who waits. */
  waits(text: string): void;
  /** Ends the steps; what was made is removed all the same. */
  readonly signal: AbortSignal;
  /** Ends the removal, too. */
  readonly hurry: AbortSignal;
}

export interface AcceptanceStep {
  readonly step: string;
  /** `warning`: a person should read it. `skipped`: it could not be tried. */
  readonly result: 'ok' | 'warning' | 'failed' | 'skipped';
  /** ms */
  readonly took: number;
  /** One or more sentences or phrases. */
  readonly evidence: string;
}

export interface Acceptance {
  readonly steps: readonly AcceptanceStep[];
  /** `declined`: somebody said no to the costs. */
  readonly end: 'done' | 'declined' | 'interrupted';
  /** What may be left, each as a phrase; empty: two complete lists showed nothing, or nothing was made. */
  readonly left: readonly string[];
}

/** ms */
const [second, minute] = [1_000, 60_000];
/** What the real clouds were seen to need at most, with room. */
const patience = {
  list: 3 * minute,
  console: 12 * minute,
  machine: 15 * minute,
  rest: 6 * minute,
  end: 10 * minute,
  clean: 20 * minute,
};
/** How long a disk, an interface or an address may outlive its machine. */
const grace = 3 * minute;
/** Between two looks. */
const every = 10 * second;
/** How long a machine is looked for whose create call nobody knows the fate of, as the controller does it. */
const mayAppear = 2 * minute;
/** Removed by onejob; all else goes with its machine. */
const ours: ReadonlySet<Thing['kind']> = new Set(['group', 'schedule', 'spot-request']);

export const acceptanceOwner = (): string => `onejob-acceptance-${randomBytes(4).toString('hex')}`;

/** What happened is not what should have. */
class Unmet extends Error {}
/** No further step makes sense. */
class Over extends Error {}

type Outcome = string | readonly [result: AcceptanceStep['result'], evidence: string];

export async function accept(cloud: Cloud, plan: AcceptancePlan, parts: AcceptanceParts): Promise<Acceptance> {
  const { owner, keepGoing } = plan;
  const { clock, signal, hurry, waits } = parts;
  const steps: AcceptanceStep[] = [];
  const { holdsEnd } = cloud.capabilities;
  const unexamined = 'The cloud\'s end of a machine is not examined, because of "death_date: manager-only".';
  let hasAsked = false;
  /** Time of the clock until which a machine may still appear. */
  let unsureUntil = 0;
  let end: Acceptance['end'] = 'done';

  const done = async (step: AcceptanceStep): Promise<void> => {
    steps.push(step);
    await parts.ended(step);
  };

  /** Whether it succeeded. @throws Over */
  async function step(name: string, work: (since: () => number) => Promise<Outcome>): Promise<boolean> {
    const began = clock.now();
    const since = (): number => clock.now() - began;
    const tell = (result: AcceptanceStep['result'], evidence: string) => done({ step: name, result, took: since(), evidence });
    waits(name);
    try {
      signal.throwIfAborted();
      const outcome = await work(since);
      await (typeof outcome === 'string' ? tell('ok', outcome) : tell(...outcome));
      return true;
    } catch (error) {
      if (error instanceof Over) throw error;
      if (signal.aborted) {
        end = 'interrupted';
        await tell('failed', 'It was interrupted.');
        throw new Over();
      }
      if (!(error instanceof OnejobError || error instanceof Unmet)) throw error;
      const hint = error instanceof OnejobError ? error.hint : null;
      await tell('failed', `${messageOf(error)}${hint === null ? '' : ` ${hint}`}`);
      if (!keepGoing) throw new Over();
      return false;
    }
  }

  /** Until `isSo` of a complete list, or gives up. @throws Unmet */
  async function listUntil<T>(what: string, limit: number, isSo: (listing: Listing) => T | null, where?: Made): Promise<T> {
    const until = clock.now() + limit;
    let unknown = '';
    for (;;) {
      const listing = await listed(where);
      unknown = listing.unknown.join(', ');
      const found = listing.unknown.length === 0 ? isSo(listing) : null;
      if (found !== null) return found;
      if (clock.now() >= until)
        throw new Unmet(
          unknown === '' ? `After ${spoken(limit)} ${what}.` : `After ${spoken(limit)} lists are still incomplete: ${unknown}.`,
        );
      await sleep(clock, every, signal);
      signal.throwIfAborted();
    }
  }

  /** One list; what cannot be had is unknown. */
  async function listed(where?: Made): Promise<Listing> {
    try {
      return await cloud.list(owner, { places: where === undefined ? [] : [where.place], everywhere: false }, signal);
    } catch (error) {
      if (error instanceof CloudError && error.retry) return { things: [], unknown: [messageOf(error)] };
      throw error;
    }
  }

  /** Two complete lists in a row for which `isSo`; ms until the first of them. @throws Unmet */
  async function twice(what: string, limit: number, isSo: (listing: Listing) => boolean, made: Made): Promise<number> {
    const began = clock.now();
    let first: number | null = null;
    return await listUntil(
      what,
      limit,
      (listing) => {
        if (!isSo(listing)) {
          first = null;
          return null;
        }
        if (first !== null) return first - began;
        first = clock.now();
        return null;
      },
      made,
    );
  }

  async function preflight(type: string): Promise<void> {
    const { spot, image, disk, lifetime } = plan;
    const began = clock.now();
    waits('permissions, quota, image and network');
    signal.throwIfAborted();
    const host = 'acceptance';
    const wanted = { host, types: [type], spot, image, disk, max: 1, lifetime, budget: null, prices: {} };
    const findings = await cloud.preflight(wanted, signal);
    let took = clock.now() - began;
    for (const [subject, found] of Map.groupBy(findings, ({ subject }) => subject.replace(/^[^:]+: /, ''))) {
      await done({ step: subject, result: worst(found), took, evidence: found.map(sentence).join(' ') });
      took = 0;
    }
    if (!keepGoing && worst(findings) === 'failed') throw new Over();
  }

  /** @throws Over if somebody says no */
  async function costs(type: string): Promise<void> {
    await step('costs', async () => {
      const prices = await Promise.all(spotsOf(plan).map((spot) => cloud.price({ type, spot }, signal).catch(() => null)));
      const text = costText(prices, plan.lifetime + ((holdsEnd ? plan.waitForEnd : null) ?? 0));
      if (await parts.confirm(`${type} costs ${text}`)) return [text.includes('unknown') ? 'warning' : 'ok', `${type}: ${text}.`];
      end = 'declined';
      await done({ step: 'costs', result: 'skipped', took: 0, evidence: `${type}: ${text}. Declined.` });
      throw new Over();
    });
  }

  /** null: there is none. */
  async function make(name: string, type: string, lifetime: number): Promise<{ order: Order; made: Made; at: number } | null> {
    let result: { order: Order; made: Made; at: number } | null = null;
    await step(name, async (since) => {
      const tried: string[] = [];
      const zones = await cloud.zones(type, signal);
      // With a zone, since a create token is only good in one.
      const named = zones.filter((zone) => zone !== null);
      const offers: Offer[] = spotsOf(plan).flatMap((spot) =>
        (named.length > 0 ? named : [null]).map((zone) => ({ type, spot, zone })),
      );
      for (const [at, offer] of offers.entries()) {
        const order = orderOf(offer, lifetime);
        hasAsked = true;
        unsureUntil = Number.POSITIVE_INFINITY;
        waits(`${name}: ${offerText(offer)}`);
        try {
          const made = await cloud.create(order, signal);
          unsureUntil = 0;
          result = { order, made, at: clock.now() };
          const where = made.zone ?? made.place;
          const before = tried.length === 0 ? '' : ` Without capacity before: ${tried.join(', ')}.`;
          return `${made.id}: ${offerText({ ...offer, zone: null })} in ${where}, created in ${spoken(since())}.${before}`;
        } catch (error) {
          const isCertain = (error instanceof CloudError && !error.isAmbiguous) || hasCode(error, 'E_SECRET');
          unsureUntil = isCertain ? 0 : clock.now() + mayAppear;
          tried.push(offerText(offer));
          if (!isCertain || !hasCode(error, 'E_CLOUD_CAPACITY', 'E_CLOUD_QUOTA') || at === offers.length - 1) throw error;
        }
      }
      throw new Unmet(`There is no zone for ${type}.`);
    });
    return result;
  }

  function orderOf(offer: Offer, lifetime: number): Order {
    const born = Math.floor((clock.wall() + (cloud.skew() ?? 0)) / 1000);
    const run = `onejob-${randomBytes(8).toString('hex')}`;
    return {
      owner,
      run,
      host: 'acceptance',
      born,
      expires: born + Math.round(lifetime / 1000),
      offer,
      token: randomUUID(),
      image: plan.image,
      disk: plan.disk,
      userData: consoleText(run),
    };
  }

  /** Everything about one machine, until it has gone. */
  async function lookAt(order: Order, made: Made, at: number): Promise<void> {
    const { run } = order;
    await step('end of life, read back', async () =>
      holdsEnd ? await cloud.setEnd(order, made, signal) : ['warning', `${unexamined} Write "death_date: cloud" to examine it.`],
    );
    const isMachine = (thing: Thing): boolean => thing.kind === 'machine' && thing.run === run;
    let things: readonly Thing[] = [];
    await step('in the list', async () => {
      things = await listUntil('no list shows it', patience.list, (all) => (all.things.some(isMachine) ? all.things : null), made);
      return `A complete list shows it ${spoken(clock.now() - at)} after its creation.`;
    });
    if (things.length > 0) await step('tags, read back', async () => tagsOf(order, things));
    await step('the same create call again', async () => {
      const answered = await cloud.create(order, signal).then(
        ({ id }) => `It answered with ${id === made.id ? 'the same machine' : id}`,
        (error: unknown) => {
          signal.throwIfAborted();
          return `It was refused (${error instanceof CloudError ? (error.reason ?? error.code) : messageOf(error)})`;
        },
      );
      // A second machine would be in lists as late as the first one was, or a little later.
      await sleep(clock, Math.max(15 * second, clock.now() - at), signal);
      const machines = await listUntil(
        'no list shows the machine',
        patience.list,
        (all) => {
          const found = all.things.filter(({ kind }) => kind === 'machine');
          return found.length === 0 ? null : found;
        },
        made,
      );
      if (machines.length > 1)
        throw new Unmet(`There are ${machines.length} machines: ${machines.map(({ id }) => id).join(', ')}.`);
      return `${answered}; there is one machine.`;
    });
    await step('a line on the console', async () => {
      const [line, until] = [consoleLine(run), clock.now() + patience.console];
      for (;;) {
        const { text, why } = await consoleOf(made);
        if (text.includes(line)) return `cloud-init's line is there ${spoken(clock.now() - at)} after the machine's creation.`;
        if (clock.now() >= until) {
          const tail = text === '' ? 'It is empty.' : `It ends with "${text.trim().slice(-200)}".`;
          throw new Unmet(`After ${spoken(patience.console)} the console does not show the line. ${why ?? tail}`);
        }
        waits(`a line on the console: ${spoken(clock.now() - at)}, ${text.length} characters so far`);
        await sleep(clock, every, signal);
        signal.throwIfAborted();
      }
    });
    await step("another owner's sweep", async () => {
      const options = { owner: acceptanceOwner(), all: true, dryRun: true, patience: minute };
      const { left, kept, unknown } = await sweep(cloud, options, clock, signal);
      const seen = [...left, ...kept];
      if (seen.length > 0) throw new Unmet(`It would touch ${seen.map(thingText).join(', ')}.`);
      if (unknown.length > 0) throw new Unmet(`Its list is incomplete: ${unknown.join(', ')}.`);
      return 'It sees nothing of this machine.';
    });
    const isAsked = await step('destroy', async () => {
      await cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, signal);
      return 'The cloud takes the call.';
    });
    if (!isAsked) return;
    const isGone = await step('gone', async () => {
      const after = await twice('it is still there', patience.machine, (all) => !all.things.some(isMachine), made);
      return `Two complete lists do not show it, the first one ${spoken(after)} after the call.`;
    });
    if (isGone) await step('nothing is left over', () => leftovers(made));
  }

  /** A machine that has just started may have no console yet. */
  async function consoleOf(made: Made): Promise<{ readonly text: string; readonly why: string | null }> {
    try {
      return { text: await cloud.console(made, signal), why: null };
    } catch (error) {
      if (error instanceof CloudError && !hasCode(error, 'E_CLOUD_DENIED', 'E_CLOUD_CREDENTIAL'))
        return { text: '', why: messageOf(error) };
      throw error;
    }
  }

  /** What outlives its machine although it should not is an error, although a sweep would remove it. */
  async function leftovers(made: Made): Promise<string> {
    const began = clock.now();
    const removed = new Map<string, Thing>();
    const remains = (all: readonly Thing[]): string => all.map(thingText).join(', ');
    let last: readonly Thing[] = [];
    const look = await listed(made);
    for (const thing of look.things) {
      if (!ours.has(thing.kind)) continue;
      await cloud.destroy(thing, signal);
      removed.set(thingText(thing), thing);
    }
    await twice(
      'something is left',
      patience.rest,
      ({ things }) => {
        last = things;
        const survivors = things.filter(({ kind }) => !ours.has(kind));
        if (survivors.length > 0 && clock.now() - began >= grace)
          throw new Unmet(`${spoken(clock.now() - began)} after the machine there is still ${remains(survivors)}.`);
        return things.length === 0;
      },
      made,
    ).catch((error: unknown) => {
      throw error instanceof Unmet && last.length > 0 && !error.message.includes('still')
        ? new Unmet(`There is still ${remains(last)}.`)
        : error;
    });
    const kinds = [...new Set([...removed.values()].map(({ kind }) => kind))];
    return `Two complete lists are empty${kinds.length === 0 ? '' : `; onejob removed the ${kinds.join(' and the ')}`}.`;
  }

  async function waitForEnd(type: string, lifetime: number): Promise<void> {
    if (!holdsEnd) {
      await step('the cloud ends it by itself', async () => ['skipped', unexamined]);
      return;
    }
    const second = await make('create a second machine', type, lifetime);
    if (second === null) return;
    const { order, made } = second;
    if (!(await step('its end of life, read back', () => cloud.setEnd(order, made, signal)))) return;
    await step('the cloud ends it by itself', async () => {
      const now = (): number => (clock.wall() + (cloud.skew() ?? 0)) / 1000;
      const limit = order.expires * 1000 - now() * 1000 + patience.end;
      let last: Thing | undefined;
      await twice(
        'it is still there',
        limit,
        ({ things }) => {
          last = things.find(({ kind, run }) => kind === 'machine' && run === order.run);
          return last === undefined || (last.state === 'stopped' && !cloud.capabilities.endRemoves);
        },
        made,
      );
      const late = (now() - order.expires) * 1000 - every;
      if (late < -minute) throw new Unmet(`It went ${spoken(-late)} before its end.`);
      const how = last === undefined ? 'gone' : 'stopped, and its disk costs on until onejob removes it,';
      return `It is ${how} ${spoken(Math.max(0, late))} after its end.`;
    });
  }

  /** Phrases of what may be left. */
  async function clean(): Promise<string[]> {
    const began = clock.now();
    const until = began + patience.clean;
    if (unsureUntil === Number.POSITIVE_INFINITY) unsureUntil = began + mayAppear;
    const removed = new Set<string>();
    let left: string[] = [];
    const told = (text: string): void => waits(`cleaning up: ${text}`);
    waits('cleaning up');
    try {
      for (;;) {
        const options = { owner, all: true, dryRun: false, patience: Math.max(0, until - clock.now()), told };
        const found = await sweep(cloud, options, clock, hurry);
        for (const thing of found.removed) removed.add(thingText(thing));
        left = [...[...found.left, ...found.kept].map(thingText), ...found.unknown.map((what) => `unknown: ${what}`)];
        if (left.length > 0 || clock.now() >= unsureUntil) break;
        await sleep(clock, every, hurry);
        hurry.throwIfAborted();
      }
    } catch (error) {
      if (!hurry.aborted) throw error;
      left = [`everything with the tag ${tagKeys.owner}=${owner}`];
    }
    const what = removed.size === 0 ? 'Nothing was removed' : `Removed ${[...removed].join(', ')}`;
    const evidence = left.length === 0 ? `${what}; two complete lists are empty.` : `${what}. May be left: ${left.join(', ')}.`;
    await done({ step: 'clean up', result: left.length === 0 ? 'ok' : 'failed', took: clock.now() - began, evidence });
    return left;
  }

  let failure: unknown = null;
  try {
    const type = await cheapest(cloud, plan.types, signal);
    await preflight(type);
    await costs(type);
    const first = await make('create', type, plan.lifetime);
    if (first !== null) await lookAt(first.order, first.made, first.at);
    if (plan.waitForEnd !== null) await waitForEnd(type, plan.waitForEnd);
  } catch (error) {
    if (signal.aborted) end = 'interrupted';
    else if (!(error instanceof Over)) failure = error;
  }
  const left = hasAsked ? await clean() : [];
  if (failure !== null) throw failure;
  return { steps, end, left };
}

/** By price on demand; a type without a known price comes last. */
async function cheapest(cloud: Cloud, types: readonly string[], signal: AbortSignal): Promise<string> {
  if (types.length <= 1) return types[0] ?? '';
  const prices = await Promise.all(
    types.map(async (type) => ({ type, price: await cloud.price({ type, spot: false }, signal).catch(() => null) })),
  );
  const of = ({ price }: { readonly price: Price | null }): number => price?.perHour ?? Number.POSITIVE_INFINITY;
  return prices.toSorted((a, b) => of(a) - of(b) || 0)[0]?.type ?? '';
}

/** As `about $0.27 for at most 30 minutes`. */
export function costText(prices: readonly (Price | null)[], lifetime: number): string {
  const minutes = Math.ceil(lifetime / minute);
  const known = prices.filter((price) => price !== null);
  if (known.length < prices.length || known.length === 0) return `an unknown price for at most ${minutes} minutes`;
  const most = Math.max(...known.map(({ perHour }) => perHour));
  // Never less than it is.
  const cents = Math.ceil(Math.round((most * minutes * 100_000) / 60) / 1000);
  return `about $${(cents / 100).toFixed(2)} for at most ${minutes} minutes (estimate of ${known[0]?.asOf})`;
}

/** Put together by the machine, so that no echo of cloud-init's text is taken for it. */
export const consoleLine = (run: string): string => `onejob acceptance ${run} speaks`;

function consoleText(run: string): string {
  return `#cloud-config\nruncmd:\n  - [sh, -c, "printf 'onejob %s ${run} %s\\\\n' acceptance speaks > /dev/console"]\n`;
}

function tagsOf({ run, host, born, expires }: Order, things: readonly Thing[]): Outcome {
  const wrong = things.flatMap((thing) => {
    const wanted: Partial<Thing> = { run, expires, ...(thing.kind === 'machine' && { host, born }) };
    return Object.entries(wanted).flatMap(([key, value]) => {
      const is = thing[key as keyof Thing];
      return is === value ? [] : [`${thing.kind} ${thing.id} has ${key} ${JSON.stringify(is)} instead of ${JSON.stringify(value)}`];
    });
  });
  if (wrong.length > 0) throw new Unmet(`${wrong.join('; ')}.`);
  const kinds = [...new Set(things.map(({ kind }) => kind))];
  return `Right on ${kinds.join(', ')}.`;
}

const thingText = ({ kind, id, place }: Thing): string => `${kind} ${id} in ${place}`;

function worst(findings: readonly Finding[]): 'ok' | 'warning' | 'failed' {
  if (findings.some(({ level }) => level === 'error')) return 'failed';
  return findings.some(({ level }) => level === 'warning') ? 'warning' : 'ok';
}

const sentence = ({ message, hint }: Finding): string => `${message}${hint === null ? '' : ` ${hint}`}`;

/** ms, as `12 s` or `3 min 20 s`. */
export function spoken(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min${seconds % 60 === 0 ? '' : ` ${seconds % 60} s`}`;
}
