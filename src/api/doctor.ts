/**
 * What `doctor` finds, for many who ask. Looking takes up to a minute and starts sandboxes, so those who ask at the same time get one
 * result, and a login that may only read cannot have it done again and again.
 */
import { abortable } from '../base/abortable.ts';
import type { Manager } from '../contract/manager.ts';
import type { FindingView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { AccessRole } from './caller.ts';

/** ms that readers get the same result. */
const kept = 60_000;

export class Doctor {
  readonly #look: Manager['doctor'];
  readonly #clock: Clock;
  readonly #stop = new AbortController();
  #last: { readonly found: FindingView[]; readonly at: number } | null = null;
  #looking: Promise<FindingView[]> | null = null;

  constructor(look: Manager['doctor'], clock: Clock) {
    this.#look = look;
    this.#clock = clock;
  }

  /** A look goes on when those who asked have gone: the next ones get its result. @throws as `Manager.doctor` */
  async ask(kind: AccessRole | 'socket', signal: AbortSignal): Promise<FindingView[]> {
    if (kind === 'read' && this.#last !== null && this.#clock.now() < this.#last.at + kept) return this.#last.found;
    this.#looking ??= this.#begin();
    return abortable(this.#looking, signal);
  }

  /** Ends a look. */
  close(): void {
    this.#stop.abort();
  }

  async #begin(): Promise<FindingView[]> {
    try {
      const found = await this.#look(this.#stop.signal);
      this.#last = { found, at: this.#clock.now() };
      return found;
    } finally {
      this.#looking = null;
    }
  }
}
