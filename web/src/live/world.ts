/**
 * What the daemon says now, as one value: read whole, then changed by its events. Values in, values out. What an event does not
 * touch stays the same object, so that only what changed is drawn again.
 */
import type { EventName, EventView, StatusView } from '../../../src/contract/schema.ts';
import type { Device, Host, Job, Pool, Slot } from '../views.ts';
import { deviceChange, jobChange, poolChange } from '../words/changes.ts';
import { type Names, namesOf } from '../words/names.ts';
import { isWaiting } from '../words/words.ts';

export interface World {
  readonly host: Host;
  readonly pools: readonly Pool[];
  /** By id: all that have not ended, and some that have. */
  readonly jobs: ReadonlyMap<string, Job>;
  readonly devices: readonly Device[];
  readonly names: Names;
  /** Newest first. */
  readonly changes: readonly Change[];
}

/** Something that happened while this page was open. */
export interface Change {
  readonly key: number;
  /** Wall clock, ms. */
  readonly at: number;
  readonly what: string;
  /** Job that it is about, if any. */
  readonly job: string | null;
  readonly bad: boolean;
}

type Named = Exclude<EventName, 'reset'>;
export type LiveEvent = { [N in Named]: { readonly name: N; readonly data: EventView<N> } }[Named];

/** Ended jobs and changes that are kept. */
const [endedKept, changesKept] = [100, 200];

/** How long after its end an event of an unknown job may still report that end, ms. */
const justEnded = 60_000;

/** `now`: wall clock of the daemon, ms. */
export function worldOf(
  status: StatusView,
  jobs: readonly Job[],
  devices: readonly Device[],
  now: number,
  before: World | null,
): World {
  const { pools, ...host } = status;
  return {
    host,
    pools: pools.map((pool) => ({ ...anchored(pool, now), slots: pool.slots.map((slot) => anchoredSlot(slot, now)) })),
    jobs: keptJobs(new Map(jobs.map((job) => [job.id, job]))),
    devices,
    names: namesOf(devices, before?.names),
    changes: before?.changes ?? [],
  };
}

/** @param now wall clock of the daemon, ms */
export function applied(world: World, events: readonly LiveEvent[], now: number): World {
  let { host, pools, devices, changes } = world;
  const jobs = new Map(world.jobs);
  const said = (what: string | null, more: { readonly job?: string; readonly bad?: boolean } = {}): void => {
    if (what === null) return;
    const change = { key: (changes[0]?.key ?? 0) + 1, at: now, what, job: more.job ?? null, bad: more.bad ?? false };
    changes = [change, ...changes.slice(0, changesKept - 1)];
  };
  for (const event of events) {
    switch (event.name) {
      case 'job': {
        const { id } = event.data;
        const before = jobs.get(id) ?? null;
        // What changes of a job long after its end, such as a hold, is not that it ends.
        const isOver = before === null && event.data.state === 'done' && now - (event.data.endedAt ?? now) > justEnded;
        const change = isOver ? null : jobChange(before, event.data);
        said(change?.what ?? null, { job: id, bad: change?.bad ?? false });
        // A job that ends becomes the newest one.
        if (event.data.state === 'done' && before?.state !== 'done') jobs.delete(id);
        jobs.set(id, placed(event.data, jobs.get(id)));
        break;
      }
      case 'device': {
        const old = devices.find(({ uuid }) => uuid === event.data.uuid);
        const change = deviceChange(old ?? null, event.data, world.names);
        said(change?.what ?? null, { bad: change?.bad ?? false });
        devices = old === undefined ? [...devices, event.data] : devices.map((device) => (device === old ? event.data : device));
        break;
      }
      case 'pool': {
        const old = pools.find(({ name }) => name === event.data.name);
        const change = poolChange(old ?? null, event.data);
        said(change?.what ?? null, { bad: change?.bad ?? false });
        const pool = { ...anchored(event.data, now), slots: old?.slots ?? [] };
        pools = old === undefined ? [...pools, pool] : pools.map((one) => (one === old ? pool : one));
        break;
      }
      case 'slot':
        pools = pools.map((pool) => {
          if (pool.name !== event.data.pool) return pool;
          return { ...pool, slots: slotsAfter(pool.slots, event.data.key, event.data.slot && anchoredSlot(event.data.slot, now)) };
        });
        break;
      case 'host':
        host = { ...host, ...event.data };
        break;
      case 'gone': {
        const { what, name } = event.data;
        if (what === 'job') jobs.delete(name);
        else if (what === 'pool') pools = pools.filter((pool) => pool.name !== name);
        else if (what === 'device') devices = devices.filter(({ uuid }) => uuid !== name);
        break;
      }
    }
  }
  const touched = events.some(({ name, data }) => name === 'job' || (name === 'gone' && data.what === 'job'));
  const names = devices === world.devices ? world.names : namesOf(devices, world.names);
  return { host, pools, jobs: touched ? keptJobs(jobs) : world.jobs, devices, names, changes };
}

/** The place of a waiting job is not part of its events. */
function placed(job: Job, before: Job | undefined): Job {
  if (before === undefined || !isWaiting(job)) return job;
  const { ahead, startsIn } = before;
  return { ...(ahead !== undefined && { ahead }), ...(startsIn !== undefined && { startsIn }), ...job };
}

const waitText = ({ reason, ahead, startsIn }: Job) => JSON.stringify([reason, ahead, startsIn]);

/**
 * What the daemon says now about jobs that wait. Nothing is known to have happened to them; only why they wait, their places and
 * their starts may differ.
 */
export function reasonsRead(world: World, read: readonly Job[]): World {
  const changed = read.filter((job) => {
    const known = world.jobs.get(job.id);
    return known !== undefined && known.state === job.state && isWaiting(job) && waitText(known) !== waitText(job);
  });
  if (changed.length === 0) return world;
  const jobs = new Map(world.jobs);
  for (const job of changed) jobs.set(job.id, job);
  return { ...world, jobs };
}

function slotsAfter(slots: readonly Slot[], key: string, slot: Slot | null): Slot[] {
  if (slot === null) return slots.filter((one) => one.key !== key);
  return slots.some((one) => one.key === key) ? slots.map((one) => (one.key === key ? slot : one)) : [...slots, slot];
}

/** Those that ended longest ago are dropped. */
function keptJobs(jobs: Map<string, Job>): Map<string, Job> {
  let surplus = -endedKept;
  for (const { state } of jobs.values()) if (state === 'done') surplus += 1;
  for (const { id, state } of jobs.values()) {
    if (surplus <= 0) break;
    if (state !== 'done') continue;
    jobs.delete(id);
    surplus -= 1;
  }
  return jobs;
}

function anchored<T extends Pick<Pool, 'backoff'>>(pool: T, now: number): T {
  return pool.backoff === null ? pool : { ...pool, backoff: { ...pool.backoff, retryIn: now + pool.backoff.retryIn } };
}

function anchoredSlot(slot: Slot, now: number): Slot {
  const from = (since: number | null) => (since === null ? null : now - since);
  return {
    ...slot,
    standby: { ...slot.standby, since: from(slot.standby.since) },
    agent: { ...slot.agent, since: from(slot.agent.since) },
  };
}
