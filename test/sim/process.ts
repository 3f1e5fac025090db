/**
 * A process of the simulated host: what one manager does, it does in here. Killed, it has no effect any more: its timers do
 * not fire, its calls never end, its writes throw. It can be killed between any two effects, for each effect passes `point`.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { Clock } from '../../src/core/clock.ts';
import type { SimTime } from './time.ts';

/** Thrown into a killed process wherever it tries to have an effect. Nobody outside ever sees it. */
export class Killed extends Error {
  override name = 'Killed';
}

/** Kinds of effects: a commit of the store, a sync, a change of a file, a call of a runtime, a request to a service, a device's lock. */
export type Effect = 'commit' | 'sync' | 'file' | 'runtime' | 'service' | 'device';

const storage = new AsyncLocalStorage<SimProcess>();

/** The process that runs now; undefined for the world. */
export function currentProcess(): SimProcess | undefined {
  return storage.getStore();
}

/** Runs `fn` as the world, also where a process has caused it: nothing of it is an effect of that process. */
export function asWorld<T>(fn: () => T): T {
  return storage.exit(fn);
}

export class SimProcess implements Clock {
  /** Told before and after each effect; may kill. */
  readonly #passes: (effect: Effect) => void;
  readonly #time: SimTime;
  readonly #timers = new Set<() => void>();
  readonly #ends = new Set<() => void>();
  #isDead = false;

  constructor(time: SimTime, passes: (effect: Effect) => void = () => {}) {
    this.#time = time;
    this.#passes = passes;
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  now = (): number => this.#time.now;

  wall = (): number => this.#time.wall;

  after = (ms: number, fn: () => void): (() => void) => {
    if (this.#isDead) return () => {};
    const cancel = this.#time.after(ms, () => {
      this.#timers.delete(cancel);
      this.run(fn);
    });
    this.#timers.add(cancel);
    return () => {
      this.#timers.delete(cancel);
      cancel();
    };
  };

  /** Runs `fn` as this process. What it throws because it was killed is nobody's concern. */
  run(fn: () => void): void {
    try {
      storage.run(this, fn);
    } catch (error) {
      if (!this.#isDead) throw error;
    }
  }

  /** Runs `work` as this process; never settles when it is killed meanwhile. */
  async begin<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await storage.run(this, work);
    } catch (error) {
      if (this.#isDead) return await new Promise<never>(() => {});
      throw error;
    }
  }

  /** Stands before and after each effect. @throws Killed when the process is dead, or dies here */
  point(effect: Effect): void {
    if (!this.#isDead) this.#passes(effect);
    if (this.#isDead) throw new Killed(`killed at a ${effect}`);
  }

  /** Calls `fn` when it is killed; the returned function calls that off. */
  onKill(fn: () => void): () => void {
    this.#ends.add(fn);
    return () => this.#ends.delete(fn);
  }

  kill(): void {
    if (this.#isDead) return;
    this.#isDead = true;
    for (const cancel of this.#timers) cancel();
    this.#timers.clear();
    for (const fn of this.#ends) fn();
    this.#ends.clear();
  }
}
