/** The steps of an acceptance: what each was, how it ended, how long it took, and what shows that. */
import { messageOf, OnejobError } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';

export interface AcceptanceStep {
  readonly step: string;
  /** `warning`: a person should read it. `skipped`: it could not be tried. */
  readonly result: 'ok' | 'warning' | 'failed' | 'skipped';
  /** ms */
  readonly took: number;
  /** One or more sentences or phrases. */
  readonly evidence: string;
}

/** What happened is not what should have. */
export class Unmet extends Error {}
/** No further step makes sense. */
export class Over extends Error {}

/** What a step found; without a result it is `ok`. */
export type Outcome = string | readonly [result: AcceptanceStep['result'], evidence: string];

export interface StepsParts {
  readonly clock: Clock;
  /** Called at the end of each step. */
  ended(step: AcceptanceStep): Promise<void>;
  /** What continues now, for a person who waits. */
  waits(text: string): void;
  /** Ends the steps. */
  readonly signal: AbortSignal;
  /** Continues after a step that failed. */
  readonly keepGoing: boolean;
}

export class Steps {
  readonly done: AcceptanceStep[] = [];
  readonly #parts: StepsParts;

  constructor(parts: StepsParts) {
    this.#parts = parts;
  }

  async add(step: AcceptanceStep): Promise<void> {
    this.done.push(step);
    await this.#parts.ended(step);
  }

  /** Whether it succeeded. `since`: ms since it began. @throws Over */
  async step(name: string, work: (since: () => number) => Promise<Outcome>): Promise<boolean> {
    const { clock, signal, waits } = this.#parts;
    const began = clock.now();
    const since = (): number => clock.now() - began;
    const tell = (result: AcceptanceStep['result'], evidence: string) => this.add({ step: name, result, took: since(), evidence });
    waits(name);
    try {
      signal.throwIfAborted();
      const outcome = await work(since);
      await (typeof outcome === 'string' ? tell('ok', outcome) : tell(...outcome));
      return true;
    } catch (error) {
      if (error instanceof Over) throw error;
      if (signal.aborted) {
        await tell('failed', 'It was interrupted.');
        throw new Over();
      }
      if (!(error instanceof OnejobError || error instanceof Unmet)) throw error;
      const hint = error instanceof OnejobError ? error.hint : null;
      await tell('failed', `${messageOf(error)}${hint === null ? '' : ` ${hint}`}`);
      if (!this.#parts.keepGoing) throw new Over();
      return false;
    }
  }
}

/** ms, as `12 s` or `3 min 20 s`. */
export function spoken(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min${seconds % 60 === 0 ? '' : ` ${seconds % 60} s`}`;
}
