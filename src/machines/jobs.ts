/**
 * Jobs of the own queue on machines. Each goes to a machine that has joined and has a free slot, through the API of the machine's own
 * onejob (`job-attempt.ts`). This side alone asks, so a machine learns of no job but its own.
 *
 * The store has where each job is before the machine hears of it. After a restart of either side everything continues: a job that the
 * machine knows is followed from where its log ends. Only a job that the machine never had, or never began, goes back to the queue;
 * one whose machine is gone is lost.
 */
import { createHash } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { messageOf, OnejobError } from '../base/errors.ts';
import type { Job } from '../ci/own-queue/job.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { PoolConfig } from '../config/config.ts';
import { takenWithJob } from '../core/slot.ts';
import { type Machine, machinePlace } from '../store/machine.ts';
import { Attempt, type AttemptParts } from './job-attempt.ts';
import { type Link, longBreath, type MachineClient, MachineLinks } from './machine-links.ts';

export interface MachineJobsParts extends Pick<AttemptParts, 'clock' | 'log' | 'logs' | 'history'> {
  readonly version: string;
  readonly queue: Pick<OwnQueue, 'elsewhere' | 'settle' | 'onChange'>;
  /** Those of the own queue that machines have. */
  readonly pools: readonly Pick<PoolConfig, 'name' | 'elsewhere'>[];
  /** null: no such machine may live. */
  readonly machine: (run: string) => Machine | null;
  /** Whether jobs may begin: nobody has paused everything, and this onejob does not end. */
  readonly mayStart: () => boolean;
  /** The machine has so many jobs more, or fewer, than it has said. */
  readonly counted: (run: string, change: 1 | -1, pool: string) => void;
}

/** Jobs that are given out, each with its own commit, before others get a turn. */
const mostAtOnce = 32;

/** `name`: of the pool here, `pool`: on the machine. */
interface MachinePool {
  readonly name: string;
  readonly host: string;
  readonly pool: string;
}

export class MachineJobs {
  readonly #parts: MachineJobsParts;
  readonly #attemptParts: AttemptParts;
  readonly #pools: readonly MachinePool[];
  readonly #links: MachineLinks;
  readonly #attempts = new Map<string, Attempt>();
  /** A machine that did not begin a job gets no other one before this; as `clock.now()`. */
  readonly #notBefore = new Map<string, number>();
  readonly #running = new Set<Promise<void>>();
  readonly #closing = new AbortController();
  #stopListening = (): void => {};
  /** Whether it looks again at once, when others have had a turn. */
  #isLater = false;

  constructor(parts: MachineJobsParts) {
    const { clock, version } = parts;
    this.#parts = parts;
    this.#pools = parts.pools.flatMap(({ name, elsewhere: at }) => (at === undefined ? [] : [{ name, ...at }]));
    this.#links = new MachineLinks({ clock, version, looked: () => this.look() });
    this.#attemptParts = {
      ...parts,
      links: this.#links,
      closing: this.#closing.signal,
      mayBegin: (run, pool) => this.#mayBegin(run, pool),
      nameThere: (pool) => this.#nameThere(pool),
      notBegun: (run) => void this.#notBefore.set(run, clock.now() + longBreath),
    };
  }

  /** Continues with the jobs that machines had, and gives them others. */
  start(): void {
    const { queue, machine } = this.#parts;
    this.#stopListening = queue.onChange(({ id }) => this.#attempts.get(id)?.cancelled());
    for (const job of queue.elsewhere.open()) {
      const place = job.progress.agent === null ? null : machinePlace(job.progress.agent);
      if (place === null) continue;
      const attempt = this.#attemptOf(job, place.run, place.remote);
      if (machine(place.run) === null) attempt.leave('its machine is gone');
      this.#begin(attempt);
    }
    this.look();
  }

  /** Jobs wait, or a machine takes jobs again: gives waiting jobs to machines with a free slot. Never fails. */
  look(): void {
    if (this.#closing.signal.aborted || this.#isLater || !this.#parts.mayStart()) return;
    try {
      this.#give();
    } catch (error) {
      // The next look at a machine tries it again.
      this.#parts.log.warn('failed to record which machine has a job; retrying', { reason: messageOf(error) });
    }
  }

  /** The machine has its onejob behind this client until the returned function is called, or another one comes. `end` ends the connection. */
  attach(run: string, client: MachineClient, end: () => void): () => void {
    return this.#links.attach(run, client, end);
  }

  isConnected(run: string): boolean {
    return this.#links.get(run) !== undefined;
  }

  /** A machine has opened a connection to its onejob. False: nobody wants it. */
  connected(run: string, pipe: Duplex): boolean {
    if (this.#closing.signal.aborted || pipe.destroyed || this.#parts.machine(run) === null) return false;
    this.#links.connect(run, pipe);
    return true;
  }

  /** No machine of that run exists any more. */
  gone({ run, stage, why }: Pick<Machine, 'run' | 'stage' | 'why'>): void {
    this.#links.get(run)?.close();
    this.#notBefore.delete(run);
    const reason = stage === 'preempted' ? takenWithJob : `its machine is gone${why === null ? '' : `: ${why.replace(/\.$/, '')}`}`;
    for (const attempt of this.#attempts.values()) if (attempt.run === run) attempt.leave(reason);
  }

  /** Jobs of this queue that the machine has, of one pool or all. */
  on(run: string, pool: string | null = null): number {
    return [...this.#attempts.values()].filter((one) => one.run === run && (pool === null || one.pool === pool)).length;
  }

  /** Leaves all jobs where they are. */
  async close(): Promise<void> {
    this.#closing.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
    this.#stopListening();
    for (const link of this.#links.all()) link.close();
    await Promise.all(this.#running);
  }

  #nameThere(pool: string): string {
    return this.#pools.find(({ name }) => name === pool)?.pool ?? pool;
  }

  #mayBegin(run: string, pool: string): boolean {
    const { machine, clock } = this.#parts;
    const stuck = this.#links.get(run)?.stuck.get(this.#nameThere(pool)) ?? Number.POSITIVE_INFINITY;
    return machine(run)?.state === 'joined' && clock.now() < stuck;
  }

  #give(): void {
    const { elsewhere } = this.#parts.queue;
    let given = 0;
    for (const pool of this.#pools)
      for (let job = elsewhere.head(pool.name); job !== null; job = elsewhere.head(pool.name)) {
        const run = this.#links.all().find((link) => this.#hasRoom(link, pool))?.run;
        if (run === undefined) break;
        if (++given > mostAtOnce) {
          this.#lookLater();
          return;
        }
        const next = job.progress.attempt + 1;
        const remote = next === 1 ? job.id : createHash('sha256').update(`${job.id}:${next}`).digest('hex').slice(0, 12);
        const attempt = this.#attemptOf(job, run, remote);
        attempt.reserve();
        this.#begin(attempt);
      }
  }

  #hasRoom({ run, slots }: Link, { name, host, pool }: MachinePool): boolean {
    const { machine, clock } = this.#parts;
    return (
      machine(run)?.host === host &&
      this.#mayBegin(run, name) &&
      clock.now() >= (this.#notBefore.get(run) ?? 0) &&
      this.on(run, name) < (slots.get(pool) ?? 0)
    );
  }

  #lookLater(): void {
    this.#isLater = true;
    this.#parts.clock.after(0, () => {
      this.#isLater = false;
      this.look();
    });
  }

  #attemptOf(job: Job, run: string, remote: string): Attempt {
    return new Attempt(this.#attemptParts, job, run, remote);
  }

  #begin(attempt: Attempt): void {
    const { counted, log } = this.#parts;
    const { job, run, pool } = attempt;
    this.#attempts.set(job, attempt);
    counted(run, 1, pool);
    const over = attempt
      .follow()
      .catch((error: unknown) => {
        if (this.#closing.signal.aborted) return;
        log.warn('failed to track a job on a machine', { job, machine: run, reason: messageOf(error) });
      })
      .finally(() => {
        this.#running.delete(over);
        if (this.#attempts.get(job) === attempt) this.#attempts.delete(job);
        counted(run, -1, pool);
        this.look();
      });
    this.#running.add(over);
  }
}
