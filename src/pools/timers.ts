/** Timers by key: at most one each, armed for a time on the core's clock. */
import type { Clock } from '../core/clock.ts';

export class Timers {
  readonly #clock: Clock;
  readonly #armed = new Map<string, { readonly at: number; readonly cancel: () => void }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Calls `fire` at `at`; null calls it off. The same time again changes nothing. */
  arm(key: string, at: number | null, fire: () => void): void {
    const before = this.#armed.get(key);
    if (before !== undefined && before.at === at) return;
    before?.cancel();
    this.#armed.delete(key);
    if (at === null) return;
    const cancel = this.#clock.after(at - this.#clock.now(), () => {
      this.#armed.delete(key);
      fire();
    });
    this.#armed.set(key, { at, cancel });
  }

  clear(): void {
    for (const { cancel } of this.#armed.values()) cancel();
    this.#armed.clear();
  }
}
