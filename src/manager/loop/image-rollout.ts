/**
 * A pool's move to another image or agent: what its sandboxes are made from, what has proved itself, and who tries something new
 * (`core/rollout.ts`). Only what has proved itself is stored, so a manager that starts derives the rest from what it finds.
 *
 * Looks say what is to be had (`looked`, `made`). The loop reports steps of slots (`stepped`, `failed`), and asks what a slot may
 * have (`fingerprintOf`, `oldOrigin`, `isOwnImageOnly`, `losesJob`).
 */

import type { Failure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Backoff } from '../../core/backoff.ts';
import type { Clock, Timers } from '../../core/clock.ts';
import type { Decision } from '../../core/decide.ts';
import * as rollout from '../../core/rollout.ts';
import type { AgentId, Change, Slot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';
import type { ImageEvidence } from '../../verdict/evidence.ts';

/** The parts of a recipe that change without a change of the config, or that a canary tries. */
export interface Origin {
  /** Name of the image; null while none is chosen or built. */
  readonly image: string | null;
  /** Its id; null while it is unknown, for example before its pull. */
  readonly id: string | null;
  /** What the CI service adds, such as its agent. */
  readonly equipment: readonly Mount[];
  /** Version of the driver; null for pools without devices. What was proved with another one counts for nothing. */
  readonly driver: string | null;
}

/** What people are told about an update. */
export interface Update {
  /** The slot that tries it. */
  readonly slot: string;
  readonly image: string;
  readonly previous: string;
  /** Why it failed last; null: it has not failed. */
  readonly failure: string | null;
  /** When it is tried again after a failure (core clock, ms). */
  readonly until: number | null;
  /** What the other slots do meanwhile. */
  readonly others: string;
  readonly text: string;
}

/** What a rollout knows of its pool. */
export interface RolloutPool {
  readonly name: string;
  readonly service: Pick<CiService, 'capabilities'>;
  /** Whether its slots have a standby besides a job. */
  readonly standby: boolean;
  /** Whether sandboxes of different slots have different fingerprints. */
  readonly isPerSlot: boolean;
  /** Whether the slot may get a sandbox, as far as that is up to its devices. */
  readonly able: (key: string) => boolean;
}

/** What a rollout needs of the loop. */
export interface RolloutLoop {
  readonly clock: Clock;
  readonly log: Log;
  readonly timers: Timers;
  /** [0, 1): spreads back-offs. */
  readonly random: () => number;
  /** The pool's slots. */
  readonly slots: () => readonly Slot[];
  /** Plans all of them. */
  readonly replan: () => void;
  readonly isStopping: () => boolean;
  /** What the end of an agent's job says about its image, when its agent has been cleared; null: nothing, or it had none. */
  readonly evidenceOf?: ((agent: AgentId) => ImageEvidence | null) | undefined;
  /** Writes down what has proved itself. False: that failed, and is tried again. */
  readonly saveProved?: ((pool: string, origin: Origin) => boolean) | undefined;
}

/** Fingerprints of sandboxes of a slot. */
export interface SlotLook {
  readonly key: string;
  /** Of one with what is wanted; null: none can be made now. */
  readonly fingerprint: string | null;
  /** Of one with what has proved itself; null: none can be made any more; undefined: nothing had proved itself. */
  readonly old: string | null | undefined;
}

/** ms until what could not be written is written again. */
const writeAgain = 1_000;

export class ImageRollout {
  readonly #pool: RolloutPool;
  #attached: RolloutLoop | null = null;
  #state: rollout.Rollout = rollout.noRollout;
  #trusted: Origin | null = null;
  #wanted: Origin | null = null;
  /** Fingerprints of sandboxes of the wanted origin, by group of slots: with `{name}` in a recipe each slot has its own. */
  readonly #current = new Map<string, string>();
  /** The same of the trusted origin, while another one is tried. */
  readonly #old = new Map<string, string>();
  /** The job of one of its agents has proved the wanted origin, which is still to be written down. */
  #isProved = false;

  constructor(pool: RolloutPool) {
    this.#pool = pool;
  }

  /** To be called once, before its pool's slots are planned. */
  attach(loop: RolloutLoop): void {
    this.#attached = loop;
  }

  get trusted(): Origin | null {
    return this.#trusted;
  }

  get wanted(): Origin | null {
    return this.#wanted;
  }

  /** Whether one slot tries something that the others do not have yet. */
  get isTrial(): boolean {
    return this.#state.canary !== null;
  }

  /** Why what is tried failed, and until when it waits; null: it has not failed. */
  get backoff(): Backoff | null {
    return this.#state.backoff;
  }

  isCanary(key: string): boolean {
    return this.#state.canary === key;
  }

  /** Whether sandboxes of the old origin can still be made. */
  get canGoBack(): boolean {
    return this.#old.size > 0;
  }

  /** The fingerprint that a standby of this slot needs now; null: unknown. */
  fingerprintOf(key: string): string | null {
    const known = rollout.keepsOld(this.#state, key) ? this.#old : this.#current;
    return known.get(this.#groupOf(key)) ?? null;
  }

  /** What this slot's sandboxes are made from while another slot tries something new; null: from what is wanted. */
  oldOrigin(key: string): Origin | null {
    return rollout.keepsOld(this.#state, key) ? this.#trusted : null;
  }

  /** Whether a trial lets the slot have no sandbox of the pool's image at `now` (core clock, ms). */
  isOwnImageOnly(key: string, now: number): boolean {
    const { backoff } = this.#state;
    if (this.isCanary(key)) return backoff !== null && now < backoff.until;
    // What cannot be made any more is waited for, not replaced by what has not proved itself.
    return rollout.keepsOld(this.#state, key) && this.fingerprintOf(key) === null;
  }

  /** Whether this step of a slot loses the job of an agent with a new image. */
  losesJob(key: string, changes: readonly Change[]): boolean {
    return this.isCanary(key) && rollout.lostIn(this.#state, changes) !== null;
  }

  /** What an earlier manager has stored. */
  restore(trusted: Origin): void {
    this.#trusted = trusted;
    this.#state = { ...rollout.noRollout, trusted: markOf(trusted) };
  }

  /** Whether it knows the fingerprint of a sandbox of this slot with what is wanted. */
  knows(key: string): boolean {
    return this.#current.has(this.#groupOf(key));
  }

  learn(key: string, fingerprint: string): void {
    this.#current.set(this.#groupOf(key), fingerprint);
  }

  /** Forgets the fingerprints, because they have changed and are unknown. */
  forget(): void {
    this.#current.clear();
    this.#old.clear();
  }

  /** The canary tries again at once. */
  forgive(): void {
    this.#state = rollout.forgiven(this.#state);
  }

  /** What there is was looked at. `origin`: what sandboxes are to be made from now; null: as before. */
  looked(origin: Origin | null, found: readonly SlotLook[]): void {
    if (origin !== null) this.#wish(origin);
    for (const { key, fingerprint, old } of found) {
      const group = this.#groupOf(key);
      if (rollout.isUnproved(this.#state) && this.#trusted !== null && old !== undefined) {
        if (old === null) this.#old.delete(group);
        else this.#old.set(group, old);
      }
      if (fingerprint !== null) this.#current.set(group, fingerprint);
    }
    if (origin !== null) this.#choose();
  }

  /** A sandbox of the pool's image was made for this slot. `origin`: what it was made from; null: it does not say. */
  made(key: string, fingerprint: string, origin: Origin | null): void {
    // A slot that has begun before another one was to try it first brings nothing new.
    if (origin !== null && rollout.keepsOld(this.#state, key)) return;
    if (origin !== null) this.#wish(origin);
    this.learn(key, fingerprint);
    if (origin !== null) this.#choose(key);
  }

  /** An agent of a slot has failed, or its preparation. True: that is a new image's fault, so only the slot that tries it waits. */
  failed({ key, standby }: Slot, agent: AgentId, { failure, stage }: Extract<Change, { change: 'failed' }>): boolean {
    // One with a job's own image, or still with the old one, says nothing of it. (The loop hears of no failure to make a job's own
    // sandbox.)
    const isMade = standby.kind === 'preparing' && standby.agent === agent;
    if (!isMade && !this.#state.agents.has(agent)) return false;
    if (!this.isCanary(key) || failure.code.startsWith('E_CI_')) return false;
    this.#delay(key, failure, stage);
    return true;
  }

  /** A step of one of the pool's slots was committed. */
  stepped(before: Slot, { slot: after, changes }: Decision): void {
    if (!rollout.isUnproved(this.#state)) return;
    const gone = rollout.lostIn(this.#state, changes);
    if (gone !== null) this.#loseJob(after.key, gone.agent, `its agent was lost: ${gone.reason}`);
    for (const agent of rollout.cleared(this.#state, before, after)) {
      const evidence = this.#loop.evidenceOf?.(agent) ?? null;
      if (evidence?.works === true) this.#isProved = rollout.isUnproved(this.#state);
      if (evidence?.works === false) this.#loseJob(after.key, agent, evidence.why);
    }
    this.#observe(after);
    // A slot may try it that is free before the one that was chosen.
    const isOther = before.agent.kind !== after.agent.kind && (after.agent.kind === 'free' || after.agent.kind === 'busy');
    if (isOther && this.isTrial) this.#choose();
    else this.#check();
  }

  /** null while nothing is tried. */
  get update(): Update | null {
    const [slot, wanted, trusted] = [this.#state.canary, this.#wanted, this.#trusted];
    if (slot === null || wanted === null || trusted === null) return null;
    const [image, previous] = [nameOf(wanted, trusted), nameOf(trusted, wanted)];
    const { backoff } = this.#state;
    const failure = backoff?.last.message ?? null;
    // Both have one name if only what the service mounts is another.
    const others = this.canGoBack
      ? `the other slots keep ${image === previous ? 'the one before' : previous}`
      : `the other slots wait, because ${previous} is no longer there`;
    const tried =
      failure === null
        ? `${slot} tries the new ${image} first`
        : `the new ${image} failed on ${slot}: ${failure.replace(/\.$/, '')}`;
    return { slot, image, previous, failure, until: backoff?.until ?? null, others, text: `${tried}; ${others}` };
  }

  get #loop(): RolloutLoop {
    if (this.#attached === null) throw new RangeError(`pool ${this.#pool.name} is in no loop`);
    return this.#attached;
  }

  #groupOf(key: string): string {
    return this.#pool.isPerSlot ? key : '';
  }

  /**
   * Sandboxes should be made from this now. If one slot has to try it first, the fingerprints until now are those of the old one, and
   * have to be learned again.
   */
  #wish(origin: Origin): void {
    const mark = markOf(origin);
    const known = this.#wanted;
    const isOtherDriver = this.#trusted !== null && this.#trusted.driver !== origin.driver;
    const before: rollout.Rollout = isOtherDriver ? { ...this.#state, trusted: null } : this.#state;
    const wasProved = before.trusted !== null && before.wanted === before.trusted;
    if (isOtherDriver) this.#trusted = null;
    this.#wanted = origin;
    if (before !== this.#state || mark !== before.wanted) {
      this.#isProved = false;
      this.#state = rollout.wish(before, mark);
      const isTried = this.#trusted !== null && rollout.isUnproved(this.#state);
      if (!isTried) this.#old.clear();
      else if (wasProved) {
        for (const [group, fingerprint] of this.#current) this.#old.set(group, fingerprint);
        this.#current.clear();
      }
    }
    if (known === null || known.id === origin.id || origin.id === null || this.#trusted === null) return;
    this.#loop.log.info('another image', { pool: this.#pool.name, image: origin.image, id: origin.id });
  }

  /** Chooses which slot tries what is wanted, and notes which agents have it already. `first`: the one that has brought it. */
  #choose(first?: string): void {
    const slots = this.#loop.slots();
    const { canary } = this.#state;
    const { able, standby } = this.#pool;
    this.#state = rollout.choose(this.#state, slots, { able, first, standby, fingerprint: (key) => this.#wantedOf(key) });
    for (const slot of slots) this.#observe(slot);
    if (this.#state.canary !== canary) this.#loop.replan();
    this.#check();
  }

  /** The fingerprint of a standby with what is wanted, also while this slot still keeps the old one. */
  #wantedOf(key: string): string | null {
    return this.#current.get(this.#groupOf(key)) ?? null;
  }

  /** Notes which agents of a slot are made from what is wanted. */
  #observe(slot: Slot): void {
    const { binds } = this.#pool.service.capabilities;
    this.#state = rollout.observe(this.#state, slot, { binds, fingerprint: this.#wantedOf(slot.key), now: this.#loop.clock.now() });
  }

  /** The job of an agent with a new image did not end by itself. */
  #loseJob(key: string, agent: AgentId, why: string): void {
    this.#state = rollout.lost(this.#state, agent);
    // A stop of onejob ends jobs: their images have no part in that.
    if (this.#loop.isStopping() || !this.isCanary(key)) return;
    this.#delay(key, { code: 'infrastructure', message: `its job did not end by itself: ${why}`, retry: true }, 'release');
  }

  /** Only the slot that tries a new image waits. */
  #delay(slot: string, failure: Failure, stage: Backoff['stage']): void {
    const { clock, log, random, timers, replan } = this.#loop;
    const pool = this.#pool.name;
    const now = clock.now();
    const next = rollout.failed(this.#state, failure, stage, now, random());
    this.#state = next;
    const { failures, last, until } = next.backoff;
    const seconds = Math.round((until - now) / 1000);
    log.warn('a new image failed', { pool, slot, failures, seconds, reason: last.message });
    // Another slot may try it by then.
    timers.arm(`update ${pool}`, until, replan);
  }

  /** Lets every slot have what has proved itself, now or when that will be. */
  #check(): void {
    const { clock, log, timers, replan, saveProved } = this.#loop;
    const { name } = this.#pool;
    const now = clock.now();
    const at = this.#provesAt;
    const isDue = at !== null && at <= now;
    if (!isDue || (this.#wanted !== null && saveProved?.(name, this.#wanted) === false)) {
      const next = at === null ? null : Math.max(at, now + writeAgain);
      timers.arm(`proof ${name}`, next, () => this.#check());
      return;
    }
    const wasTried = this.isTrial;
    this.#state = rollout.trust(this.#state);
    this.#trusted = this.#wanted;
    this.#isProved = false;
    this.#old.clear();
    for (const timer of ['proof', 'update']) timers.cancel(`${timer} ${name}`);
    if (!wasTried) return;
    log.info('the new image works', { pool: name, image: this.#trusted?.image ?? null });
    replan();
  }

  /** When what is wanted proves itself (core clock, ms); null: nobody knows yet. */
  get #provesAt(): number | null {
    // Without its id nothing could be made from it again.
    if (this.#wanted?.id == null) return null;
    return this.#isProved ? 0 : rollout.provesAt(this.#state, this.canGoBack);
  }
}

/** A recipe with an origin's parts instead of its own. `config`: without what the service adds. */
export function withOrigin(config: Recipe, { image, id, equipment }: Origin): Recipe {
  return { ...config, image, ...(id !== null && { imageId: id }), mounts: [...config.mounts, ...equipment] };
}

/** Two origins with the same mark are the same. The name of an image does not matter once its id is known. */
function markOf({ image, id, equipment }: Origin): string {
  return JSON.stringify([id ?? `${image}?`, equipment]);
}

/** As short as tells it from the other. */
function nameOf(origin: Origin, other: Origin): string {
  const { image, id } = origin;
  if (id !== null && id === other.id) return `agent of image ${image}`;
  if (image !== other.image && image !== null) return `image ${image}`;
  const short = id === null ? '' : ` (${id.replace(/^sha256:/, '').slice(0, 12)})`;
  return image === null ? 'image' : `image ${image}${short}`;
}
