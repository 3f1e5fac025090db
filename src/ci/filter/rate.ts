/** A token bucket (generic cell rate algorithm): calls beyond a burst wait; none is refused. */
export class Rate {
  /** ms for one call. */
  readonly #each: number;
  readonly #burst: number;
  #due = Number.NEGATIVE_INFINITY;

  constructor(perSecond: number, burst: number) {
    this.#each = 1000 / perSecond;
    this.#burst = burst;
  }

  /** @param now monotonic, ms @returns how long this call must wait, ms */
  take(now: number): number {
    const wait = Math.max(0, this.#due - this.#burst * this.#each - now);
    this.#due = Math.max(this.#due, now) + this.#each;
    return wait;
  }
}
