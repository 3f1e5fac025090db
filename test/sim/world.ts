/**
 * A world to try the loop in: sandboxes, jobs and time are values, and every effect, report, loss and crash is one move
 * that a test chooses. The loop is the real one; only the machine under it is not. The world knows what really happened
 * (`begun`, `runs`), which the loop can only infer, so it can say when a promise is broken.
 */

import type { PoolConfig } from '../../src/config/config.ts';
import type { Clock } from '../../src/core/clock.ts';
import { decide } from '../../src/core/decide.ts';
import {
  type Action,
  type AgentId,
  type Change,
  type DeviceId,
  type Exit,
  emptySlot,
  isEmpty,
  type JobId,
  type JobResult,
  type Reserved,
  type Slot,
  type SlotEvent,
} from '../../src/core/slot.ts';
import { noGpus } from '../../src/gpu/inventory.ts';
import { subjectOf } from '../../src/manager/actions/action-runner.ts';
import { KnownDevices } from '../../src/manager/devices/known-devices.ts';
import { createDeviceRegistry, type DeviceRegistry } from '../../src/manager/devices/registry.ts';
import { Pool } from '../../src/manager/loop/pool.ts';
import { Reconciler } from '../../src/manager/loop/reconciler.ts';
import type { CiService } from '../../src/ports/ci-service.ts';
import type { Runtime } from '../../src/ports/runtime.ts';
import type { KnownDevice } from '../../src/store/devices.ts';
import type { Store } from '../../src/store/store.ts';
import { gpu, oneDevice } from '../support/devices.ts';

interface Sandbox {
  readonly agent: AgentId;
  /** What it was granted. */
  readonly devices: readonly DeviceId[];
  readonly slot: string;
  readonly fingerprint: string;
  readonly madeAt: number;
  state: 'gate' | 'running' | 'exited' | 'removed';
  job: JobId | null;
  /** How often the script of this sandbox began. */
  begun: number;
  exit: Exit;
  /** Its CI service gives it no job any more. */
  disabled: boolean;
}

interface Job {
  state: 'waiting' | 'taken' | 'ended';
  agent: AgentId | null;
  readonly cold: boolean;
  /** How often its script really began, in any sandbox. */
  runs: number;
  readonly results: JobResult[];
}

export interface WorldOptions {
  readonly slots: number;
  readonly binds: 'late' | 'early';
  readonly standby: boolean;
  /** An agent at the service stands for each slot: `offers` has what it was told. */
  readonly standsForSlots?: boolean;
  /** GPUs of a host whose slots each need one; none: every other slot has one of its own for good. */
  readonly gpus?: number;
}

const failure = { code: 'E_TEST', message: 'tried in the world', retry: true } as const;
export const standbyMaxAge = 60_000;

export class World {
  now = 1_000;
  fingerprint = 'f1';
  /** False while the Engine does not answer: no effect succeeds and nothing is reported. */
  reachable = true;
  /** True while nothing can be committed. */
  diskFull = false;
  commits = 0;
  /** What the service was told that slots could do with a job, newest last. */
  readonly offers: string[] = [];
  /** ms that pass whenever somebody looks at the clock; ms by which timers fire too early, as real ones do. */
  tick = 0;
  early = 0;
  attempts = 0;
  readonly sandboxes = new Map<AgentId, Sandbox>();
  readonly jobs = new Map<JobId, Job>();
  readonly pending: { readonly key: string; readonly action: Action }[] = [];
  /** Reports on their way to the loop; the same one may arrive twice, late, or never. */
  readonly reports: { readonly key: string; readonly event: SlotEvent }[] = [];
  readonly broken: string[] = [];
  readonly kills = new Set<AgentId>();
  readonly #stored = new Map<string, Slot>();
  /** The host's GPUs: those that answer. */
  readonly gpus = new Set<DeviceId>();
  readonly #known = new Map<DeviceId, KnownDevice>();
  registry: DeviceRegistry | null = null;
  readonly #options: WorldOptions;
  #timers: { readonly at: number; readonly fn: () => void }[] = [];
  #nextAgent = 1;
  #nextJob = 1;
  #uncommitted: Change[] = [];
  pool!: Pool;
  loop!: Reconciler;

  /** What the loop warned of in the daemon's log. */
  readonly warnings: string[] = [];

  constructor(options: WorldOptions) {
    this.#options = options;
    for (let n = 1; n <= options.slots; n++) {
      const devices = options.gpus === undefined ? devicesOf(`pool/${n}`) : [];
      const slot = emptySlot({ key: `pool/${n}`, runtime: 'sim', grace: 5_000, devices });
      this.#stored.set(slot.key, slot);
    }
    for (let n = 1; n <= (options.gpus ?? 0); n++) this.gpus.add(`GPU-${n}`);
    this.boot();
  }

  /** A manager starts on what was stored. */
  boot(): void {
    this.#timers = [];
    const config = {
      name: 'pool',
      standby: true,
      standbyMaxAge,
      stopGrace: 5_000,
      agents: this.#options.slots,
    } as unknown as PoolConfig;
    this.pool = new Pool(config, {
      service: this.#service(),
      runtime: { name: 'sim', capabilities: { grants: 'host' } } as Runtime,
      keepStandby: this.#options.standby,
      devices: {
        of: (key) => (this.registry === null ? devicesOf(key) : this.registry.slotDevices.of(key)),
        heldBack: (key) => this.registry?.slotDevices.heldBack(key) ?? null,
        lost: (key) => this.registry?.slotDevices.lost(key) ?? false,
        contested: (pool) => this.registry?.slotDevices.contested(pool) ?? false,
      },
    });
    this.pool.rollout.learn('', this.fingerprint);
    const clock: Clock = {
      now: () => {
        const now = this.now;
        this.now += this.tick;
        return now;
      },
      wall: () => this.now,
      after: (ms, fn) => {
        const timer = { at: this.now + Math.max(0, ms - this.early), fn };
        this.#timers.push(timer);
        return () => {
          this.#timers = this.#timers.filter((one) => one !== timer);
        };
      },
    };
    this.loop = new Reconciler({
      clock,
      log: { info() {}, warn: (event) => void this.warnings.push(event), error() {} },
      store: {
        transaction: (write) => {
          this.attempts += 1;
          if (this.diskFull) throw new Error('the disk is full');
          this.commits += 1;
          write();
        },
        sync: async () => {},
        syncNow() {},
        save: (_, slot) => this.#stored.set(slot.key, slot),
      },
      act: (key, action) => this.#wanted(key, action),
      newAgent: () => `a${this.#nextAgent++}`,
      random: () => 0,
      changed: (before, after) => {
        this.#checkStep(before, after);
        this.registry?.slotChanged(after);
      },
    });
    if (this.#options.gpus !== undefined) this.registry = this.#openRegistry(clock);
    this.loop.add(this.pool, [...this.#stored.values()]);
    this.loop.start();
  }

  /** kill -9: effects under way and reports on their way are lost; then the same loop on the old store. */
  crash(): void {
    this.pending.length = 0;
    this.reports.length = 0;
    this.boot();
    this.resync();
  }

  /** As if every slot had been stored, empty, by a manager with another runtime. */
  storeAs(runtime: string): void {
    for (const [key, slot] of this.#stored) this.#stored.set(key, { ...emptySlot(slot), runtime });
  }

  submit(cold: boolean): void {
    const id = `j${this.#nextJob++}`;
    this.jobs.set(id, { state: 'waiting', agent: null, cold, runs: 0, results: [] });
    this.registry?.demandChanged('pool');
    this.loop.offer('pool');
  }

  cancel(index: number): void {
    const running = [...this.jobs].filter(([, job]) => job.state === 'taken' && job.agent !== null);
    const [, job] = running[index % Math.max(1, running.length)] ?? [];
    const key = job?.agent == null ? undefined : this.loop.placeOf(job.agent);
    if (job?.agent != null && key !== undefined)
      this.loop.post(key, { kind: 'stop', agent: job.agent, why: 'cancelled', grace: 1_000 });
  }

  /** Carries out the effect at `index`; `fails` makes it fail before it did anything, `quiet` loses its answer. */
  perform(index: number, how: 'works' | 'fails' | 'quiet'): void {
    const [one] = this.pending.splice(index % Math.max(1, this.pending.length), 1);
    if (one === undefined) return;
    if (!this.reachable || how === 'fails') this.#fail(one.key, one.action);
    else this.#effect(one.key, one.action, how === 'quiet');
  }

  deliver(index: number, how: 'once' | 'twice' | 'lose'): void {
    if (this.reports.length === 0) return;
    const at = index % this.reports.length;
    const report = this.reports[at];
    if (report === undefined) return;
    // What executors answer stays in the manager's memory: only a crash loses it, and that is a move of its own.
    if (how === 'lose' && !['exited', 'online', 'jobSeen'].includes(report.event.kind)) return;
    if (how !== 'twice') this.reports.splice(at, 1);
    if (how !== 'lose') this.loop.post(report.key, report.event);
  }

  /** The oldest effect works, and the loop hears of the oldest report. */
  goOn(): void {
    this.perform(0, 'works');
    this.deliver(0, 'once');
  }

  deliverAll(): void {
    while (this.reports.length > 0) this.deliver(0, 'once');
  }

  /** A sandbox's process ends by itself. */
  exit(index: number, code: number): void {
    const alive = [...this.sandboxes.values()].filter((one) => one.state === 'running' || one.state === 'gate');
    const sandbox = alive[index % Math.max(1, alive.length)];
    if (sandbox !== undefined) this.#end(sandbox, { kind: 'code', code });
  }

  /** What the slow resync finds: nothing at all while the Engine does not answer. */
  resync(): void {
    if (!this.reachable) return;
    for (const slot of this.loop.slots) {
      for (const agent of lanes(slot)) {
        const sandbox = this.sandboxes.get(agent);
        if (sandbox === undefined || sandbox.state === 'removed') {
          if (slot.standby.kind !== 'preparing' || slot.standby.agent !== agent) this.loop.post(slot.key, { kind: 'gone', agent });
        } else if (sandbox.state === 'exited') this.loop.post(slot.key, this.#exited(sandbox));
        else if (sandbox.begun > 0) {
          this.loop.post(slot.key, { kind: 'released', agent });
          if (sandbox.job !== null && this.#options.binds === 'early') this.loop.post(slot.key, this.#seen(agent, sandbox.job));
        }
      }
    }
    this.loop.replanAll();
  }

  advance(ms: number): void {
    this.now += ms;
    for (;;) {
      const due = this.#timers.filter((timer) => timer.at <= this.now).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) return;
      this.#timers = this.#timers.filter((one) => one !== due);
      due.fn();
    }
  }

  /** Lets everything work, without faults, until nothing is left to do. */
  settle(): void {
    this.reachable = true;
    for (let round = 0; round < 400; round++) {
      while (this.pending.length > 0) this.perform(0, 'works');
      this.deliverAll();
      for (const sandbox of this.sandboxes.values()) if (sandbox.state === 'running') this.#end(sandbox, { kind: 'code', code: 0 });
      this.resync();
      this.advance(40_000);
      if (this.pending.length === 0 && this.reports.length === 0 && [...this.jobs.values()].every((job) => job.state === 'ended'))
        return;
    }
  }

  #wanted(key: string, action: Action): void {
    for (let i = this.pending.length - 1; i >= 0; i--) {
      const before = this.pending[i];
      if (before !== undefined && subjectOf(before.action) === subjectOf(action)) this.pending.splice(i, 1);
    }
    this.pending.push({ key, action });
  }

  #effect(key: string, action: Action, quiet: boolean): void {
    const answer = (event: SlotEvent): void => void (quiet || this.reports.push({ key, event }));
    const sandbox = this.sandboxes.get(action.agent);
    switch (action.act) {
      case 'prepare': {
        const made = sandbox ?? this.#make(key, action.agent);
        if (made.state === 'gate') answer({ kind: 'ready', agent: action.agent, fingerprint: made.fingerprint });
        else this.reports.push({ key, event: this.#exited(made) });
        if (quiet) this.#wanted(key, action);
        return;
      }
      case 'register':
        answer({ kind: 'registered', agent: action.agent });
        if (quiet) this.#wanted(key, action);
        return;
      case 'release':
        this.#release(key, action.agent, action.job);
        return;
      case 'retire':
        if (sandbox !== undefined) sandbox.disabled = true;
        answer(sandbox?.job == null ? { kind: 'retired', agent: action.agent } : this.#seen(action.agent, sandbox.job));
        if (quiet) this.#wanted(key, action);
        return;
      case 'terminate':
      case 'kill':
        this.#checkRenewal(key, sandbox);
        this.kills.add(action.agent);
        if (sandbox !== undefined && sandbox.state !== 'removed') this.#end(sandbox, { kind: 'code', code: 137 });
        return;
      case 'settle':
        answer({ kind: 'settled', agent: action.agent });
        if (quiet) this.#wanted(key, action);
        return;
      case 'clear':
        if (sandbox !== undefined) {
          if (sandbox.state === 'running' && !this.kills.has(sandbox.agent))
            this.broken.push(`S6: running ${sandbox.agent} was removed`);
          sandbox.state = 'removed';
        }
        answer({ kind: 'cleared', agent: action.agent, outcome: null });
        if (quiet) this.#wanted(key, action);
        return;
      case 'prove':
        answer({ kind: 'proved', agent: action.agent });
        if (quiet) this.#wanted(key, action);
        return;
    }
  }

  #fail(key: string, action: Action): void {
    const { agent } = action;
    if (action.act === 'prepare') this.reports.push({ key, event: { kind: 'prepareFailed', agent, failure } });
    else if (action.act === 'register') this.reports.push({ key, event: { kind: 'registerFailed', agent, failure } });
    else if (action.act === 'release')
      this.reports.push({ key, event: { kind: 'releaseFailed', agent, failure, countsAgainst: 'pool' } });
    else this.#wanted(key, action);
  }

  #make(key: string, agent: AgentId): Sandbox {
    const made: Sandbox = {
      agent,
      slot: key,
      fingerprint: this.fingerprint,
      madeAt: this.now,
      state: 'gate',
      job: null,
      begun: 0,
      exit: { kind: 'code', code: 0 },
      disabled: false,
      devices: this.loop.slot(key)?.devices ?? [],
    };
    this.sandboxes.set(agent, made);
    return made;
  }

  #release(key: string, agent: AgentId, job: JobId | null): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined || sandbox.state === 'exited' || sandbox.state === 'removed') {
      this.reports.push({ key, event: { kind: 'releaseFailed', agent, failure, countsAgainst: 'pool' } });
      return;
    }
    // A frame sent twice runs once: the gate reads one.
    if (sandbox.state === 'gate') {
      this.#checkRelease(key, sandbox);
      sandbox.state = 'running';
      sandbox.begun += 1;
      sandbox.job = job;
      if (job !== null) {
        const known = this.jobs.get(job);
        if (known !== undefined) known.runs += 1;
      }
    }
    this.reports.push({ key, event: { kind: 'released', agent } });
    if (job === null) this.reports.push({ key, event: { kind: 'online', agent } });
  }

  /** The CI service of an early binding gives a job to an agent that it sees. */
  give(index: number): void {
    const idle = [...this.sandboxes.values()].filter((one) => one.state === 'running' && one.job === null && !one.disabled);
    const sandbox = idle[index % Math.max(1, idle.length)];
    if (sandbox === undefined || this.#options.binds !== 'early') return;
    sandbox.job = `service-${sandbox.agent}`;
    this.reports.push({ key: sandbox.slot, event: this.#seen(sandbox.agent, sandbox.job) });
  }

  #seen(agent: AgentId, job: JobId): SlotEvent {
    return { kind: 'jobSeen', agent, job, limit: 30_000 };
  }

  #checkRenewal(key: string, sandbox: Sandbox | undefined): void {
    const lane = this.loop.slot(key)?.agent;
    const isRenewal = lane !== undefined && 'why' in lane && lane.why === 'renewal' && lane.agent === sandbox?.agent;
    if (isRenewal && sandbox.job !== null) this.broken.push(`S11: ${sandbox.agent} was given a job and ended to be renewed`);
  }

  #end(sandbox: Sandbox, exit: Exit): void {
    if (sandbox.state === 'exited') return;
    sandbox.state = 'exited';
    sandbox.exit = exit;
    this.reports.push({ key: sandbox.slot, event: this.#exited(sandbox) });
  }

  #exited(sandbox: Sandbox): SlotEvent {
    return { kind: 'exited', agent: sandbox.agent, exit: sandbox.exit, released: sandbox.begun > 0 };
  }

  #checkRelease(key: string, sandbox: Sandbox): void {
    const others = [...this.sandboxes.values()].filter((one) => one.slot === key && one !== sandbox && one.state === 'running');
    if (others.length > 0)
      this.broken.push(`S1/S2: ${sandbox.agent} released in ${key} beside running ${others.map((one) => one.agent).join()}`);
  }

  #checkStep(before: Slot, after: Slot): void {
    const released =
      after.agent.kind !== 'free' && after.agent !== before.agent && ['registering', 'releasing'].includes(after.agent.kind);
    const from = before.standby.kind === 'standby' ? before.standby : null;
    if (!released || before.agent.kind === 'registering') return;
    // Ready and released may be one step: then the sandbox was being prepared a moment ago.
    if (before.standby.kind === 'none' || before.standby.agent !== after.agent.agent)
      this.broken.push(`S2: ${after.agent.agent} was never standby`);
    if (from === null) return;
    if (this.now - from.since > standbyMaxAge) this.broken.push(`S11: ${from.agent} released at age ${this.now - from.since}`);
    if (from.reserved === null && from.fingerprint !== this.fingerprint)
      this.broken.push(`S11: ${from.agent} released from ${from.fingerprint}`);
    if (this.pool.backoff !== null && this.now < this.pool.backoff.until)
      this.broken.push(`S9: ${from.agent} released during back-off`);
  }

  #service(): CiService {
    const waiting = (): Reserved | null => {
      for (const [id, job] of this.jobs) if (job.state === 'waiting') return { job: id, limit: 30_000, cold: job.cold };
      return null;
    };
    const unused = (): never => {
      throw new Error('the loop does not call this');
    };
    return {
      name: 'sim',
      capabilities: {
        binds: this.#options.binds,
        standsForSlots: this.#options.standsForSlots === true,
        terms: 1,
        poolTimeout: true,
        jobOnStdout: false,
      },
      check: unused,
      observe: unused,
      register: unused,
      deregister: unused,
      retire: unused,
      jobs: {
        offer: (slot, offer) => void this.offers.push(`${slot} ${offer}`),
        next: () => (this.#options.binds === 'late' ? waiting() : null),
        record: (change) => this.#uncommitted.push(change),
        committed: () => {
          for (const change of this.#uncommitted.splice(0)) this.#record(change);
        },
        syncing: () => () => {},
        rolledBack: () => void this.#uncommitted.splice(0),
      },
    };
  }

  #record(change: Change): void {
    if (!('job' in change)) return;
    const job = this.jobs.get(change.job);
    if (job === undefined) return;
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        if (job.state === 'ended') this.broken.push(`S7: ended ${change.job} was handed out again`);
        if (job.state === 'taken' && job.agent !== change.agent) this.broken.push(`S3: ${change.job} handed out twice`);
        Object.assign(job, { state: 'taken', agent: change.agent });
        return;
      case 'returned':
        if (job.runs > 0) this.broken.push(`S7: ${change.job} went back to the queue although it had begun`);
        Object.assign(job, { state: 'waiting', agent: null });
        return;
      case 'ended':
        job.state = 'ended';
        job.results.push(change.result);
        if (job.results.length > 1) this.broken.push(`S7: ${change.job} ended twice`);
        return;
      default:
        return;
    }
  }

  /** A look at the host; an incomplete one lists some of what is there. */
  look(complete: boolean): void {
    const there = [...this.gpus].slice(0, complete ? undefined : 1);
    this.registry?.inventoryChanged(
      { ...noGpus, complete, devices: there.map((uuid) => gpu(Number(uuid.slice(4)) - 1, { uuid, mig: null })) },
      new Map(),
    );
  }

  #openRegistry(clock: Clock): DeviceRegistry {
    const table = {
      all: () => [...this.#known.values()],
      save: (device: KnownDevice) => void this.#known.set(device.uuid, device),
      remove: (uuid: DeviceId) => void this.#known.delete(uuid),
    };
    const store = { devices: table, transaction: (_: unknown, change: () => void) => change() } as unknown as Store;
    return createDeviceRegistry({
      clock,
      pools: [{ ...this.pool.config, devices: oneDevice, standby: this.#options.standby } as unknown as PoolConfig],
      known: new KnownDevices({ clock, store }),
      locks: { take: () => null, keep() {} },
      slots: () => this.loop.slots,
      waiting: () => {
        const next = this.pool.service.jobs?.next('pool', null) ?? null;
        return next === null ? null : { turn: next.job, devices: 1 };
      },
      changed: (keys) => {
        for (const key of keys) this.loop.replan(key);
      },
    });
  }

  #checkLeases(): string[] {
    const holders = new Map<DeviceId, string>();
    const broken: string[] = [];
    const hold = (devices: readonly DeviceId[], who: string, what: string): void => {
      for (const device of devices) {
        const other = holders.get(device);
        if (other !== undefined && other !== who) broken.push(`S1: ${device} is in ${other} and ${who} (${what})`);
        holders.set(device, who);
      }
    };
    for (const slot of this.loop.slots) if (!isEmpty(slot)) hold(slot.devices, slot.key, 'slot');
    for (const sandbox of this.sandboxes.values())
      if (sandbox.state !== 'removed') hold(sandbox.devices, sandbox.slot, sandbox.agent);
    return broken;
  }

  /** Every promise that can be checked by looking at the world as it is. */
  check(): string[] {
    const found = [...this.broken, ...this.#checkLeases()];
    for (const [id, job] of this.jobs) if (job.runs > 1) found.push(`S3: ${id} ran ${job.runs} times`);
    for (const sandbox of this.sandboxes.values())
      if (sandbox.begun > 1) found.push(`S3: script of ${sandbox.agent} began ${sandbox.begun} times`);
    for (const slot of this.loop.slots) {
      const running = [...this.sandboxes.values()].filter((one) => one.slot === slot.key && one.state === 'running');
      if (running.length > 1) found.push(`S2: ${running.length} running agents in ${slot.key}`);
      const known = new Set([...lanes(slot), ...slot.leaving.map((one) => one.agent)]);
      for (const one of this.sandboxes.values()) {
        if (one.slot === slot.key && one.state !== 'removed' && !known.has(one.agent)) found.push(`S4: ${one.agent} is nobody's`);
      }
      const again = decide(slot, { kind: 'due' }, -1).slot;
      if (again !== slot) found.push(`a deadline in the future moved ${slot.key}`);
    }
    return found;
  }
}

function lanes(slot: Slot): AgentId[] {
  const agents: AgentId[] = [];
  if (slot.standby.kind !== 'none') agents.push(slot.standby.agent);
  if (slot.agent.kind !== 'free' && slot.agent.kind !== 'proving') agents.push(slot.agent.agent);
  return agents;
}

/** Every other slot has a device. */
function devicesOf(key: string): DeviceId[] {
  const n = Number(key.split('/')[1]);
  return n % 2 === 0 ? [`GPU-${n}`] : [];
}
