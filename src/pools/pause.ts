/** `paused by maintenance`, `paused: disk: 3 % free`: what holds a pause, as a clause. */
export function pausedText(details: readonly string[]): string {
  const text = details.join('; ');
  return text.startsWith('by ') ? `paused ${text}` : `paused: ${text}`;
}

/** Pause by reason: something is paused while anybody holds a reason, and a holder can release only its own. */
export class Pause {
  readonly #held = new Map<string, string>();
  readonly #closing = new Set<string>();

  /**
   * Holds `reason`; `detail` is what a person reads. `closes`: agents that wait for a job at their CI service are to take none
   * either. True when that changed anything.
   */
  hold(reason: string, detail: string = reason, { closes = false }: { readonly closes?: boolean } = {}): boolean {
    if (this.#held.get(reason) === detail && this.#closing.has(reason) === closes) return false;
    if (closes) this.#closing.add(reason);
    else this.#closing.delete(reason);
    this.#held.set(reason, detail);
    return true;
  }

  /** True when `reason` was held. */
  release(reason: string): boolean {
    this.#closing.delete(reason);
    return this.#held.delete(reason);
  }

  get any(): boolean {
    return this.#held.size > 0;
  }

  get closes(): boolean {
    return this.#closing.size > 0;
  }

  /** Who holds it. */
  get reasons(): string[] {
    return [...this.#held.keys()];
  }

  /** What a person reads, but for holders whose reason begins so. */
  detailsBut(prefix: string): string[] {
    return [...this.#held].flatMap(([reason, detail]) => (reason.startsWith(prefix) ? [] : [detail]));
  }

  /** What a person reads, one line per holder. */
  get details(): string[] {
    return [...this.#held.values()];
  }
}
