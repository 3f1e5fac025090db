/**
 * What the API reports as it changes. Slots and jobs of the own queue are marked by what changes them. Nobody announces
 * changes of pools, devices, this host, and jobs that CI services keep, so these are compared every second, while somebody
 * listens. What changed while nobody did is found by the first comparison afterwards.
 */
import type { Changes, Kind, Subject } from '../contract/changes.ts';
import type { Events } from '../contract/manager.ts';
import type { DeviceView, Event, EventView, JobView, PoolView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { Reconciler } from './loop/reconciler.ts';
import { devicesHeld, poolHeads, type StatusParts, slotView } from './status.ts';

export interface EventsParts {
  readonly clock: Clock;
  readonly changes: Changes;
  readonly reconciler: Pick<Reconciler, 'slots' | 'slot' | 'poolOf' | 'placeOf'>;
  readonly status: StatusParts;
  readonly devices: () => readonly DeviceView[];
  /** Unfinished jobs that CI services keep. */
  readonly serviceJobs: () => readonly JobView[];
  readonly job: (id: string) => JobView | null;
  readonly host: () => Omit<EventView<'host'>, 'configChanged'>;
  readonly configChanged: () => Promise<string | null>;
  /** Called once for each kind of failure to look. */
  readonly failed: (error: Error) => void;
}

/** ms between comparisons, and how many of them there are for each look at the files of the config. */
const [lookEvery, looksPerConfig] = [1_000, 10];
/** Different failures that are told. */
const mostFailures = 10;

export class EventSource implements Events {
  readonly epoch: string;
  readonly #parts: EventsParts;
  /** As they were compared last, and what was compared; null before the first time. */
  #seen: ReadonlyMap<Subject, Seen> | null = null;
  #configChanged: string | null = null;
  #looks = 0;
  #listening = 0;
  #callOff = (): void => {};
  readonly #failures = new Set<string>();

  constructor(parts: EventsParts) {
    this.#parts = parts;
    this.epoch = parts.changes.epoch;
  }

  get head(): number {
    return this.#parts.changes.head;
  }

  after(cursor: number): ReturnType<Changes['after']> {
    return this.#parts.changes.after(cursor);
  }

  view(subject: Subject): Event {
    const { reconciler, status, host } = this.#parts;
    const at = subject.indexOf(' ');
    const [kind, name] = [subject.slice(0, at) as Kind, subject.slice(at + 1)];
    if (kind === 'slot') {
      const slot = reconciler.slot(name);
      const pool = name.slice(0, name.lastIndexOf('/'));
      return ['slot', { pool, key: name, slot: slot === undefined ? null : slotView(slot, status) }];
    }
    const event = this.#seen?.get(subject)?.event ?? null;
    if (event !== null) return event;
    const job = kind === 'job' ? this.#parts.job(name) : null;
    if (job !== null) {
      const { ahead: _, ...rest } = job;
      return ['job', rest];
    }
    return kind === 'host' ? ['host', { ...host(), configChanged: this.#configChanged }] : ['gone', { what: kind, name }];
  }

  listen(listener: () => void): () => void {
    const stop = this.#parts.changes.listen(listener);
    if (this.#listening++ === 0) this.#lookAgain();
    return () => {
      stop();
      if (--this.#listening === 0) this.#callOff();
    };
  }

  /**
   * Compares now, if somebody listens: after a request, whose effect people want to see, and before an answer, because what has
   * gone by the next comparison was shown then. `changed`: of the config, if that was read. Never throws: it runs in a timer, and
   * after requests that have been answered.
   */
  look(changed: string | null = this.#configChanged): void {
    if (this.#listening === 0) return;
    this.#configChanged = changed;
    try {
      this.#compare();
    } catch (error) {
      const failure = error instanceof Error ? error : new Error(String(error));
      if (this.#failures.has(failure.message) || this.#failures.size >= mostFailures) return;
      this.#failures.add(failure.message);
      this.#parts.failed(failure);
    }
  }

  #lookAgain(): void {
    this.look();
    if (this.#looks++ % looksPerConfig === 0)
      this.#parts.configChanged().then(
        (changed) => {
          this.#configChanged = changed;
        },
        () => {},
      );
    this.#callOff = this.#parts.clock.after(lookEvery, () => this.#lookAgain());
  }

  #compare(): void {
    const now = new Map<Subject, Seen>(this.#all());
    const before = this.#seen ?? now;
    this.#seen = now;
    for (const [subject, { key }] of now) if (before.get(subject)?.key !== key) this.#changed(subject, now);
    for (const subject of before.keys()) if (!now.has(subject)) this.#changed(subject, now);
  }

  #changed(subject: Subject, now: ReadonlyMap<Subject, Seen>): void {
    const { changes, reconciler } = this.#parts;
    changes.mark(subject);
    // A slot shows what is known about its job.
    const event = now.get(subject)?.event;
    const key = event?.[0] === 'job' && event[1].agent !== null ? reconciler.placeOf(event[1].agent) : undefined;
    if (key !== undefined) changes.mark(`slot ${key}`);
  }

  *#all(): Generator<[Subject, Seen]> {
    const { status, reconciler, devices, serviceJobs } = this.#parts;
    for (const [pool] of poolHeads(status)) yield [`pool ${pool.name}`, { key: textOf(pool), event: ['pool', pool] }];
    for (const device of devices()) yield [`device ${device.uuid}`, { key: JSON.stringify(device), event: ['device', device] }];
    for (const job of serviceJobs()) yield [`job ${job.id}`, { key: JSON.stringify(job), event: ['job', job] }];
    const host = { ...this.#parts.host(), configChanged: this.#configChanged };
    yield ['host ', { key: JSON.stringify(host), event: ['host', host] }];
    // Of a slot only what changes without a commit.
    for (const slot of reconciler.slots) {
      const held = devicesHeld(slot, reconciler.poolOf(slot.key), status);
      yield [`slot ${slot.key}`, { key: JSON.stringify([status.noteOf(slot.key), held]), event: null }];
    }
  }
}

interface Seen {
  /** What is compared. */
  readonly key: string;
  /** null if it is made when it is sent. */
  readonly event: Event | null;
}

/** Without what changes by itself. */
function textOf(pool: Omit<PoolView, 'slots'>): string {
  const { backoff, update } = pool;
  return JSON.stringify({
    ...pool,
    backoff: backoff && { ...backoff, retryIn: 0 },
    ...(update !== undefined && { update: { ...update, retryIn: 0 } }),
  });
}
