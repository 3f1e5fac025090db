/**
 * Managers of machines and their account at a cloud in virtual time: machines that boot late or never, lists that are incomplete, calls
 * whose answers get lost, a cloud that says "done" about what lives, and managers that are killed between any two effects. The promises:
 * nothing outlives its end of life, nothing is created twice, what is called gone is gone and two complete lists have said so, no budget
 * is overdrawn, what belongs to others is never touched, jobs that wait get machines once the faults are over, and without jobs
 * everything ends with a receipt.
 */

import { type Controller, createController } from '../../src/machines/controller.ts';
import { agentPrefix } from '../../src/machines/guest.ts';
import { drained, ended } from '../../src/machines/plan.ts';
import { Clearing } from '../../src/machines/registrations.ts';
import { sweep } from '../../src/machines/sweep.ts';
import type { Order } from '../../src/ports/cloud.ts';
import type { HostConfig } from '../../src/schema/host-config.ts';
import { costOf, type Machine, type Wish } from '../../src/store/machine.ts';
import type { MachineTable } from '../../src/store/machines.ts';
import { seeded } from '../support/seeded.ts';
import { Account, type Existing } from './cloud-account.ts';
import { BadDay, type Fault } from './cloud-faults.ts';
import { asWorld, SimProcess } from './process.ts';
import { SimTime } from './time.ts';

export interface CloudPlay {
  readonly hosts?: number;
  /** ms of virtual time in which faults and jobs come. */
  readonly span?: number;
  /** How often calls fail, 0 to 1; default: drawn. */
  readonly trouble?: number;
  /** Default: drawn. */
  readonly faults?: readonly Fault[];
  /** Changes the rules of a host. */
  readonly rules?: Partial<HostConfig>;
  /** Whether managers are killed now and then. */
  readonly kills?: boolean;
  /** The first manager is killed at its effect of this number, counted from 1; 0: at none. */
  readonly killAt?: number;
  /** How many create calls time out at first. */
  readonly timeouts?: number;
  /** No jobs, no people, and a cloud with capacity, until the day is over. */
  readonly isCalm?: boolean;
}

/** An installation with its ledger, which outlives its processes. */
interface Manager {
  readonly name: string;
  readonly hosts: readonly HostConfig[];
  readonly rows: Map<string, Machine>;
  readonly wants: Map<string, Wish>;
  owner: string;
  waiting: number;
  /** What it was told of waiting jobs, and when; the newest last. */
  told: readonly { readonly at: number; readonly jobs: number }[];
  /** ms of virtual time when somebody last asked for a machine. */
  askedAt: number;
  running: { readonly process: SimProcess; readonly controller: Controller; readonly clearing: Clearing } | null;
  /** Effects until it is killed. */
  toKill: number;
  /** ms of virtual time since when it has run without a break. */
  runsSince: number;
  /** It never comes back. */
  isOver: boolean;
}

const second = 1000;
const minute = 60 * second;
const hour = 60 * minute;
const usualSpan = 10 * hour;
/** Lists with a machine after which its manager knows it. */
const enough = 12;
const owners = ['ours', 'ours-2'] as const;

export class CloudWorld {
  readonly time: SimTime;
  readonly day: BadDay;
  readonly account: Account;
  readonly story: string[] = [];
  /** Effects of managers so far. */
  effects = 0;
  /** What was made, listed and removed. */
  readonly counts = { gone: 0, kills: 0, jobs: 0, sweeps: 0, late: 0, cleared: 0 };
  readonly #play: Required<Omit<CloudPlay, 'trouble' | 'faults'>>;
  readonly managers: readonly Manager[];
  /** Jobs that run, by machine. */
  readonly #busy = new Map<string, number>();
  readonly #idleSince = new Map<string, number>();
  readonly #tokens = new Set<string>();
  /** ms of virtual time since when each machine is in its state, and when it last spoke to its manager. */
  readonly #stateSince = new Map<string, number>();
  readonly #spokeAt = new Map<string, number>();
  /** Machines that say what is not true, or nothing more. */
  readonly #odd = new Set<string>();
  /** Agents of machines at the CI service, with whether they are online. */
  readonly #agents = new Map<string, { readonly run: string; isOnline: boolean }>();
  readonly #strange: readonly string[];
  #broken: Error | null = null;

  constructor(seed: number, { trouble, faults, ...play }: CloudPlay = {}) {
    const random = seeded(seed);
    this.time = new SimTime(random);
    this.#play = {
      hosts: 1,
      span: usualSpan,
      rules: {},
      kills: random() < 0.75,
      killAt: 0,
      timeouts: 0,
      isCalm: false,
      ...play,
    };
    this.day = new BadDay(this.time, random, {
      ...(trouble !== undefined && { trouble }),
      ...(faults !== undefined && { faults }),
    });
    const { day } = this;
    if (this.#play.isCalm) day.end();
    this.account = new Account({
      day,
      skew: day.pick([0, 0, 600, -600]) * second,
      timeouts: this.#play.timeouts,
      ordered: (order, by) => this.#ordered(order, by),
      asked: (thing, by) => this.#mayDestroy(thing, by),
      booted: (machine) => this.#boot(machine),
      vanished: (thing) => this.#vanished(thing),
    });
    const names = day.faults.has('two managers') ? ['first', 'second'] : ['first'];
    this.managers = names.map((name) => ({
      name,
      rows: new Map(),
      wants: new Map(),
      owner: 'ours',
      waiting: 0,
      told: [],
      askedAt: 0,
      running: null,
      toKill: Number.POSITIVE_INFINITY,
      runsSince: Number.POSITIVE_INFINITY,
      isOver: false,
      hosts: this.#hostsOf(name === 'first' || day.chance(0.5) ? 'burst' : 'other'),
    }));
    if (this.#play.killAt > 0) this.#first.toKill = this.#play.killAt;
    // What others have in the same account must stay.
    const { now } = this.account;
    const foreign = { run: 'onejob-00000000000000f0', host: 'burst0', born: now, expires: now - 1 };
    const later = { ...foreign, run: 'onejob-00000000000000e0', expires: now + 365 * 86_400, owner: 'ours' };
    const strange = [
      { kind: 'machine', id: 'foreign', tags: { ...foreign, owner: 'theirs' } },
      { kind: 'machine', id: 'similar', tags: { ...foreign, owner: 'ours-20' } },
      { kind: 'machine', id: 'unnamed', tags: { ...foreign, owner: 'ours', run: 'onejob-web' } },
      { kind: 'disk', id: 'unnamed-disk', tags: { ...foreign, owner: 'ours', run: 'onejob-web-disk' } },
      { kind: 'machine', id: 'elsewhere', tags: later },
      { kind: 'disk', id: 'elsewhere-disk', tags: later },
    ] as const;
    for (const one of strange) this.account.exist({ ...one, maker: null });
    this.#strange = strange.map(({ id }) => id);
  }

  get #first(): Manager {
    return this.managers[0] as Manager;
  }

  #hostsOf(name: string): readonly HostConfig[] {
    const { day } = this;
    return Array.from({ length: this.#play.hosts }, (_, at) => ({
      host: `${name}${at}`,
      cloud: 'sim',
      types: ['big', 'small'],
      spot: day.pick(['never', 'prefer', 'only'] as const),
      image: null,
      disk: 50,
      min: day.pick([0, 0, 0, 1]),
      max: 1 + Math.floor(day.random() * 3),
      idle: 10 * minute,
      lifetime: day.pick([1, 2, 6]) * hour,
      boot: 20 * minute,
      prices: {},
      budget: day.faults.has('budget') ? day.pick([3, 5, 10]) : null,
      opengl: 'none',
      setup: [],
      agents: day.pick([1, 1, 2, 4]),
      ...this.#play.rules,
    }));
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

  /** Lets time pass until `isDone`. @throws what broke, or Error if it is not done within `limit` ms */
  async #until(what: string, isDone: () => boolean, limit: number): Promise<void> {
    try {
      await this.time.run(() => this.#broken !== null || isDone(), limit);
    } catch (error) {
      throw this.#broken ?? new Error(`${what}: ${error instanceof Error ? error.message : error}`);
    }
    if (this.#broken !== null) throw this.#broken;
  }

  /** Plays to the end and checks every promise. */
  async play(): Promise<void> {
    const { day } = this;
    this.tell(`faults: ${[...day.faults].join(', ')}; trouble ${day.trouble}; things ${this.account.endRemoves ? 'end' : 'stop'}`);
    for (const manager of this.managers) {
      this.#start(manager);
      if (this.#play.isCalm) continue;
      this.#jobsCome(manager);
      if (this.#play.kills) this.#killsCome(manager);
    }
    if (!this.#play.isCalm) {
      this.#peopleCome();
      this.#clockSteps();
      day.spellsCome((what) => this.tell(what));
    }
    if (day.faults.has('sweeps') || day.faults.has('never back')) this.#sweepsCome();
    this.#look();
    await this.calm(this.#play.span);
    this.tell('no more trouble');
    const isLeft = day.has('never back');
    day.end();
    for (const manager of this.managers) {
      if (this.#play.killAt === 0) manager.toKill = Number.POSITIVE_INFINITY;
      if (isLeft) this.#kill(manager, false);
      else this.#start(manager);
    }
    if (isLeft) await this.#until('the sweep alone ends everything', () => this.account.ours().length === 0, 10 * hour);
    else {
      await this.#jobsGetMachines();
      await this.#everythingEnds();
    }
    for (const id of this.#strange) if (!this.account.things.has(id)) this.broken(`${id}, which belongs to others, was removed`);
    for (const manager of this.managers) this.#kill(manager, false);
  }

  get #longest(): number {
    return Math.max(...this.managers.flatMap(({ hosts }) => hosts.map(({ lifetime }) => lifetime)));
  }

  /** After all that has happened, machines come for jobs, and the jobs run. */
  async #jobsGetMachines(): Promise<void> {
    for (const manager of this.managers) {
      manager.waiting = Math.min(5, manager.waiting + 1 + Math.floor(this.day.random() * 3));
      this.#tellWaiting(manager);
      for (const { host } of manager.hosts)
        if ((manager.wants.get(host)?.machines ?? 0) < 0) {
          manager.askedAt = this.time.now;
          manager.running?.process.run(() => manager.running?.controller.up(host, 45 * minute));
        }
    }
    const isDone = () => this.managers.every(({ waiting }) => waiting === 0) && this.#busy.size === 0;
    // A machine that lies may stay for its lifetime; one that fails is made again after two hours, by a budget on a later day.
    const most = this.#longest + 5 * hour + (this.day.faults.has('budget') ? 50 * hour : 0);
    await this.#until('waiting jobs get machines', isDone, most);
  }

  /** Without jobs nothing lives but what `min` asks for, and every attempt has a receipt. */
  async #everythingEnds(): Promise<void> {
    this.tell('no more jobs');
    for (const manager of this.managers) {
      manager.waiting = 0;
      this.#tellWaiting(manager);
    }
    const isQuiet = () => {
      if (this.managers.some(({ running }) => running === null)) return false;
      const live = new Set<string>();
      for (const { hosts, running } of this.managers) {
        const rows = running?.controller.machines() ?? [];
        if (rows.length > hosts.reduce((sum, { min }) => sum + min, 0)) return false;
        for (const { run } of rows) live.add(run);
      }
      return this.account.ours().every(({ tags }) => live.has(tags.run));
    };
    await this.#until('everything ends', isQuiet, this.#longest + hour);
    const rows = new Map(this.managers.flatMap((manager) => [...manager.rows.keys()].map((run) => [run, this.#row(manager, run)])));
    for (const { tags, shown, id } of this.account.machines) {
      const row = rows.get(tags.run);
      if (row == null) this.broken(`${id} has no receipt`);
      if (shown >= enough && costOf(row, this.account.now) === 0) this.broken(`the receipt of ${id} says that it cost nothing`);
    }
    const left = () => [...this.#agents.values()].some(({ run }) => rows.get(run)?.state === 'gone');
    await this.#until('agents of machines that are gone are removed', () => !left(), 2 * hour);
  }

  /** Lets `ms` pass. */
  async calm(ms: number): Promise<void> {
    for (const manager of this.managers) this.#start(manager);
    let isOver = false;
    this.time.after(ms, () => {
      isOver = true;
    });
    await this.#until('time passes', () => isOver, ms + minute);
  }

  #row({ rows }: Manager, run: string): Machine | null {
    return rows.get(run) ?? null;
  }

  #start(manager: Manager): void {
    if (manager.running !== null || manager.isOver) return;
    if (this.day.has('new owner', 0.3)) manager.owner = this.day.pick(owners);
    const process = new SimProcess(this.time, () => {
      this.effects += 1;
      manager.toKill -= 1;
      if (manager.toKill <= 0) this.#kill(manager);
    });
    let running: Manager['running'] = null;
    process.run(() => {
      const log = { info() {}, warn() {}, error() {} };
      const store = this.#storeOf(manager, process);
      const clearing = new Clearing({ clock: process, log, store, services: [this.#service(process)] });
      const controller = createController({
        clock: process,
        log,
        store,
        hosts: manager.hosts,
        userData: () => 'text',
        clouds: new Map([['sim', { cloud: this.account.cloudFor(process, manager.name), owner: manager.owner }]]),
        deaf: () => (this.day.lasts('deaf') ? 'its address is in use' : null),
        changed(machine) {
          if (machine.state === 'gone') clearing.gone(machine);
        },
      });
      running = { process, controller, clearing };
      manager.running = running;
      controller.start();
      clearing.start();
    });
    this.#tellWaiting(manager);
    if (running !== null && !process.isDead) manager.runsSince = this.time.now;
    else if (manager.running === running) {
      manager.running = null;
      this.time.after(minute, () => this.#start(manager));
    }
  }

  #kill(manager: Manager, comesBack = true): void {
    manager.toKill = Number.POSITIVE_INFINITY;
    manager.isOver = !comesBack;
    manager.runsSince = Number.POSITIVE_INFINITY;
    const { process } = manager.running ?? {};
    if (process === undefined) return;
    manager.running = null;
    process.kill();
    if (!comesBack) return;
    this.counts.kills += 1;
    this.tell(`the ${manager.name} manager is killed`);
    asWorld(() => {
      this.time.after(this.day.random() * this.day.pick([second, minute, 30 * minute]), () => this.#start(manager));
    });
  }

  #killsCome(manager: Manager): void {
    this.time.after(this.day.random() * 2 * hour, () => {
      if (!this.day.isTroubled) return;
      manager.toKill = 1 + Math.floor(this.day.random() * 30);
      this.#killsCome(manager);
    });
  }

  #storeOf(manager: Manager, process: SimProcess): { machines: MachineTable; transaction: never } {
    let pending: (() => void)[] = [];
    const rows = () => [...manager.rows.keys()].flatMap((run) => this.#row(manager, run) ?? []);
    const machines: MachineTable = {
      put: (machine) => void pending.push(() => this.#put(manager, machine)),
      live: () => rows().filter(({ state }) => state !== 'gone'),
      gone: (since) => rows().filter((one) => one.state === 'gone' && one.since >= since),
      newest: (limit) =>
        rows()
          .filter(({ state }) => state === 'gone')
          .slice(-limit),
      get: (run) => this.#row(manager, run),
      prune: () => {},
      wanted: () => new Map(manager.wants),
      want: (host, wish) => void pending.push(() => void manager.wants.set(host, wish)),
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

  #put(manager: Manager, machine: Machine): void {
    const { run, state, why, owner } = machine;
    const before = this.#row(manager, run);
    manager.rows.set(run, machine);
    if (before?.state === state) return;
    this.tell(`${run} ${state}${why === null ? '' : ` (${why})`}`);
    const from = this.#stateSince.get(run) ?? 0;
    this.#stateSince.set(run, this.time.now);
    if (state === 'draining' || state === 'ending') this.#mayEnd(manager, machine);
    if (state !== 'gone') return;
    this.counts.gone += 1;
    const { things, complete } = this.account;
    const lists = (complete.get(`${manager.name} ${owner}`) ?? []).filter(({ at, runs }) => at > from && !runs.has(run));
    const first = lists.at(-2) ?? this.broken(`${run} is called gone by ${lists.length} complete lists`);
    for (const thing of things.values())
      if (thing.tags.run === run && thing.visible <= first.at)
        this.broken(`${run} is called gone, and ${thing.kind} ${thing.id} lives`);
  }

  /** Machines that say what is true end for their time, and are heard. */
  #mayEnd({ hosts }: Manager, { run, host, why, state }: Machine): void {
    if (this.#odd.has(run)) return;
    const isBusy = this.#busy.has(run);
    const idle = this.time.now - (this.#idleSince.get(run) ?? 0);
    const rules = hosts.find((one) => one.host === host);
    if (state === 'draining' && why?.startsWith('It had no job') && !isBusy && idle < (rules?.idle ?? 0) - minute)
      this.broken(`${run} ends after ${idle / minute} minutes without a job`);
    if (why?.includes('silent') && isBusy && !this.day.faults.has('cut')) this.broken(`${run} runs a job and ends: ${why}`);
  }

  /** Everything that a create call must not do. */
  #ordered({ token, run, host }: Order, by: string): void {
    const manager = this.managers.find(({ name }) => name === by) as Manager;
    if (this.#tokens.has(token)) this.broken(`token ${token} was used twice`);
    if (this.#tokens.has(run)) this.broken(`${run} is created twice`);
    this.#tokens.add(token).add(run);
    if (!manager.rows.has(run)) this.broken(`${run} is created, and no row knows it`);
    const rules = manager.hosts.find((one) => one.host === host);
    if (rules === undefined) return;
    this.#isNeeded(manager, rules, run);
    const there = this.account.machines.filter(
      (one) => one.maker === by && one.tags.host === host && one.vanishedAt === null && one.askedAt === null,
    );
    const known = there.filter((one) => one.state !== 'ending' && !one.isDenied && one.visible <= one.createdAt + minute);
    if (known.length >= rules.max) this.broken(`a machine is created for ${host}, which has ${known.length} of ${rules.max}`);
    if (rules.budget === null) return;
    const spent = this.#spent(by, host);
    // One that was denied was not seen yet.
    if (spent > rules.budget) this.broken(`a machine is created for ${host}, which has spent ${spent} of ${rules.budget} USD`);
  }

  /** Those that start are enough, and those that fail are made more slowly. */
  #isNeeded({ name, rows, wants, told, askedAt, runsSince }: Manager, { host, min, max }: HostConfig, run: string): void {
    const { now } = this.time;
    const starting = [...rows.values()].filter(
      (one) => one.host === host && one.run !== run && one.why === null && ['intent', 'made', 'booting'].includes(one.state),
    );
    const jobs = Math.max(0, ...told.filter((_, at) => now - (told[at + 1]?.at ?? now) < minute).map((one) => one.jobs));
    const most = Math.max(jobs, now - askedAt < hour || (wants.get(host)?.machines ?? 0) > 0 ? 1 : 0, min);
    if (starting.length >= most) this.broken(`a machine is created for ${host}, where ${starting.length} start for ${most}`);
    if (now - Math.max(askedAt, runsSince) < 2 * hour) return;
    const made = this.account.machines.filter(
      (one) => one.maker === name && one.tags.host === host && now - one.createdAt < 2 * hour && !one.isDenied,
    );
    const isNews = made.some(({ tags }) => this.#spokeAt.has(tags.run));
    if (!isNews && made.length > 3 * max + 3)
      this.broken(`${made.length} machines were created for ${host} in two hours, and none joined`);
  }

  /** USD that machines of the host have cost on this day of the cloud's clock. */
  #spent(by: string, host: string): number {
    const { now } = this.time;
    const today = now - (this.account.now % 86_400) * 1000;
    let ms = 0;
    for (const one of this.account.machines)
      if (one.maker === by && one.tags.host === host && (one.shown >= enough || !one.isDenied))
        ms += Math.max(0, (one.vanishedAt ?? now) - Math.max(today, one.createdAt));
    return ms / hour;
  }

  #mayDestroy(thing: Existing, by: string): void {
    const { tags, id, maker, kind } = thing;
    if (maker === null) this.broken(`${id} of others was asked to go`);
    const isOver = this.account.now >= tags.expires;
    const manager = this.managers.find(({ name }) => name === by);
    const row = manager === undefined ? null : this.#row(manager, tags.run);
    if (row === null) {
      if (isOver) return;
      const hasMachine = this.account.ours().some((one) => one.tags.run === tags.run && one.kind === 'machine');
      if (kind === 'machine' || hasMachine) this.broken(`${id} was asked to go by ${by}, and nothing says why`);
      return;
    }
    if (row.state !== 'ending') this.broken(`${id} was asked to go while its row is ${row.state}`);
    const isForced = row.isFailure || row.why === 'It was ended with "onejob cloud down".' || isOver;
    if (this.#busy.has(tags.run) && !isForced) this.broken(`${tags.run} was asked to go (${row.why}) while a job ran on it`);
  }

  #vanished(thing: Existing): void {
    if (thing.kind !== 'machine') return;
    const { run } = thing.tags;
    const jobs = this.#busy.get(run) ?? 0;
    const manager = this.managers.find(({ name }) => name === thing.maker);
    if (jobs > 0 && manager !== undefined && (this.day.faults.has('requeues') || !this.day.isTroubled)) {
      manager.waiting += jobs;
      asWorld(() => this.#tellWaiting(manager));
    }
    this.#busy.delete(run);
    // A service needs a while to notice.
    for (const agent of this.#agents.values())
      if (agent.run === run)
        this.time.after(this.day.random() * 15 * minute, () => {
          agent.isOnline = false;
        });
  }

  /** Runs `fn` as the manager, if it can be reached. */
  #reach(manager: Manager, fn: (controller: Controller) => void): boolean {
    const { running } = manager;
    if (running === null || this.day.lasts('deaf') || this.day.lasts('cut')) return false;
    running.process.run(() => fn(running.controller));
    return !running.process.isDead;
  }

  /** What runs on the machine: it joins, takes jobs, and reports. */
  #boot(machine: Existing): void {
    const { day } = this;
    const { run, host } = machine.tags;
    const manager = this.managers.find(({ name }) => name === machine.maker) as Manager;
    const rules = manager.hosts.find((one) => one.host === host);
    const lives = () => machine.vanishedAt === null && machine.state === 'running';
    const end = (why: string, isFailure: boolean) =>
      this.#reach(manager, (controller) => controller.change(run, (one, now) => ended(one, now, why, isFailure)));
    if (machine.offer?.spot && day.fails(2))
      this.time.after(day.random() * 2 * hour, () => {
        if (!lives()) return;
        this.#reach(manager, (controller) =>
          controller.change(run, (one, now) => drained(one, now, 'The cloud takes it back.', true)),
        );
        this.time.after(2 * minute, () => this.account.vanish(machine, 0));
      });
    if (day.has('theft', 0.1))
      this.time.after(day.random() * 30 * minute, () => {
        if (lives()) end('Its join token was used twice.', true);
      });
    if (day.fails() || day.lasts('dead boots')) {
      if (day.chance(0.5))
        this.time.after(day.random() * 15 * minute, () => void (lives() && end('It could not be set up.', true)));
      return;
    }
    const lie = day.has('lies', 0.4) ? day.pick(['busy', 'idle', 'none', 'many', 'problem', 'silent', 'stale'] as const) : null;
    if (lie !== null) this.#odd.add(run);
    const agents = lie !== null || day.fails() ? 1 + Math.floor(day.random() * 3) : (rules?.agents ?? 1);
    const agent = `${agentPrefix(host, run)}-gpu-1`;
    let isDrained = false;
    let heardAt = this.time.now;
    // It may crash for good, or lose its network.
    const dies = day.fails(0.5) ? this.time.now + day.random() * hour : Number.POSITIVE_INFINITY;
    if (Number.isFinite(dies)) this.#odd.add(run);
    const said = () => {
      const busy = this.#busy.get(run) ?? 0;
      const idleFor = busy > 0 ? 0 : (this.time.now - (this.#idleSince.get(run) ?? this.time.now)) / 1000;
      return { busy, agents, idleFor, problem: null as string | null };
    };
    let last = said();
    const beat = (): void => {
      if (!lives() || this.time.now > dies) return;
      if (lie !== 'stale' || day.chance(0.01)) last = said();
      const lies = {
        busy: { busy: agents, idleFor: 0 },
        idle: { busy: 0, idleFor: 100_000 },
        none: { agents: 0, busy: 0 },
        many: { agents: 512 },
        problem: { problem: 'It cannot see its GPUs.' },
        silent: {},
        stale: {},
      };
      let state: Machine['state'] | null = null;
      const isHeard = this.#reach(manager, (controller) => {
        if (lie !== 'silent') this.#spokeAt.set(run, this.time.now);
        if (lie !== 'silent') controller.report(run, { ...last, ...(lie !== null && lies[lie]) });
        state = controller.get(run)?.state ?? 'ending';
      });
      if (isHeard) heardAt = this.time.now;
      if (isHeard && (state === 'draining' || state === 'ending')) isDrained = true;
      // Without a controller and a job it ends itself.
      if (!this.#busy.has(run) && this.time.now - heardAt > 30 * minute) isDrained = true;
      if (isDrained && !this.#busy.has(run)) {
        this.#agents.delete(agent);
        end('It has drained.', false);
      } else if (!isDrained) this.#takeJobs(manager, machine, agents);
      this.time.after(15 * second, beat);
    };
    const join = (): void => {
      if (!lives()) return;
      let isIn = false;
      this.#reach(manager, (controller) => {
        const row = controller.get(run);
        if (row === null) return;
        controller.joined(run);
        controller.change(run, (one) => (one.credentialHash === null ? { ...one, credentialHash: 'known' } : one));
        if (row.state === 'ending') this.counts.late += 1;
        else this.#spokeAt.set(run, this.time.now);
        isIn = row.state !== 'ending';
      });
      if (!isIn) return void this.time.after(10 * second, join);
      heardAt = this.time.now;
      this.#idleSince.set(run, this.time.now);
      this.#agents.set(agent, { run, isOnline: true });
      beat();
    };
    this.time.after(minute + day.random() * (day.has('late joins', 0.3) ? 90 : 5) * minute, join);
  }

  #takeJobs(manager: Manager, { tags: { run } }: Existing, agents: number): void {
    while (manager.waiting > 0 && (this.#busy.get(run) ?? 0) < agents) {
      manager.waiting -= 1;
      this.counts.jobs += 1;
      this.#tellWaiting(manager);
      this.#busy.set(run, (this.#busy.get(run) ?? 0) + 1);
      this.time.after(minute + this.day.random() * 20 * minute, () => {
        const jobs = (this.#busy.get(run) ?? 0) - 1;
        if (jobs > 0) this.#busy.set(run, jobs);
        else this.#busy.delete(run);
        this.#idleSince.set(run, this.time.now);
      });
    }
  }

  #tellWaiting(manager: Manager): void {
    const tell = (): void => {
      const { running } = manager;
      const jobs = this.day.lasts('no count') ? 0 : manager.waiting;
      manager.told = [...manager.told.slice(-50), { at: this.time.now, jobs }];
      running?.process.run(() => {
        for (const { host } of manager.hosts) running.controller.setWaiting(host, jobs);
      });
    };
    if (this.day.has('late counts')) this.time.after(this.day.random() * 5 * minute, tell);
    else tell();
  }

  /** Agents at the CI service, as a manager sees them. */
  #service(process: SimProcess) {
    return {
      name: 'ci',
      removeNamed: async (isOurs: (name: string) => boolean) => {
        process.point('service');
        await new Promise<void>((resolve) => {
          asWorld(() => this.time.after(this.day.random() * 5 * second, () => process.run(resolve)));
        });
        if (process.isDead) return await new Promise<never>(() => {});
        if (this.day.fails()) return { removed: [], left: [], unknown: ['the service gave no answer'] };
        const found = [...this.#agents].filter(([name]) => isOurs(name));
        const removed = found.flatMap(([name, { isOnline }]) => (isOnline ? [] : [name]));
        for (const name of removed) this.#agents.delete(name);
        this.counts.cleared += removed.length;
        process.point('service');
        return { removed, left: found.flatMap(([name, { isOnline }]) => (isOnline ? [name] : [])), unknown: [] };
      },
    };
  }

  /** Looks every minute at what outlives its end of life. */
  #look(): void {
    const { now } = this.time;
    // Calls that fail again and again are what takes that long.
    const slack = (this.day.trouble < 0.3 ? 30 : 120) * minute;
    for (const thing of this.account.ours()) {
      const over = (this.account.now - thing.tags.expires) * 1000;
      if (over <= slack) continue;
      const runs = this.managers.find(({ name }) => name === thing.maker)?.runsSince ?? Number.POSITIVE_INFINITY;
      if (now - Math.max(runs, thing.visible, this.day.clearFrom) > slack)
        this.broken(`${thing.kind} ${thing.id} lives ${over / 1000} s after its end`);
    }
    for (const what of this.#stuck(slack)) this.broken(what);
    this.time.after(minute, () => this.#look());
  }

  /** Machines that should have continued, as sentences. */
  #stuck(slack: number): string[] {
    const { now } = this.time;
    return this.managers.flatMap(({ rows, hosts, runsSince }) =>
      [...rows.values()].flatMap(({ run, host, state }) => {
        const rules = hosts.find((one) => one.host === host);
        const from = Math.max(runsSince, this.day.clearFrom, this.#stateSince.get(run) ?? 0);
        if (state === 'booting' && now - from > (rules?.boot ?? 0) + slack) return `${run} does not join, and is waited for`;
        const silent = now - Math.max(from, this.#spokeAt.get(run) ?? 0);
        if (state === 'joined' && silent > 2 * hour + slack) return `${run} was silent for ${silent / minute} minutes, and is kept`;
        return [];
      }),
    );
  }

  /** Somebody's cron job removes what is over, without any ledger. */
  #sweepsCome(): void {
    for (const owner of owners) {
      const process = new SimProcess(this.time);
      this.counts.sweeps += 1;
      const order = { owner, all: false, dryRun: false, patience: 10 * minute };
      const signal = new AbortController().signal;
      void process.begin(() => sweep(this.account.cloudFor(process, 'sweep'), order, process, signal));
      if (this.day.fails()) this.time.after(this.day.random() * minute, () => process.kill());
    }
    this.time.after(hour, () => this.#sweepsCome());
  }

  #peopleCome(): void {
    this.time.after(this.day.random() * 3 * hour, () => {
      if (!this.day.isTroubled) return;
      const manager = this.day.pick(this.managers);
      const { running, hosts, name } = manager;
      const { host } = this.day.pick(hosts);
      const act = this.day.pick(['up', 'up', 'up', 'down', 'now']);
      this.tell(`somebody asks the ${name} manager for ${act} of ${host}`);
      running?.process.run(() => {
        if (act === 'up') manager.askedAt = this.time.now;
        if (act === 'up') running.controller.up(host, 45 * minute);
        else running.controller.down(host, act === 'now');
      });
      this.#peopleCome();
    });
  }

  /** Somebody, or NTP, sets the clock of the managers' host. */
  #clockSteps(): void {
    this.time.after(this.day.random() * 8 * hour, () => {
      if (!this.day.isTroubled) return;
      this.time.jumped = this.day.pick([0, 8 * hour, -8 * hour, 90 * second, 10 * minute, -10 * minute]);
      this.tell(`the wall clock is ${this.time.jumped / 1000} s off`);
      this.#clockSteps();
    });
  }

  #jobsCome(manager: Manager): void {
    this.time.after(this.day.random() * this.day.pick([minute, 10 * minute, 2 * hour]), () => {
      if (!this.day.isTroubled) return;
      manager.waiting += 1 + Math.floor(this.day.random() * 3);
      this.#tellWaiting(manager);
      this.#jobsCome(manager);
    });
  }
}
