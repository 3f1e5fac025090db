/** Holds on pools: who paused them, and why. */

/** Describes a pause as a clause: `paused by maintenance`, `nothing new starts: disk: 3 % free`. */
export function pausedText(details: readonly string[]): string {
  const text = details.join('; ');
  return text.startsWith('by ') ? `paused ${text}` : `nothing new starts: ${text}`;
}

/** Kinds of reasons at the beginning of a daemon, and of pools that a temporary one does not have. */
const passing: ReadonlySet<string> = new Set(['starting', 'look', 'temporary']);

/** A pause with reasons: it holds while there is any, and each holder releases only its own. */
export class Pause {
  readonly #held = new Map<string, { readonly detail: string; readonly closes: boolean }>();

  /**
   * Holds `reason`; `detail` is for people. `closes`: agents that wait for a job at their CI service may take none either. True
   * if that changed anything.
   */
  hold(reason: string, detail: string = reason, { closes = false }: { readonly closes?: boolean } = {}): boolean {
    const before = this.#held.get(reason);
    if (before?.detail === detail && before.closes === closes) return false;
    this.#held.set(reason, { detail, closes });
    return true;
  }

  /** True if `reason` was held. */
  release(reason: string): boolean {
    return this.#held.delete(reason);
  }

  get any(): boolean {
    return this.#held.size > 0;
  }

  get closes(): boolean {
    return [...this.#held.values()].some(({ closes }) => closes);
  }

  /** The held reasons, with details for people. */
  get held(): (readonly [reason: string, detail: string])[] {
    return [...this.#held].map(([reason, { detail }]) => [reason, detail]);
  }

  /** Whether people have paused it, and what onejob itself holds it for, as kinds of reasons such as `disk`. */
  get holders(): { readonly people: boolean; readonly own: readonly string[] } {
    const reasons = [...this.#held.keys()];
    const own = reasons.flatMap((reason) => (reason.startsWith(person) ? [] : [reason.split(':', 1)[0] ?? reason]));
    return { people: own.length < reasons.length, own };
  }

  /** Whether something has to be repaired: people pause on purpose, and the beginning of a daemon passes. */
  get isOutage(): boolean {
    return this.holders.own.some((kind) => !passing.has(kind));
  }

  /** Details for people, one line per reason. */
  get details(): string[] {
    return Array.from(this.#held.values(), ({ detail }) => detail);
  }
}

/** Prefix of reasons that people chose, to tell them from onejob's own. */
export const person = 'person:';
