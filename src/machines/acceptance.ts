/**
 * What only a real account can show: it creates, inspects and removes one machine, step by step, with how long each step
 * took. All of it has an owner of its own, so that a sweep by that owner finds everything. Whatever happens, it tries to remove what it
 * made, and says what may be left. It asks the adapter itself: the controller would repeat, and remove, what a person is to see.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { hasCode, messageOf } from '../base/errors.ts';
import type { Finding } from '../base/finding.ts';
import { offerText, spotsOf } from '../clouds/offer.ts';
import { sleep } from '../core/clock.ts';
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
import { AccountLook, lookEvery } from './acceptance-look.ts';
import { type AcceptanceStep, type Outcome, Over, Steps, type StepsParts, spoken, Unmet } from './acceptance-steps.ts';
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
  /** Continues after a step that failed, as far as that makes sense. */
  readonly keepGoing: boolean;
}

export interface AcceptanceParts extends Omit<StepsParts, 'keepGoing'> {
  /** Asked before anything is made. `text`: what it costs, as a phrase. */
  confirm(text: string): Promise<boolean>;
  /** Ends the removal, too, which follows on the end of the steps. */
  readonly hurry: AbortSignal;
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
/** How long a machine is looked for whose create call nobody knows the fate of, as the controller does it. */
const mayAppear = 2 * minute;
/** Removed by onejob; all else goes with its machine. */
const ours: ReadonlySet<Thing['kind']> = new Set(['group', 'schedule', 'spot-request']);

const unexamined = 'The cloud\'s end of a machine is not examined, because of "death_date: manager-only".';

export const acceptanceOwner = (): string => `onejob-acceptance-${randomBytes(4).toString('hex')}`;

/** Somebody said no to the costs. */
class Declined extends Over {}

/** A machine that was made, and when, by the clock. */
interface Trial {
  readonly order: Order;
  readonly made: Made;
  readonly at: number;
}

export function accept(cloud: Cloud, plan: AcceptancePlan, parts: AcceptanceParts): Promise<Acceptance> {
  return new AccountTrial(cloud, plan, parts).run();
}

class AccountTrial {
  readonly #cloud: Cloud;
  readonly #plan: AcceptancePlan;
  readonly #parts: AcceptanceParts;
  readonly #steps: Steps;
  readonly #look: AccountLook;
  #hasAsked = false;
  /** Time of the clock until which a machine may still appear. */
  #unsureUntil = 0;

  constructor(cloud: Cloud, plan: AcceptancePlan, parts: AcceptanceParts) {
    this.#cloud = cloud;
    this.#plan = plan;
    this.#parts = parts;
    const { owner, keepGoing } = plan;
    this.#steps = new Steps({ ...parts, keepGoing });
    this.#look = new AccountLook({ ...parts, cloud, owner });
  }

  async run(): Promise<Acceptance> {
    const { lifetime, types, waitForEnd } = this.#plan;
    const { signal } = this.#parts;
    let end: Acceptance['end'] = 'done';
    let failure: unknown = null;
    try {
      const type = await cheapest(this.#cloud, types, signal);
      await this.#preflight(type);
      await this.#costs(type);
      const trial = await this.#make('create', type, lifetime);
      if (trial !== null) await this.#examine(trial);
      if (waitForEnd !== null) await this.#waitForEnd(type, waitForEnd);
    } catch (error) {
      if (signal.aborted) end = 'interrupted';
      else if (error instanceof Declined) end = 'declined';
      else if (!(error instanceof Over)) failure = error;
    }
    const left = this.#hasAsked ? await this.#clean() : [];
    if (failure !== null) throw failure;
    return { steps: this.#steps.done, end, left };
  }

  /** Time by the cloud's clock, ms since the epoch. */
  #wall(): number {
    return this.#parts.clock.wall() + (this.#cloud.skew() ?? 0);
  }

  #step(name: string, work: (since: () => number) => Promise<Outcome>): Promise<boolean> {
    return this.#steps.step(name, work);
  }

  async #preflight(type: string): Promise<void> {
    const { spot, image, disk, lifetime, keepGoing } = this.#plan;
    const { clock, signal, waits } = this.#parts;
    const began = clock.now();
    waits('permissions, quota, image and network');
    signal.throwIfAborted();
    const wanted = { host: 'acceptance', types: [type], spot, image, disk, max: 1, lifetime, budget: null, prices: {} };
    const findings = await this.#cloud.preflight(wanted, signal);
    let took = clock.now() - began;
    for (const [subject, found] of Map.groupBy(findings, ({ subject }) => subject.replace(/^[^:]+: /, ''))) {
      await this.#steps.add({ step: subject, result: worst(found), took, evidence: found.map(sentence).join(' ') });
      took = 0;
    }
    if (!keepGoing && worst(findings) === 'failed') throw new Over();
  }

  /** @throws Declined if somebody says no */
  async #costs(type: string): Promise<void> {
    const { lifetime, waitForEnd } = this.#plan;
    const { signal, confirm } = this.#parts;
    await this.#step('costs', async () => {
      const priceOf = (spot: boolean) => this.#cloud.price({ type, spot }, signal).catch(() => null);
      const prices = await Promise.all(spotsOf(this.#plan).map(priceOf));
      const text = costText(prices, lifetime + ((this.#cloud.capabilities.holdsEnd ? waitForEnd : null) ?? 0));
      if (await confirm(`${type} costs ${text}`)) return [text.includes('unknown') ? 'warning' : 'ok', `${type}: ${text}.`];
      await this.#steps.add({ step: 'costs', result: 'skipped', took: 0, evidence: `${type}: ${text}. Declined.` });
      throw new Declined();
    });
  }

  /** null: there is none. */
  async #make(name: string, type: string, lifetime: number): Promise<Trial | null> {
    const { clock, signal, waits } = this.#parts;
    let trial: Trial | null = null;
    await this.#step(name, async (since) => {
      const tried: string[] = [];
      const zones = await this.#cloud.zones(type, signal);
      // With a zone, since a create token is only good in one.
      const named = zones.filter((zone) => zone !== null);
      const offers: Offer[] = spotsOf(this.#plan).flatMap((spot) =>
        (named.length > 0 ? named : [null]).map((zone) => ({ type, spot, zone })),
      );
      for (const [at, offer] of offers.entries()) {
        const order = this.#orderOf(offer, lifetime);
        waits(`${name}: ${offerText(offer)}`);
        try {
          const made = await this.#create(order);
          trial = { order, made, at: clock.now() };
          const where = made.zone ?? made.place;
          const before = tried.length === 0 ? '' : ` Without capacity before: ${tried.join(', ')}.`;
          return `${made.id}: ${offerText({ ...offer, zone: null })} in ${where}, created in ${spoken(since())}.${before}`;
        } catch (error) {
          tried.push(offerText(offer));
          if (this.#unsureUntil > 0 || !hasCode(error, 'E_CLOUD_CAPACITY', 'E_CLOUD_QUOTA') || at === offers.length - 1)
            throw error;
        }
      }
      throw new Unmet(`There is no zone for ${type}.`);
    });
    return trial;
  }

  async #create(order: Order): Promise<Made> {
    this.#hasAsked = true;
    this.#unsureUntil = Number.POSITIVE_INFINITY;
    try {
      const made = await this.#cloud.create(order, this.#parts.signal);
      this.#unsureUntil = 0;
      return made;
    } catch (error) {
      const isCertain = (error instanceof CloudError && !error.isAmbiguous) || hasCode(error, 'E_SECRET');
      this.#unsureUntil = isCertain ? 0 : this.#parts.clock.now() + mayAppear;
      throw error;
    }
  }

  #orderOf(offer: Offer, lifetime: number): Order {
    const { owner, image, disk } = this.#plan;
    const born = Math.floor(this.#wall() / 1000);
    const run = `onejob-${randomBytes(8).toString('hex')}`;
    const expires = born + Math.round(lifetime / 1000);
    return { owner, run, host: 'acceptance', born, expires, offer, token: randomUUID(), image, disk, userData: consoleText(run) };
  }

  /** Everything about one machine, until it has gone. */
  async #examine(trial: Trial): Promise<void> {
    const { order, made, at } = trial;
    const { clock, signal } = this.#parts;
    await this.#step('end of life, read back', async () =>
      this.#cloud.capabilities.holdsEnd
        ? await this.#cloud.setEnd(order, made, signal)
        : ['warning', `${unexamined} Write "death_date: cloud" to examine it.`],
    );
    const isMachine = (thing: Thing): boolean => thing.kind === 'machine' && thing.run === order.run;
    let things: readonly Thing[] = [];
    await this.#step('in the list', async () => {
      const shows = (all: Pick<Listing, 'things'>) => (all.things.some(isMachine) ? all.things : null);
      things = await this.#look.until('no list shows it', patience.list, shows, made);
      return `A complete list shows it ${spoken(clock.now() - at)} after its creation.`;
    });
    if (things.length > 0) await this.#step('tags, read back', async () => tagsOf(order, things));
    await this.#step('the same create call again', () => this.#createAgain(trial));
    await this.#step('a line on the console', () => this.#consoleShows(trial));
    await this.#step("another owner's sweep", () => this.#sweepElse());
    const isAsked = await this.#step('destroy', async () => {
      await this.#cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, signal);
      return 'The cloud takes the call.';
    });
    if (!isAsked) return;
    const isGone = await this.#step('gone', async () => {
      const isAway = (all: Pick<Listing, 'things'>): boolean => !all.things.some(isMachine);
      const after = await this.#look.twice('it is still there', patience.machine, isAway, made);
      return `Two complete lists do not show it, the first one ${spoken(after)} after the call.`;
    });
    if (isGone) await this.#step('nothing is left over', () => this.#leftovers(made));
  }

  async #createAgain({ order, made, at }: Trial): Promise<Outcome> {
    const { clock, signal } = this.#parts;
    const answered = await this.#cloud.create(order, signal).then(
      ({ id }) => `It answered with ${id === made.id ? 'the same machine' : id}`,
      (error: unknown) => {
        signal.throwIfAborted();
        return `It was refused (${error instanceof CloudError ? (error.reason ?? error.code) : messageOf(error)})`;
      },
    );
    // A second machine would be in lists as late as the first one was, or a little later.
    await this.#look.pause(Math.max(15 * second, clock.now() - at));
    const machinesOf = (all: Pick<Listing, 'things'>): readonly Thing[] | null => {
      const found = all.things.filter(({ kind }) => kind === 'machine');
      return found.length === 0 ? null : found;
    };
    const machines = await this.#look.until('no list shows the machine', patience.list, machinesOf, made);
    if (machines.length > 1) throw new Unmet(`There are ${machines.length} machines: ${machines.map(({ id }) => id).join(', ')}.`);
    return `${answered}; there is one machine.`;
  }

  async #consoleShows({ order: { run }, made, at }: Trial): Promise<Outcome> {
    const { clock, waits } = this.#parts;
    const [line, until] = [consoleLine(run), clock.now() + patience.console];
    for (;;) {
      const { text, why } = await this.#look.console(made);
      if (text.includes(line)) return `cloud-init's line is there ${spoken(clock.now() - at)} after the machine's creation.`;
      if (clock.now() >= until) {
        const tail = text === '' ? 'It is empty.' : `It ends with "${text.trim().slice(-200)}".`;
        throw new Unmet(`After ${spoken(patience.console)} the console does not show the line. ${why ?? tail}`);
      }
      waits(`a line on the console: ${spoken(clock.now() - at)}, ${text.length} characters so far`);
      await this.#look.pause();
    }
  }

  async #sweepElse(): Promise<Outcome> {
    const { clock, signal } = this.#parts;
    const options = { owner: acceptanceOwner(), all: true, dryRun: true, patience: minute };
    const { left, kept, unknown } = await sweep(this.#cloud, options, clock, signal);
    const seen = [...left, ...kept];
    if (seen.length > 0) throw new Unmet(`It would touch ${seen.map(thingText).join(', ')}.`);
    if (unknown.length > 0) throw new Unmet(`Its list is incomplete: ${unknown.join(', ')}.`);
    return 'It sees nothing of this machine.';
  }

  /** What outlives its machine although it should not is an error, although a sweep would remove it. */
  async #leftovers(made: Made): Promise<Outcome> {
    const { clock, signal } = this.#parts;
    const began = clock.now();
    const removed = new Set<Thing['kind']>();
    const remains = (all: readonly Thing[]): string => all.map(thingText).join(', ');
    let last: readonly Thing[] = [];
    for (const thing of (await this.#look.list(made)).things) {
      if (!ours.has(thing.kind)) continue;
      await this.#cloud.destroy(thing, signal);
      removed.add(thing.kind);
    }
    const isEmpty = ({ things }: Pick<Listing, 'things'>): boolean => {
      last = things;
      const survivors = things.filter(({ kind }) => !ours.has(kind));
      if (survivors.length > 0 && clock.now() - began >= grace)
        throw new Unmet(`${spoken(clock.now() - began)} after the machine there is still ${remains(survivors)}.`);
      return things.length === 0;
    };
    await this.#look.twice('something is left', patience.rest, isEmpty, made).catch((error: unknown) => {
      throw error instanceof Unmet && last.length > 0 && !error.message.includes('still')
        ? new Unmet(`There is still ${remains(last)}.`)
        : error;
    });
    return `Two complete lists are empty${removed.size === 0 ? '' : `; onejob removed the ${[...removed].join(' and the ')}`}.`;
  }

  async #waitForEnd(type: string, lifetime: number): Promise<void> {
    if (!this.#cloud.capabilities.holdsEnd) {
      await this.#step('the cloud ends it by itself', async () => ['skipped', unexamined]);
      return;
    }
    const trial = await this.#make('create a second machine', type, lifetime);
    if (trial === null) return;
    const { order, made } = trial;
    const isSet = await this.#step('its end of life, read back', () => this.#cloud.setEnd(order, made, this.#parts.signal));
    if (isSet) await this.#step('the cloud ends it by itself', () => this.#endsItself(trial));
  }

  async #endsItself({ order: { run, expires }, made }: Trial): Promise<Outcome> {
    let last: Thing | undefined;
    const hasEnded = ({ things }: Pick<Listing, 'things'>): boolean => {
      last = things.find((thing) => thing.kind === 'machine' && thing.run === run);
      return last === undefined || (last.state === 'stopped' && !this.#cloud.capabilities.endRemoves);
    };
    await this.#look.twice('it is still there', expires * 1000 - this.#wall() + patience.end, hasEnded, made);
    const late = this.#wall() - expires * 1000 - lookEvery;
    if (late < -minute) throw new Unmet(`It went ${spoken(-late)} before its end.`);
    const how = last === undefined ? 'gone' : 'stopped, and its disk costs on until onejob removes it,';
    return `It is ${how} ${spoken(Math.max(0, late))} after its end.`;
  }

  /** Phrases of what may be left. */
  async #clean(): Promise<string[]> {
    const { clock, waits, hurry } = this.#parts;
    const { owner } = this.#plan;
    const began = clock.now();
    const until = began + patience.clean;
    if (this.#unsureUntil === Number.POSITIVE_INFINITY) this.#unsureUntil = began + mayAppear;
    const removed = new Set<string>();
    let left: string[] = [];
    const told = (text: string): void => waits(`cleaning up: ${text}`);
    waits('cleaning up');
    try {
      for (;;) {
        const options = { owner, all: true, dryRun: false, patience: Math.max(0, until - clock.now()), told };
        const found = await sweep(this.#cloud, options, clock, hurry);
        for (const thing of found.removed) removed.add(thingText(thing));
        left = [...[...found.left, ...found.kept].map(thingText), ...found.unknown.map((what) => `unknown: ${what}`)];
        if (left.length > 0 || clock.now() >= this.#unsureUntil) break;
        await sleep(clock, lookEvery, hurry);
        hurry.throwIfAborted();
      }
    } catch (error) {
      if (!hurry.aborted) throw error;
      left = [`everything with the tag ${tagKeys.owner}=${owner}`];
    }
    const what = removed.size === 0 ? 'Nothing was removed' : `Removed ${[...removed].join(', ')}`;
    const evidence = left.length === 0 ? `${what}; two complete lists are empty.` : `${what}. May be left: ${left.join(', ')}.`;
    const took = clock.now() - began;
    await this.#steps.add({ step: 'clean up', result: left.length === 0 ? 'ok' : 'failed', took, evidence });
    return left;
  }
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
