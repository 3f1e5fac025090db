/** The runner's half of the stand-in without a process: what a test does in place of an agent. */
import type { Conclusion, Job, Listener, Runner, World } from './github-world.ts';

/** The files that a JIT configuration holds (runner, `Runner.cs`): base64 of JSON of base64 of JSON. */
export function jitFiles(encoded: string): Readonly<Record<string, Readonly<Record<string, unknown>>>> {
  const files = JSON.parse(Buffer.from(encoded, 'base64').toString()) as Record<string, string>;
  return Object.fromEntries(
    Object.entries(files).map(([name, text]) => [name, JSON.parse(Buffer.from(text, 'base64').toString()) as never]),
  );
}

export class PlayedRunner {
  readonly row: Runner;
  readonly #world: World;
  readonly #lose: () => 'idle' | 'gone' | null;
  /** Told to stop its job. */
  isCancelled = false;
  #isAlive = true;
  #offered: Job | null = null;

  constructor(world: World, row: Runner, lose: () => 'idle' | 'gone' | null, version: string) {
    this.#world = world;
    this.#lose = lose;
    this.row = row;
    row.version = version;
    const listener: Listener = {
      isListening: () => this.#isAlive,
      isSeen: () => this.#isAlive,
      keepsJob: () => this.#isAlive,
      hear: (message) => {
        if (message.kind === 'cancel') this.isCancelled = true;
        else this.#offered = message.job;
      },
    };
    row.listener = listener;
    world.dispatch();
  }

  /** The job that it was offered and has not taken; it goes back after 60 s. */
  get offered(): Job | null {
    return this.#offered?.runner === this.row && this.#offered.status === 'queued' ? this.#offered : null;
  }

  /** Acquires what it was offered. Null: there is nothing, or it was lost. */
  take(): Job | null {
    const job = this.offered;
    this.#offered = null;
    if (job === null) return null;
    const lost = this.#lose();
    if (lost !== null) {
      if (lost === 'gone') this.#world.unregister(this.row);
      if (lost === 'gone') this.#world.giveBack(job);
      else this.#world.cancel(job);
      return null;
    }
    this.#world.start(job);
    return job;
  }

  /** Ends its job, and with it the registration; the process ends too. */
  finish(conclusion: Conclusion = 'success', log = '', failedStep?: string): void {
    const { job } = this.row;
    if (job?.status !== 'in_progress') throw new Error(`Runner ${this.row.name} has no job to finish.`);
    job.log += log;
    this.#isAlive = false;
    this.#world.end(job, conclusion, false, failedStep);
  }

  /** The process is dead, and says nothing more: GitHub ends its job at most 10 minutes later. The row stays. */
  die(): void {
    this.#isAlive = false;
  }

  /** The process ends in an orderly way without a job: offline at once. */
  leave(): void {
    this.#isAlive = false;
    this.row.listener = null;
  }
}
