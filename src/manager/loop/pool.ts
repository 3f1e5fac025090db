/** One pool at run time: what config asks, who pauses it, how it backs off, and which of its slots could take a job now. */

import type { CiService } from '../../ci/ci-service.ts';
import type { PoolConfig } from '../../config/config.ts';
import { expandRecipe } from '../../config/template.ts';
import { type Backoff, backoff } from '../../core/backoff.ts';
import { leavingLimit, type PoolView } from '../../core/plan.ts';
import type { DeviceId, Failure, Slot } from '../../core/slot.ts';
import type { ErrorCode } from '../../errors.ts';
import type { Recipe, Runtime } from '../../runtimes/runtime.ts';
import { Pause } from './pause.ts';

/** Which devices a pool's slots are to hold. */
export interface SlotDevices {
  /** Null while there are none for this slot. */
  of(key: string): readonly DeviceId[] | null;
  /** Why there are none, or why they must not be used right now; null when nothing speaks against it. */
  heldBack(key: string): string | null;
  /**
   * Whether an agent that waits on them for a job must go: they are known to be somebody else's, faulty or gone. What nobody could
   * see is no reason (S6).
   */
  lost(key: string): boolean;
}

/** Of pools whose agents need no device. */
export const noDevices: SlotDevices = { of: () => [], heldBack: () => null, lost: () => false };

/** Failures that having the image ends. */
const ofImages: ReadonlySet<string> = new Set<ErrorCode>([
  'E_IMAGE_NOT_FOUND',
  'E_IMAGE_DENIED',
  'E_REGISTRY_UNREACHABLE',
  'E_PULL_FAILED',
  'E_IMAGE_CHOICE',
  'E_IMAGE_BUILD',
  'E_AGENT_PACKAGE',
]);

export class Pool {
  readonly config: PoolConfig;
  readonly service: CiService;
  readonly devices: SlotDevices;
  /** Config does not name it any more: it is only there until what is in its slots is gone. */
  readonly leaving: boolean;
  readonly pause = new Pause();
  #runtime: Runtime;
  readonly #keepStandby: boolean;
  /** Whether what a slot's sandboxes are made from depends on the slot. */
  readonly isPerSlot: boolean;
  /** Whether its service is told what its slots could do with a job. */
  readonly tellsOffers: boolean;
  /** Keys of slots that could take a waiting job, longest free first. */
  readonly able = new Set<string>();
  readonly #serviceNamed: (name: string) => CiService;
  /** Slots whose agent is about to end for a newer one, or to come online; for the latter what it was made from. */
  readonly #renewing = new Map<string, string | null>();
  draining = false;
  backoff: Backoff | null = null;
  #forgiven: Backoff | null = null;
  /** What a standby would be made from now, by slot: `{name}` in a recipe makes each slot's another. */
  readonly #fingerprints = new Map<string, string>();
  /** Why its runtime cannot be reached; null while it can. */
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
  }

  get runtime(): Runtime {
    return this.#runtime;
  }

  /** From now on another runtime makes its sandboxes: what the one before has made is let end, and nothing new is made there. */
  moveTo(runtime: Runtime): void {
    this.#runtime = runtime;
    this.away = null;
    this.backoff = null;
    this.#forgiven = null;
    this.forget();
  }

  /** The image that could not be had and keeps the pool from starting anything, such as `image "x:1" on docker`; null: none does. */
  get awaitsImage(): string | null {
    if (this.backoff === null || !ofImages.has(this.backoff.last.code)) return null;
    const { image } = this.config.recipe;
    return `${image === null ? 'its image' : `image "${image}"`} on ${this.#runtime.name}`;
  }

  /** The service that what is in the slot is for: config may have moved on to another. */
  serviceOf({ service }: Slot): CiService {
    return service === '' || service === this.service.name ? this.service : this.#serviceNamed(service);
  }

  /** How long the job of an agent in this slot may run, ms, where its service leaves that to the pool. */
  limitOf(slot: Slot): number | null {
    return this.serviceOf(slot).capabilities.poolTimeout ? this.config.timeout : null;
  }

  /** Remembers what a standby of this slot, or of all, would be made from now. */
  learn(key: string, fingerprint: string): void {
    this.#fingerprints.set(this.#groupOf(key), fingerprint);
  }

  /** What they would be made from is another thing now, and not known yet. */
  forget(): void {
    this.#fingerprints.clear();
  }

  #groupOf(key: string): string {
    return this.isPerSlot ? key : '';
  }

  /** What the pool asks of one of its slots now; `host` adds what holds for all pools. */
  view(key: string, host: { readonly stopping: boolean; readonly paused: boolean }): PoolView {
    return {
      binds: this.service.capabilities.binds,
      wanted: !this.draining && !host.stopping,
      standby: this.#keepStandby,
      paused: host.paused || this.pause.any || this.away !== null,
      backoff: this.backoff,
      fingerprint: this.#fingerprints.get(this.#groupOf(key)) ?? null,
      standbyMaxAge: this.config.standbyMaxAge,
      waiting: this.service.jobs?.next(this.config.name, key) ?? null,
      devices: this.devices.of(key),
      held: this.devices.heldBack(key) !== null,
      lost: this.devices.lost(key),
      closed: this.pause.closes,
      mayRenew: this.#mayRenew(key),
    };
  }

  /** One that has yet to come online and is not current either holds nobody up: it may never do so. */
  #mayRenew(key: string): boolean {
    for (const [other, made] of this.#renewing)
      if (other !== key && (made === null || made === this.#fingerprints.get(this.#groupOf(other)))) return false;
    return true;
  }

  /** Keeps the index of able slots; costs the same for any number of slots. */
  index(slot: Slot): void {
    if (isRenewing(slot)) this.#renewing.set(slot.key, slot.agent.kind === 'idle' ? slot.agent.fingerprint : null);
    else this.#renewing.delete(slot.key);
    const able = slot.agent.kind === 'free' && slot.standby.kind !== 'preparing' && slot.leaving.length < leavingLimit;
    // One that is in it already keeps its turn.
    if (able) this.able.add(slot.key);
    else this.able.delete(slot.key);
  }

  /** Several slots that fail at one moment are one failure. */
  failed(failure: Failure, stage: 'prepare' | 'release', now: number, jitter: number): Backoff {
    if (this.backoff !== null && now < this.backoff.until) this.backoff = { ...this.backoff, last: failure };
    else this.backoff = backoff(this.backoff ?? this.#forgiven, failure, stage, now, jitter);
    return this.backoff;
  }

  /**
   * A stage that works ends the back-off that this stage brought about. True when there was one. A standby that was made
   * may still die at the gate, and an agent that is online may end without a job, so both are forgiven only, and forgotten
   * once one was released and had a job.
   */
  worked(stage: 'prepare' | 'online' | 'release'): boolean {
    if (stage === 'release') this.#forgiven = null;
    if (this.backoff?.stage !== (stage === 'prepare' ? 'prepare' : 'release')) return false;
    if (stage !== 'release') this.#forgiven = this.backoff;
    this.backoff = null;
    return true;
  }
}

/** What every sandbox of a slot is made from, whatever job it gets: the pool's recipe, and what its service needs beside. */
export function poolRecipe({ config, service }: Pick<Pool, 'config' | 'service'>, name: string): Recipe {
  const recipe = expandRecipe(config, name);
  return service.equip?.(recipe, config.name) ?? recipe;
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
