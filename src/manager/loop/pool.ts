/** A pool at run time: what config asks for, who pauses it, how it backs off, and which of its slots could take a job now. */

import type { ErrorCode, Failure } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type Backoff, backoff } from '../../core/backoff.ts';
import { leavingLimit, type PoolView } from '../../core/plan.ts';
import type { DeviceId, JobId, Reserved, Slot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Recipe, Runtime } from '../../ports/runtime.ts';
import { expandRecipe } from '../../schema/template.ts';
import { ImageRollout, type Origin, withOrigin } from './image-rollout.ts';
import { Pause } from './pause.ts';

/** Which devices a pool's slots should have. */
export interface SlotDevices {
  /** null while there are none for this slot. */
  of(key: string): readonly DeviceId[] | null;
  /** Why there are none, or why they must not be used now; null if they may be. */
  heldBack(key: string): string | null;
  /**
   * Whether an agent that waits for a job must go: its devices are known to be faulty, gone, or another slot's. Devices that
   * could not be seen are not a reason (S6).
   */
  lost(key: string): boolean;
  /** Whether a job of another pool waits for devices. */
  contested(pool: string): boolean;
  /** The job, of those that are not next, for which the slot has its devices; null: for the next one. Absent: always that. */
  jobOf?(key: string): JobId | null;
  /** What the pool's next job waits for if it needs several devices; null: it does not. */
  waitText?(pool: string): string | null;
}

/** ms without a waiting job after which agents without one give their leased devices back. */
const unneededAfter = 15_000;

/** For pools without devices. */
export const withoutDevices: SlotDevices = { of: () => [], heldBack: () => null, lost: () => false, contested: () => false };

/** Failures that end once the image is available. */
const ofImages: ReadonlySet<string> = new Set<ErrorCode>([
  'E_IMAGE_NOT_FOUND',
  'E_IMAGE_DENIED',
  'E_REGISTRY_UNREACHABLE',
  'E_PULL_FAILED',
  'E_IMAGE_CHOICE',
  'E_IMAGE_BUILD',
  'E_AGENT_PACKAGE',
]);

/** Whether a failure with this code ends once the image is available. */
export function isOfImage(code: string): boolean {
  return ofImages.has(code);
}

export class Pool {
  readonly config: PoolConfig;
  readonly service: CiService;
  readonly devices: SlotDevices;
  /** Config no longer has it: it exists only until its slots are empty. */
  readonly leaving: boolean;
  readonly pause = new Pause();
  /** Which image its slots have, and which one is tried. */
  readonly rollout: ImageRollout;
  #runtime: Runtime;
  readonly #keepStandby: boolean;
  /** Whether sandboxes of different slots have different fingerprints. */
  readonly isPerSlot: boolean;
  /** Whether its service is told what its slots could do with a job. */
  readonly tellsOffers: boolean;
  /** Keys of slots that could take a waiting job, longest free first. */
  readonly able = new Set<string>();
  readonly #serviceNamed: (name: string) => CiService;
  /** Keys of slots with a sandbox or an agent that no job is known of. */
  readonly #unused = new Set<string>();
  /** Slots whose agent is being replaced or is not online yet; for the latter, what it was made from. */
  readonly #renewing = new Map<string, string | null>();
  /** Since when no job has waited for it: core clock, ms; null: some do, or nobody knows. */
  #noneSince: number | null = null;
  draining = false;
  backoff: Backoff | null = null;
  #forgiven: Backoff | null = null;
  /** Why its runtime cannot be reached; null if it can. */
  away: string | null = null;

  constructor(
    config: PoolConfig,
    parts: {
      service: CiService;
      runtime: Runtime;
      keepStandby: boolean;
      devices: SlotDevices;
      serviceNamed?: (name: string) => CiService;
      /** Default true. */
      tellsOffers?: boolean;
      /** Default false. */
      leaving?: boolean;
    },
  ) {
    this.config = config;
    this.service = parts.service;
    this.#runtime = parts.runtime;
    this.devices = parts.devices;
    this.#serviceNamed = parts.serviceNamed ?? (() => parts.service);
    this.isPerSlot = JSON.stringify(config.recipe ?? null).includes('{name}');
    this.#keepStandby = parts.keepStandby && config.standby;
    this.tellsOffers = parts.tellsOffers ?? true;
    this.leaving = parts.leaving ?? false;
    this.draining = this.leaving;
    const { devices } = parts;
    this.rollout = new ImageRollout({
      name: config.name,
      service: parts.service,
      standby: this.#keepStandby && parts.runtime.capabilities.grants === 'host',
      isPerSlot: this.isPerSlot,
      able: (key) => devices.of(key) !== null && devices.heldBack(key) === null && !devices.lost(key),
    });
  }

  /** Whether its slots lease devices for each job. */
  get leases(): boolean {
    const { standby, devices } = this.config;
    return !standby && devices.count !== 0;
  }

  /** Whether agents that bind early are made only while jobs wait, since each holds devices. */
  get borrows(): boolean {
    return (this.leases || this.hasPilots) && this.service.capabilities.binds === 'early';
  }

  /** A list of jobs may lag, so one without any says nothing yet. */
  #isUnneeded(now: number): boolean {
    if (!this.borrows || this.service.waiting?.(this.config.name) !== 0) {
      this.#noneSince = null;
      return false;
    }
    this.#noneSince ??= now;
    return now - this.#noneSince >= unneededAfter;
  }

  /** Whether it may start anything at `now` (core clock, ms), as far as that is up to the pool. */
  mayStart(now: number): boolean {
    return !this.draining && !this.pause.any && this.away === null && (this.backoff === null || now >= this.backoff.until);
  }

  get runtime(): Runtime {
    return this.#runtime;
  }

  /** Switches to another runtime. Sandboxes of the previous one may end, but no new ones are made there. */
  moveTo(runtime: Runtime): void {
    this.#runtime = runtime;
    this.away = null;
    this.backoff = null;
    this.#forgiven = null;
    this.rollout.forget();
  }

  /** The unavailable image that keeps the pool from starting anything, such as `image "x:1" on docker`; null if there is none. */
  get awaitsImage(): string | null {
    if (this.backoff === null || !isOfImage(this.backoff.last.code)) return null;
    const { recipe } = this.config;
    const { message } = this.backoff.last;
    const image = recipe.containers?.ready?.images.find((one) => message.includes(`"${one}"`)) ?? recipe.image;
    return `${image === null ? 'its image' : `image "${image}"`} on ${this.#runtime.name}`;
  }

  /** The service of the slot's agents: config may have changed since. */
  serviceOf({ service }: Slot): CiService {
    return service === '' || service === this.service.name ? this.service : this.#serviceNamed(service);
  }

  /** Time limit of jobs in this slot in ms, if its service leaves that to the pool. */
  limitOf(slot: Slot): number | null {
    return this.serviceOf(slot).capabilities.poolTimeout ? this.config.timeout : null;
  }

  /** What the pool asks of one of its slots now. `host` applies to all pools; `now`: core clock, ms. */
  view(key: string, host: { readonly stopping: boolean; readonly paused: boolean; readonly now: number }): PoolView {
    const ownImageOnly = this.rollout.isOwnImageOnly(key, host.now);
    return {
      binds: this.service.capabilities.binds,
      wanted: !this.draining && !host.stopping,
      standby: this.#keepStandby,
      paused: host.paused || this.pause.any || this.away !== null,
      backoff: this.backoff,
      fingerprint: this.rollout.fingerprintOf(key),
      standbyMaxAge: this.config.standbyMaxAge,
      waiting: this.#next(key, ownImageOnly),
      devices: this.devices.of(key),
      held: this.devices.heldBack(key) !== null,
      lost: this.devices.lost(key),
      closed: this.pause.closes,
      mayRenew: this.#mayRenew(key),
      ownImageOnly,
      unneeded: this.#isUnneeded(host.now),
      contested: this.leases && this.devices.contested(this.config.name),
      pilots: this.pilots,
      alone: this.#runtime.capabilities.grants === 'engine',
    };
  }

  /**
   * Whether its runtime places sandboxes, so that one is made for each job that waits, and any of them takes any job. A service that
   * stands for slots gives each job to one of them.
   */
  get hasPilots(): boolean {
    return !this.#keepStandby && this.#runtime.capabilities.grants === 'engine' && !this.service.capabilities.standsForSlots;
  }

  /** Unknown is not none: without the number of waiting jobs, nothing is asked for, and nothing is taken back. */
  get pilots(): PoolView['pilots'] {
    if (!this.hasPilots) return null;
    const more = (this.service.waiting?.(this.config.name) ?? this.#unused.size) - this.#unused.size;
    if (more >= 0) return more > 0 ? 'more' : 'enough';
    // A service that binds early may count a job as begun before it shows which agent has it, and what waits at the engine would lose
    // its place there. Once no job waits, such agents are unneeded.
    return this.service.capabilities.binds === 'early' ? 'enough' : 'surplus';
  }

  /** The next job for this slot. One that names an image fits no standby without any, even if the pool would use the same. */
  #next(key: string, ownImageOnly: boolean): Reserved | null {
    const { jobs } = this.service;
    const only = this.devices.jobOf?.(key) ?? null;
    const next =
      (only === null
        ? jobs?.next(this.config.name, key, ownImageOnly ? 'ownImage' : undefined)
        : jobs?.waits?.(this.config.name, only)) ?? null;
    if (next === null || !this.#hasDevicesFor(next.job, key)) return null;
    if (next.cold || jobs?.namesImage?.(next.job) !== true) return next;
    return { ...next, cold: !this.#runtime.capabilities.images };
  }

  /** Jobs ask for different numbers, and another one may have become the next since devices were leased. */
  #hasDevicesFor(job: JobId, key: string): boolean {
    if (!this.leases) return true;
    const asked = this.service.jobs?.devicesFor?.(job) ?? this.config.devices.count;
    return asked === 'all' || (this.devices.of(key)?.length ?? asked) === asked;
  }

  /** An outdated agent that is not online yet delays nobody: it may never come online. */
  #mayRenew(key: string): boolean {
    for (const [other, made] of this.#renewing)
      if (other !== key && (made === null || made === this.rollout.fingerprintOf(other))) return false;
    return true;
  }

  /** Updates the index of able slots; costs the same for any number of slots. */
  index(slot: Slot): void {
    if (isRenewing(slot)) this.#renewing.set(slot.key, slot.agent.kind === 'idle' ? slot.agent.fingerprint : null);
    else this.#renewing.delete(slot.key);
    const able = slot.agent.kind === 'free' && slot.standby.kind !== 'preparing' && slot.leaving.length < leavingLimit;
    // A slot that is in it already keeps its turn.
    if (able) this.able.add(slot.key);
    else this.able.delete(slot.key);
    const isReserved = slot.standby.kind !== 'none' && slot.standby.reserved !== null;
    if (isUnused(slot) && !isReserved) this.#unused.add(slot.key);
    else this.#unused.delete(slot.key);
  }

  /** Simultaneous failures of several slots count once. */
  failed(failure: Failure, stage: 'prepare' | 'release', now: number, jitter: number): Backoff {
    if (this.backoff !== null && now < this.backoff.until) this.backoff = { ...this.backoff, last: failure };
    else this.backoff = backoff(this.backoff ?? this.#forgiven, failure, stage, now, jitter);
    return this.backoff;
  }

  /**
   * Success of a stage ends the back-off that it caused. True if there was one. A new standby may still fail at the gate, and an
   * agent that is online may end without a job, so the back-off is only suspended, and forgotten once a released agent had a job.
   */
  worked(stage: 'prepare' | 'online' | 'release'): boolean {
    if (stage === 'release') this.#forgiven = null;
    if (this.backoff?.stage !== (stage === 'prepare' ? 'prepare' : 'release')) return false;
    if (stage !== 'release') this.#forgiven = this.backoff;
    this.backoff = null;
    return true;
  }
}

/** Name of the pool that a slot belongs to, from its key `<pool>/<n>`. */
export function poolOf(slot: string): string {
  return slot.slice(0, slot.lastIndexOf('/'));
}

/** The recipe of every sandbox of a slot, for any job: the pool's, with what its service adds. */
export function poolRecipe({ config, service }: Pick<Pool, 'config' | 'service'>, name: string): Recipe {
  const recipe = expandRecipe(config, name);
  return service.equip?.(recipe, config.name) ?? recipe;
}

/** The same for a slot that still uses what was there before. */
export function oldRecipe({ config }: Pick<Pool, 'config'>, name: string, origin: Origin): Recipe {
  return withOrigin(expandRecipe(config, name), origin);
}

/** Whether a slot has, or gets, an agent that no job has been seen of. */
export function isUnused({ standby, agent }: Slot): boolean {
  if (standby.kind !== 'none' || agent.kind === 'registering' || agent.kind === 'idle') return true;
  return agent.kind === 'releasing' && agent.job === null;
}

function isRenewing({ agent }: Slot): boolean {
  switch (agent.kind) {
    case 'registering':
    case 'retiring':
      return true;
    case 'releasing':
      return agent.job === null;
    case 'idle':
      return !agent.online;
    case 'ending':
      return agent.signal === 'TERM' && agent.why === 'renewal';
    default:
      return false;
  }
}
