/** Pause by reason: something is paused while anybody holds a reason, and a holder can release only its own. */
export class Pause {
  readonly #held = new Map<string, string>();

  /** Holds `reason`; `detail` is what a person reads. True when that changed anything. */
  hold(reason: string, detail: string = reason): boolean {
    if (this.#held.get(reason) === detail) return false;
    this.#held.set(reason, detail);
    return true;
  }

  /** True when `reason` was held. */
  release(reason: string): boolean {
    return this.#held.delete(reason);
  }

  get any(): boolean {
    return this.#held.size > 0;
  }

  /** What a person reads, one line per holder. */
  get details(): string[] {
    return [...this.#held.values()];
  }
}
