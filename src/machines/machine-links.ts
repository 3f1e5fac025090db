/**
 * The connections to the onejobs of machines. The machine dials, see `join/tunnel.ts`, and this side alone asks. What a machine answers is
 * not trusted.
 */
import type { Duplex } from 'node:stream';
import { type Client, createClient } from '../api/client.ts';
import { openTunnel } from '../api/tunnel.ts';
import { Waiters } from '../base/abortable.ts';
import { hasCode } from '../base/errors.ts';
import type { StatusView } from '../contract/schema.ts';
import { type Clock, doubling, sleep } from '../core/clock.ts';
import { createPace } from '../http/pace.ts';

/** What an attempt asks of its machine; null: the machine does not answer now. */
export type MachineClient = Pick<
  Client,
  'status' | 'job' | 'putWorkspace' | 'submit' | 'hold' | 'logs' | 'settled' | 'artifacts' | 'cancel'
>;

export interface Link {
  readonly run: string;
  readonly client: MachineClient;
  /** By the machine's name of the pool: how many jobs it takes at a time. Empty while it does not answer. */
  slots: ReadonlyMap<string, number>;
  /** By the machine's name of the pool: from when on its waiting jobs are taken back, as `clock.now()`. As it last answered. */
  stuck: ReadonlyMap<string, number>;
  close(): void;
}

export interface MachineLinksParts {
  readonly clock: Clock;
  readonly version: string;
  /** Called after a machine has said what it takes. */
  readonly looked: () => void;
}

/**
 * ms until a failed call is made again, and until a machine that refused a job gets another one, or loses what waits in a pool that
 * is paused or backs off: its next try may succeed, and without a job there may be none.
 */
export const [breath, longBreath] = [1_000, 30_000];
/** ms after which an answer, or its connection for a job that was not submitted, is given up. */
export const patience = 30_000;
/** ms between two looks at a machine, and until the next look at one that takes no job now. */
const [lookEvery, lookSoon] = [20_000, 5_000];
/** Bytes of an answer of a machine. */
const mostAnswer = 4 * 2 ** 20;
/** Slots of one pool of one machine that count, whatever it says. */
const mostSlots = 512;

export class MachineLinks {
  readonly #parts: MachineLinksParts;
  readonly #links = new Map<string, Link>();
  readonly #linked = new Waiters();

  constructor(parts: MachineLinksParts) {
    this.#parts = parts;
  }

  get(run: string): Link | undefined {
    return this.#links.get(run);
  }

  all(): readonly Link[] {
    return [...this.#links.values()];
  }

  /** Resolves when a machine is connected, at `wake`, or when `signal` aborts. */
  next(signal: AbortSignal): Promise<void> {
    return this.#linked.next(signal);
  }

  wake(): void {
    this.#linked.wake();
  }

  /** The machine has its onejob behind this client until the returned function is called, or another one comes. `end` ends the connection. */
  attach(run: string, client: MachineClient, end: () => void): () => void {
    this.#links.get(run)?.close();
    const over = new AbortController();
    const close = (): void => {
      if (over.signal.aborted) return;
      over.abort();
      if (this.#links.get(run) === link) this.#links.delete(run);
      end();
    };
    const link: Link = { run, client, slots: new Map(), stuck: new Map(), close };
    this.#links.set(run, link);
    this.#linked.wake();
    void this.#watch(link, over.signal);
    return close;
  }

  /** The machine has opened a connection. */
  connect(run: string, pipe: Duplex): void {
    const { clock, version } = this.#parts;
    const tunnel = openTunnel(pipe, createPace(clock));
    const client = createClient({ socket: `machine ${run}`, dial: tunnel.dial, version, patience, mostAnswer });
    const close = this.attach(run, client, () => {
      tunnel.close();
      client.close();
      pipe.destroy();
    });
    // One that has only ended would stay half open.
    pipe
      .on('error', () => {})
      .once('end', close)
      .once('close', close);
  }

  /** Looks at the machine from time to time: a broken connection says nothing for long. */
  async #watch(link: Link, signal: AbortSignal): Promise<void> {
    const { clock, looked } = this.#parts;
    while (!signal.aborted) {
      try {
        read(link, await link.client.status(), clock.now());
        looked();
      } catch (error) {
        link.slots = new Map();
        if (hasCode(error, 'E_DAEMON_SILENT')) link.close();
      }
      await sleep(clock, link.slots.size === 0 ? lookSoon : lookEvery, signal);
    }
  }

  /**
   * Repeats what may be done twice until the machine has answered. `connected`: waits for its connection. `failed`: called with the
   * error of a call and how many came in a row; what it throws ends this.
   * @throws the reason of `signal`, and what `connected` and `failed` throw
   */
  async use<T>(
    run: string,
    signal: AbortSignal,
    work: (client: MachineClient) => Promise<T>,
    failed: (error: unknown, failures: number) => void,
    connected = (): Promise<void> => this.next(signal),
  ): Promise<T> {
    for (let failures = 1; ; failures++) {
      signal.throwIfAborted();
      const link = this.#links.get(run);
      if (link === undefined) {
        await connected();
        continue;
      }
      try {
        return await work(link.client);
      } catch (error) {
        signal.throwIfAborted();
        failed(error, failures);
        await sleep(this.#parts.clock, doubling(breath, longBreath, failures), signal);
      }
    }
  }
}

function read(link: Link, { pools }: Pick<StatusView, 'pools'>, now: number): void {
  const slots = new Map<string, number>();
  const stuck = new Map<string, number>();
  for (const { name, paused, backoff, draining, leaving, slots: all } of pools)
    if (draining || leaving) stuck.set(name, now);
    else if (paused.length > 0 || backoff !== null) stuck.set(name, link.stuck.get(name) ?? now + longBreath);
    else slots.set(name, Math.min(all.length, mostSlots));
  [link.slots, link.stuck] = [slots, stuck];
}
