/**
 * How many jobs wait in each queue, for people and for hosts in clouds, asked once for all pools of a service. The number is that of the
 * whole queue: all pools and hosts that use it show the same.
 */
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, doubling, sleep } from '../../core/clock.ts';
import { LaterError, type QueueCounts, type ServiceApi } from './api.ts';
import type { BuildkiteServiceConfig } from './type.ts';

/** `pollEvery` holds unless the service wants more. `random`: [0, 1), spreads the retries of many hosts. */
export interface JobCounterParts {
  readonly token: () => Promise<string>;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  readonly api: Pick<ServiceApi, 'counts'>;
  readonly config: Pick<BuildkiteServiceConfig, 'name' | 'pollEvery'>;
  readonly random?: () => number;
}

/** ms. Longest wait between two questions while the service is away. */
const longestWait = 5 * 60_000;
/** ms until a token that was refused is tried again; another one is at once. */
const refusedWait = 10 * 60_000;
/** Counts are shown for so many missed answers, and at least for so many ms. */
const [missed, youngest] = [3, 60_000];

export class JobCounter {
  readonly #parts: JobCounterParts;
  /** The last answer, and when it came (the clock's `now`). */
  #last: { readonly counts: QueueCounts; readonly at: number } | null = null;
  #failures = 0;
  /** A refused token, and until when it is not sent again. */
  #refused: { readonly token: string; readonly until: number } | null = null;
  /** Code of the failure that was logged last. */
  #logged: string | null = null;

  constructor(parts: JobCounterParts) {
    this.#parts = parts;
  }

  /** null: unknown, or too old. */
  waiting(queue: string): number | null {
    const last = this.#last;
    if (last === null || this.#parts.clock.now() - last.at > Math.max(missed * this.#interval(), youngest)) return null;
    const { scheduled, known } = last.counts;
    return scheduled.get(queue) ?? (known.has(queue) ? 0 : null);
  }

  /** Queues in which jobs wait and that have no agent, not even of another host, with how many jobs that are. */
  unserved(): ReadonlyMap<string, number> {
    const { scheduled, served } = this.#last?.counts ?? { scheduled: new Map<string, number>(), served: new Set<string>() };
    return new Map([...scheduled].filter(([queue, jobs]) => jobs > 0 && !served.has(queue) && this.waiting(queue) !== null));
  }

  /** Asks until `signal` aborts; to be called once. `asked`: called after each answer or failure. */
  async follow(signal: AbortSignal, asked: () => void = () => {}): Promise<void> {
    while (!signal.aborted) {
      const wait = await this.#ask(signal);
      if (!signal.aborted) asked();
      await sleep(this.#parts.clock, wait, signal);
    }
  }

  #interval(): number {
    return Math.max(this.#parts.config.pollEvery, this.#last?.counts.pollAfter ?? 0);
  }

  /** Answers how long to wait, ms. */
  async #ask(signal: AbortSignal): Promise<number> {
    const { api, config, clock, log } = this.#parts;
    let token: string | null = null;
    try {
      token = (await this.#parts.token()).trim();
      if (this.#refused?.token === token && clock.now() < this.#refused.until) return this.#interval();
      const { value } = await api.counts(token, signal);
      this.#last = { counts: value, at: clock.now() };
      if (this.#logged !== null) log.info('counting the jobs works again', { service: config.name });
      this.#failures = 0;
      this.#refused = null;
      this.#logged = null;
      return this.#interval();
    } catch (error) {
      if (!signal.aborted && !(error instanceof OnejobError)) log.error('cannot count jobs', { service: config.name, error });
      return this.#failed(error, token);
    }
  }

  #failed(error: unknown, token: string | null): number {
    const { config, clock, log, random = Math.random } = this.#parts;
    const { code, message } = error instanceof OnejobError ? error : toFailure(error);
    const isRefused = code === 'E_CI_CREDENTIAL' || code === 'E_CI_DENIED';
    if (isRefused && token !== null) this.#refused = { token, until: clock.now() + refusedWait };
    // The hold of its pools reports outages.
    if (isRefused || code === 'E_SECRET' || code === 'E_CI_ANSWER') {
      if (this.#logged !== code) log.warn('failed to count the jobs', { service: config.name, reason: message });
      this.#logged = code;
    }
    if (isRefused || code === 'E_SECRET') return this.#interval();
    this.#failures += 1;
    const backOff = doubling(this.#interval(), longestWait, this.#failures) * (1 + random() / 4);
    return Math.max(this.#interval(), error instanceof LaterError ? error.retryAfter : backOff);
  }
}
