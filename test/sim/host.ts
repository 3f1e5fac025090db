/**
 * A whole host in virtual time: the real manager (`src/host.ts`, with its store, loop, logs and services) over a simulated Engine.
 * It can be killed between any two effects, and the next one is started on what it left on disk.
 */

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OnejobError } from '../../src/base/errors.ts';
import { types } from '../../src/cli/types.ts';
import { type Environment, readEnvironment } from '../../src/config/environment.ts';
import { lookAtHost } from '../../src/config/host-look.ts';
import { loadConfig } from '../../src/config/load.ts';
import type { JobRequest } from '../../src/contract/job.ts';
import type { DownRequest, JobView } from '../../src/contract/schema.ts';
import { type AgentId, isEmpty, type Slot } from '../../src/core/slot.ts';
import { type Host, type Outside, openHost } from '../../src/host.ts';
import { storeFault } from '../../src/store/fault.ts';
import { openStore, type Store } from '../../src/store/store.ts';
import { seeded } from '../support/seeded.ts';
import { bootAnew, drawFrom, fillDisk, isDiskFull, syncTo } from './builtins.ts';
import { SimDisk } from './disk.ts';
import { asWorld, type Effect, SimProcess } from './process.ts';
import { type Act, noFaults, SimEngine, simRuntime } from './runtime.ts';
import { SimTime } from './time.ts';

/** What runs now: a manager that is up, or on its way up. */
interface Running {
  readonly process: SimProcess;
  store: Store | null;
  /** Put together; it may not have looked at everything yet. */
  opened: Host | null;
  host: Host | null;
}

/** A line of the story: virtual ms, what happened. */
export type Line = readonly [ms: number, what: string];

/** What an outside system brings into a manager that starts. */
export type MoreParts = (process: SimProcess) => Outside & { readonly env?: Environment };

export interface SimHostOptions {
  readonly seed: number;
  /** The config file; `$DIR` in it is the host's own folder. */
  readonly config: string;
  /** Name of the one runtime; default `process`. */
  readonly runtime?: string;
  /** Whether it makes sandboxes from images. */
  readonly images?: boolean;
  /** How many sandboxes have room at a time where the Engine starts them, in turn; none: each starts when it is asked to. */
  readonly grants?: number;
  readonly parts?: MoreParts;
  /** Whether it may lose power. */
  readonly losesPower?: boolean;
  /** ms that a sync takes: from, to. */
  readonly syncs?: readonly [from: number, to: number];
  /** Lines of the story that are kept; default 4,000. */
  readonly lines?: number;
}

/** ms by which an end may be late: what is deaf is killed, perhaps twice, and what it printed is read. */
const killing = 15_000;
/** ms after which the service manager of the host starts a manager that could not start. */
const startAgain = 5_000;
/** ms in which what a killed manager asked for may still come about. */
const inFlight = 30_000;
/** ms that a sync takes, mostly, and while the disk has much else to write. */
const [usualSync, slowSync] = [8, 300];

// Memory is a disk that nobody waits for.
const folder = existsSync('/dev/shm') ? '/dev/shm' : tmpdir();

export class SimHost {
  /** Draws what happens in the world. */
  readonly random: () => number;
  readonly time: SimTime;
  readonly engine: SimEngine;
  readonly dir: string;
  /** The last lines of what happened. */
  readonly story: Line[] = [];
  /** Promises that are broken, and what a manager did that nothing explains. */
  readonly broken: string[] = [];
  /** A number that two runs share only when all they told was the same. */
  hash = 0;
  crashes = 0;
  cuts = 0;
  stops = 0;
  starts = 0;
  /** Effects of each kind so far. */
  readonly effects: Record<Effect, number> = { commit: 0, sync: 0, file: 0, runtime: 0, service: 0, device: 0 };
  /** Each kills the manager at the effect at which it comes to 0. */
  readonly #fuses = new Set<{ left: number; readonly of: Effect | null; readonly then: (effect: Effect) => void }>();
  readonly #options: SimHostOptions;
  readonly #config: string;
  readonly #disk: SimDisk;
  #running: Running | null = null;
  #crashedAt = Number.NEGATIVE_INFINITY;
  /** Commits so far, and how many of them are on disk. */
  readonly #commits = { made: 0, synced: 0 };
  /** Called after each commit of a host that may lose power. */
  readonly onCommit = new Set<(store: Store) => void>();
  /** Called when the host loses power, before anything is lost. */
  readonly onCut = new Set<() => void>();
  /** Called whenever a manager is up. */
  readonly onUp = new Set<() => void>();
  /** Called when a manager is told to end the jobs that run. */
  readonly onEnding = new Set<() => void>();
  /** Called when a manager has stopped; `isCalm`: nothing went wrong at the Engine, and no manager was killed just before. */
  readonly onStopped = new Set<(how: DownRequest['how'], isCalm: boolean) => void>();
  /** People want to hold all pools back, or have not resumed them yet. */
  isHeld = false;
  /** Since when they do, by what a manager has answered; null: they do not. */
  heldSince: number | null = null;

  constructor(options: SimHostOptions) {
    const { seed } = options;
    this.#options = options;
    this.random = seeded(seed);
    this.time = new SimTime(seeded(seed ^ 0x5eed));
    this.engine = new SimEngine(this.time, this.random);
    if (options.grants !== undefined) this.engine.capacity = options.grants;
    drawFrom(seeded(seed ^ 0xc0de));
    this.dir = mkdtempSync(join(folder, 'onejob-sim-'));
    this.#config = join(this.dir, 'config.yml');
    this.#disk = new SimDisk(join(this.dir, 'state', 'onejob.db'), options.losesPower === true);
    const takes = seeded(seed ^ 0xd15c);
    const { syncs } = options;
    syncTo({
      begin: () => asWorld(() => this.#begin()),
      takes: () =>
        syncs === undefined ? 1 + takes() * (takes() < 0.9 ? usualSync : slowSync) : syncs[0] + takes() * (syncs[1] - syncs[0]),
    });
    writeFileSync(this.#config, options.config.replaceAll('$DIR', this.dir));
  }

  /** The text of the config file. */
  get config(): string {
    return this.#options.config;
  }

  /** The manager that is up; null while none is. */
  get up(): Host | null {
    return this.#running?.host ?? null;
  }

  /** Whether the sandbox was made to be asked something, and is not an agent. */
  isProbe(agent: AgentId): boolean {
    return this.#running?.opened?.loop.probe.isProbe(agent) === true;
  }

  /** The process of the manager that is up or starts; null while there isn't one. */
  get process(): SimProcess | null {
    return this.#running?.process ?? null;
  }

  get store(): Store | null {
    return this.#running?.store ?? null;
  }

  get slots(): readonly Slot[] {
    return this.up?.loop.reconciler.slots ?? [];
  }

  tell(said: string): void {
    // The folder is another one each time, and the story the same.
    const what = said.replaceAll(this.dir, '$DIR');
    const ms = this.time.now;
    const text = `${ms.toFixed(3)} ${what}`;
    if (text.includes('canary')) this.broken.push(`S8: a secret is in the log: ${what}`);
    for (let at = 0; at < text.length; at++) this.hash = (Math.imul(this.hash, 31) + text.charCodeAt(at)) | 0;
    this.story.push([ms, what]);
    const most = this.#options.lines ?? 4_000;
    if (this.story.length > 2 * most) this.story.splice(0, most);
  }

  /** Begins to start a manager; `up` tells when it is there. */
  start(): void {
    if (this.#running !== null) return;
    this.#disk.boot();
    const process = new SimProcess(this.time, (effect) => this.#passes(effect));
    const running: Running = { process, store: null, opened: null, host: null };
    this.#running = running;
    this.starts += 1;
    this.tell('a manager starts');
    void process
      .begin(() => this.#open(running))
      .catch(async (error: unknown) => {
        if (process.isDead) return;
        const retry = error instanceof OnejobError && error.retry;
        this.tell(`the manager could not start: ${error instanceof Error ? error.message : String(error)}`);
        if (!retry) this.broken.push(`start: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
        this.#end(running);
        this.time.after(startAgain, () => this.start());
      });
  }

  async #open(running: Running): Promise<void> {
    const { process } = running;
    const env = readEnvironment({ HOME: this.dir, PATH: '/usr/bin:/bin' });
    const flags = { config: this.#config, stateDir: join(this.dir, 'state'), socket: join(this.dir, 's') };
    const { config } = await loadConfig({
      types,
      flags,
      env,
      look: lookAtHost,
      host: { name: 'box', cpus: 32, memory: 2 ** 37 },
      now: process.wall(),
    });
    if (process.isDead) return;
    if (isDiskFull()) throw storeFault('open', config.stateDir, fullDisk());
    const store = this.#watched(openStore(config.stateDir), process);
    running.store = store;
    if (process.isDead) {
      this.#end(running);
      return;
    }
    const { runtime: name, images = false, grants } = this.#options;
    const runtime = simRuntime(this.engine, process, { name, images, grants: grants !== undefined });
    const tell = (level: string) => (message: string, about?: object) => {
      if (!process.isDead) this.tell(`${level} ${message} ${JSON.stringify(about ?? {})}`);
    };
    const log = { info: tell('info'), warn: tell('warn'), error: tell('error') };
    const { env: given = env, ...outside } = this.#options.parts?.(process) ?? {};
    const host = await openHost({
      config,
      env: given,
      store,
      log,
      clock: process,
      runtimes: {
        all: [runtime],
        best: runtime,
        reason: null,
        findings: () => [],
        get: () => runtime,
        make: async () => runtime,
        chooseAgain: async () => false,
      },
      program: { version: '0.0.0', self: [] },
      outside: { variables: {}, ...outside },
      configChanged: async () => null,
      findings: () => [],
    });
    if (process.isDead) return;
    running.opened = host;
    await host.start();
    running.host = host;
    this.tell('the manager is up');
    for (const fn of this.onUp) fn();
  }

  /** The real store, with a point before and after each commit, on a disk that may be full. */
  #watched(store: Store, process: SimProcess): Store {
    const transaction: Store['transaction'] = (options, fn) => {
      process.point('commit');
      const answer = store.transaction(options, () => {
        const result = fn();
        if (isDiskFull()) throw fullDisk();
        return result;
      });
      this.#commits.made += 1;
      if (options.durable) this.#begin()();
      if (this.#options.losesPower === true) for (const fn of this.onCommit) fn(store);
      process.point('commit');
      return answer;
    };
    return { ...store, transaction };
  }

  /** What is committed by now; to be called once that is on disk. */
  #begin(): () => void {
    const { made } = this.#commits;
    const synced = this.#disk.begin();
    return () => {
      this.#commits.synced = Math.max(this.#commits.synced, made);
      synced();
    };
  }

  /** The last commit, to ask `isOnDisk` later. */
  get commit(): number {
    return this.#commits.made;
  }

  isOnDisk(commit: number): boolean {
    return commit <= this.#commits.synced;
  }

  #passes(effect: Effect): void {
    this.effects[effect] += 1;
    for (const fuse of this.#fuses) {
      if (fuse.of !== null && fuse.of !== effect) continue;
      fuse.left -= 1;
      if (fuse.left > 0) continue;
      this.#fuses.delete(fuse);
      fuse.then(effect);
      return;
    }
  }

  /** kill -9: what is on disk stays, what was under way has no effect any more. Another one is started after `down` ms. */
  crash(down = 1_000, where = ''): void {
    const running = this.#running;
    if (running === null) return;
    this.crashes += 1;
    this.#crashedAt = this.time.now;
    this.tell(`the manager was killed${where === '' ? '' : ` ${where}`}`);
    running.process.kill();
    this.#end(running);
    this.time.after(down, () => this.start());
  }

  /** The host loses power: nothing runs any more, and what was not synced is gone. It boots after `down` ms. */
  cutPower(down = 5_000, where = ''): void {
    const running = this.#running;
    this.cuts += 1;
    this.#crashedAt = this.time.now;
    this.tell(`the host loses power${where === '' ? '' : ` ${where}`}`);
    asWorld(() => {
      for (const fn of this.onCut) fn();
      running?.process.kill();
      if (running !== null) {
        this.#disk.cut();
        this.#end(running);
      }
      bootAnew();
      this.engine.cutPower(down);
    });
    this.time.after(down, () => this.start());
  }

  /** Calls `then` at the `left`-th effect from now on, `of` one kind or of any. */
  atEffect(left: number, of: Effect | null, then: (effect: Effect) => void): void {
    this.#fuses.add({ left, of, then });
  }

  /** Kills it at the `left`-th effect from now on, `of` one kind or of any. */
  crashAfter(left: number, of: Effect | null = null, down = 1_000): void {
    this.atEffect(left, of, (effect) => this.crash(down, `at a ${effect}`));
  }

  /** From now on it is killed at no effect. */
  disarm(): void {
    this.#fuses.clear();
  }

  #end(running: Running): void {
    const { process, store, host } = running;
    process.kill();
    if (this.#running === running) this.#running = null;
    process.run(() => store?.close());
    // Descriptors are the kernel's to close.
    if (host !== null) void process.begin(() => host.loop.followers.close());
  }

  /** Stops it as a person or the service manager does; `down` ms after its end another one is started, with null none. */
  async stop(how: DownRequest['how'], { grace = null, down = 1_000 }: { grace?: number | null; down?: number | null } = {}) {
    const running = this.#running;
    if (running?.host == null) return;
    const { process, host } = running;
    this.stops += 1;
    this.tell(`stop: ${how}`);
    if (how === 'end') this.ending();
    const { outages } = this.engine;
    const begun = this.time.now;
    const longest = grace ?? Math.max(0, ...this.slots.map((slot) => slot.grace));
    let ended = how;
    await process.begin(async () => {
      host.shutdown.begin({ how, grace, forget: false });
      ended = await host.finish();
      await host[Symbol.asyncDispose]();
    });
    this.tell('the manager has stopped');
    const left = [...this.engine.sandboxes.keys()];
    const isCalm = this.engine.isUp && this.engine.faults === noFaults && this.time.now - this.#crashedAt > inFlight;
    if (ended !== 'leave' && isCalm && left.length > 0)
      this.broken.push(`S10: after the stop (${how}) sandboxes are left: ${left.join(', ')}`);
    for (const fn of this.onStopped) fn(ended, isCalm);
    const took = this.time.now - begun;
    if (how === 'end' && isCalm && outages === this.engine.outages && took > longest + killing)
      this.broken.push(`S10: the stop was to end all within ${longest} ms, and took ${took}`);
    running.host = null;
    this.#end(running);
    if (down !== null) this.time.after(down, () => this.start());
  }

  /** People want the jobs that run to end. */
  ending(): void {
    for (const fn of this.onEnding) fn();
  }

  /** A person asks the manager that is up, again and again until one has answered. */
  ask(what: string, of: (manager: Host['manager']) => void, then: () => void): void {
    let isDone = false;
    const { process, up } = this;
    if (process !== null && up !== null)
      process.run(() => {
        of(up.manager);
        isDone = true;
      });
    if (isDone) {
      this.tell(`a person: ${what}`);
      then();
    } else this.time.after(2_000, () => this.ask(what, of, then));
  }

  /** Somebody edits the config file: the next manager reads it. */
  configure(from: string, to: string): void {
    this.tell(`somebody writes ${to} for ${from} into the config`);
    writeFileSync(this.#config, readFileSync(this.#config, 'utf8').replaceAll(from, to));
  }

  /** The disk takes nothing more, or takes everything again. */
  setDiskFull(full: boolean): void {
    this.tell(full ? 'the disk is full' : 'the disk has room again');
    fillDisk(full);
  }

  /** Hands a job in, as `onejob run` does; of the manager that is up. */
  submit(act: Act, request: Partial<JobRequest> = {}): string {
    const { up } = this;
    if (up === null) throw new Error('no manager is up');
    return up.services.own.submit(requestOf(act, request)).id;
  }

  job(id: string): JobView {
    const job = this.up?.services.own.job(id) ?? null;
    if (job === null) throw new Error(`no job ${id}`);
    return job;
  }

  /** Every slot is empty and nothing of ours is at the Engine. */
  get isEmpty(): boolean {
    return this.slots.every(isEmpty) && this.engine.sandboxes.size === 0;
  }

  close(): void {
    fillDisk(false);
    if (this.#running !== null) this.#end(this.#running);
    this.#disk.close();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

function fullDisk(): Error {
  return Object.assign(new Error('database or disk is full'), { code: 'ERR_SQLITE_ERROR', errcode: 13 });
}

export function requestOf(act: Act, request: Partial<JobRequest> = {}): JobRequest {
  const whole = {
    name: null,
    user: null,
    memory: null,
    cpus: null,
    id: null,
    pool: null,
    env: {},
    image: null,
    volumes: [],
    devices: null,
    priority: 0,
    timeout: null,
    retries: 0,
    artifacts: [],
    workspace: null,
    needs: [],
    attended: false,
    attemptOf: null,
  };
  return { ...whole, ...request, command: ['sim', JSON.stringify(act)] };
}
