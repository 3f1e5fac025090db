/**
 * A pool's move to another image or agent: what its sandboxes are made from, what has proved itself, and who tries something new
 * (`core/rollout.ts`). Only what has proved itself is stored, so a manager that starts derives the rest from what it finds.
 */

import type { Failure } from '../../base/errors.ts';
import type { Backoff } from '../../core/backoff.ts';
import {
  choose,
  cleared,
  failed,
  forgiven,
  isUnproved,
  keepsOld,
  lost,
  lostIn,
  noRollout,
  observe,
  provesAt,
  type Rollout,
  trust,
  wish,
} from '../../core/rollout.ts';
import type { AgentId, Change, Slot } from '../../core/slot.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';

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

export class ImageRollout {
  #state: Rollout = noRollout;
  #trusted: Origin | null = null;
  #wanted: Origin | null = null;
  /** Fingerprints of sandboxes of the trusted origin, by group of slots, while another one is tried. */
  readonly #old = new Map<string, string>();
  /** The job of one of its agents has proved the wanted origin, which is still to be written down. */
  #isProved = false;

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

  get isUnproved(): boolean {
    return isUnproved(this.#state);
  }

  get backoff(): Rollout['backoff'] {
    return this.#state.backoff;
  }

  /** The slot that tries what is wanted; null while none does. */
  get canary(): string | null {
    return this.#state.canary;
  }

  isCanary(key: string): boolean {
    return this.#state.canary === key;
  }

  /** Whether this agent is made from what is wanted, as far as that is known: not before its sandbox is ready. */
  isTriedBy(agent: AgentId): boolean {
    return this.#state.agents.has(agent);
  }

  /** Whether the slot uses what was there before. */
  keepsOld(key: string): boolean {
    return keepsOld(this.#state, key);
  }

  /** What an earlier manager has stored. */
  restore(trusted: Origin): void {
    this.#trusted = trusted;
    this.#state = { ...noRollout, trusted: markOf(trusted) };
  }

  /**
   * Sandboxes should be made from this now. True if one slot has to try it first: `current`, the fingerprints until now, are then
   * those of the old one.
   */
  wish(origin: Origin, current: ReadonlyMap<string, string>): boolean {
    const mark = markOf(origin);
    const isOtherDriver = this.#trusted !== null && this.#trusted.driver !== origin.driver;
    const before: Rollout = isOtherDriver ? { ...this.#state, trusted: null } : this.#state;
    const wasProved = before.trusted !== null && before.wanted === before.trusted;
    if (isOtherDriver) this.#trusted = null;
    this.#wanted = origin;
    if (before === this.#state && mark === before.wanted) return false;
    this.#isProved = false;
    this.#state = wish(before, mark);
    const isTried = this.#trusted !== null && isUnproved(this.#state);
    if (!isTried) this.#old.clear();
    else if (wasProved) for (const [group, fingerprint] of current) this.#old.set(group, fingerprint);
    return isTried && wasProved;
  }

  /** Chooses who tries it. */
  choose(slots: readonly Slot[], by: Parameters<typeof choose>[2]): void {
    this.#state = choose(this.#state, slots, by);
  }

  /** The fingerprint of a sandbox of the old origin; null: it cannot be made any more. */
  learnOld(group: string, fingerprint: string | null): void {
    if (fingerprint === null) this.#old.delete(group);
    else this.#old.set(group, fingerprint);
  }

  oldOf(group: string): string | null {
    return this.#old.get(group) ?? null;
  }

  forgetOld(): void {
    this.#old.clear();
  }

  observe(slot: Slot, about: Parameters<typeof observe>[2]): void {
    this.#state = observe(this.#state, slot, about);
  }

  cleared(before: Slot, after: Slot): AgentId[] {
    return cleared(this.#state, before, after);
  }

  failed(failure: Failure, stage: 'prepare' | 'release', now: number, jitter: number): Backoff {
    const next = failed(this.#state, failure, stage, now, jitter);
    this.#state = next;
    return next.backoff;
  }

  /** The canary tries again at once. */
  forgive(): void {
    this.#state = forgiven(this.#state);
  }

  proved(): void {
    this.#isProved = isUnproved(this.#state);
  }

  /** The agent with the new image that lost its job in this step, and why; null if no agent did. */
  lostIn(changes: readonly Change[]): ReturnType<typeof lostIn> {
    return lostIn(this.#state, changes);
  }

  /** An agent with the new image lost its job. */
  lost(agent: AgentId): void {
    this.#state = lost(this.#state, agent);
  }

  /** Whether sandboxes of the old origin can still be made. */
  get canGoBack(): boolean {
    return this.#old.size > 0;
  }

  /** When it proves itself (core clock, ms); null: nobody knows yet. */
  get provesAt(): number | null {
    // Without its id nothing could be made from it again.
    if (this.#wanted?.id == null) return null;
    return this.#isProved ? 0 : provesAt(this.#state, this.canGoBack);
  }

  /** Every slot uses what is wanted. */
  trust(): void {
    this.#state = trust(this.#state);
    this.#trusted = this.#wanted;
    this.#isProved = false;
    this.#old.clear();
  }

  /** null while nothing is tried. */
  get update(): Update | null {
    const [slot, wanted, trusted] = [this.#state.canary, this.#wanted, this.#trusted];
    if (slot === null || wanted === null || trusted === null) return null;
    const [image, previous] = [nameOf(wanted, trusted), nameOf(trusted, wanted)];
    const { backoff } = this.#state;
    const failure = backoff?.last.message ?? null;
    const others = this.canGoBack
      ? `the other slots keep ${previous}`
      : `the other slots wait, because ${previous} is no longer there`;
    const tried =
      failure === null
        ? `${slot} tries the new ${image} first`
        : `the new ${image} failed on ${slot}: ${failure.replace(/\.$/, '')}`;
    return { slot, image, previous, failure, until: backoff?.until ?? null, others, text: `${tried}; ${others}` };
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
