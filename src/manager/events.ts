/**
 * What the API tells of as it changes. Slots and jobs of the own queue are marked by what changes them. Nobody announces
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

export function createEvents(parts: EventsParts) {
  const { clock, changes, reconciler, status } = parts;
  /** As they were compared last, and what was compared; null before the first time. */
  let seen: ReadonlyMap<Subject, Seen> | null = null;
  let configChanged: string | null = null;
  let looks = 0;
  let listening = 0;
  let callOff = (): void => {};
  const failures = new Set<string>();

  /** Never throws: it runs in a timer, and after requests that have been answered. */
  function look(): void {
    try {
      compare();
    } catch (error) {
      const failure = error instanceof Error ? error : new Error(String(error));
      if (failures.has(failure.message) || failures.size >= mostFailures) return;
      failures.add(failure.message);
      parts.failed(failure);
    }
  }

  function compare(): void {
    const now = new Map<Subject, Seen>(all());
    const before = seen ?? now;
    seen = now;
    for (const [subject, { key }] of now) if (before.get(subject)?.key !== key) changed(subject, now);
    for (const subject of before.keys()) if (!now.has(subject)) changed(subject, now);
  }

  function changed(subject: Subject, now: ReadonlyMap<Subject, Seen>): void {
    changes.mark(subject);
    // A slot shows what is known about its job.
    const event = now.get(subject)?.event;
    const key = event?.[0] === 'job' && event[1].agent !== null ? reconciler.placeOf(event[1].agent) : undefined;
    if (key !== undefined) changes.mark(`slot ${key}`);
  }

  function* all(): Generator<[Subject, Seen]> {
    for (const [pool] of poolHeads(status)) yield [`pool ${pool.name}`, { key: textOf(pool), event: ['pool', pool] }];
    for (const device of parts.devices())
      yield [`device ${device.uuid}`, { key: JSON.stringify(device), event: ['device', device] }];
    for (const job of parts.serviceJobs()) yield [`job ${job.id}`, { key: JSON.stringify(job), event: ['job', job] }];
    const host = { ...parts.host(), configChanged };
    yield ['host ', { key: JSON.stringify(host), event: ['host', host] }];
    // Of a slot only what changes without a commit.
    for (const slot of reconciler.slots) {
      const held = devicesHeld(slot, reconciler.poolOf(slot.key), status);
      yield [`slot ${slot.key}`, { key: JSON.stringify([status.noteOf(slot.key), held]), event: null }];
    }
  }

  function lookAgain(): void {
    look();
    if (looks++ % looksPerConfig === 0)
      parts.configChanged().then(
        (changed) => {
          configChanged = changed;
        },
        () => {},
      );
    callOff = clock.after(lookEvery, lookAgain);
  }

  function view(subject: Subject): Event {
    const at = subject.indexOf(' ');
    const [kind, name] = [subject.slice(0, at) as Kind, subject.slice(at + 1)];
    if (kind === 'slot') {
      const slot = reconciler.slot(name);
      const pool = name.slice(0, name.lastIndexOf('/'));
      return ['slot', { pool, key: name, slot: slot === undefined ? null : slotView(slot, status) }];
    }
    const event = seen?.get(subject)?.event ?? null;
    if (event !== null) return event;
    const job = kind === 'job' ? parts.job(name) : null;
    if (job !== null) {
      const { ahead: _, ...rest } = job;
      return ['job', rest];
    }
    return kind === 'host' ? ['host', { ...parts.host(), configChanged }] : ['gone', { what: kind, name }];
  }

  return {
    epoch: changes.epoch,
    get head() {
      return changes.head;
    },
    after: changes.after,
    view,
    listen(listener: () => void): () => void {
      const stop = changes.listen(listener);
      if (listening++ === 0) lookAgain();
      return () => {
        stop();
        if (--listening === 0) callOff();
      };
    },
    /**
     * Compares now, if somebody listens: after a request, whose effect people want to see, and before an answer, because what has
     * gone by the next comparison was shown then. `changed`: of the config, if that was read.
     */
    look(changed: string | null = configChanged): void {
      if (listening === 0) return;
      configChanged = changed;
      look();
    },
  } satisfies Events & { look(): void };
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
