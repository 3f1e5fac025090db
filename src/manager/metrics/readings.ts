/** What `/metrics` says of the state as it is now. It counts nothing, so a restart loses nothing. */

import type { StrandedJobs } from '../../ci/own-queue/stranded.ts';
import type { DeviceView } from '../../contract/schema.ts';
import { type Slot, stateName } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { DeviceAccess } from '../devices/device-views.ts';
import { type Pool, poolOf } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import type { LabelsOf, NameOf } from './definitions.ts';

export type Reading = { [N in NameOf<'gauge'>]: readonly [name: N, labels: LabelsOf<N>, value: number] }[NameOf<'gauge'>];

export interface ReadingParts {
  readonly reconciler: Pick<Reconciler, 'pools' | 'slots' | 'pause'>;
  /** null if no pool needs devices. */
  readonly devices: Pick<DeviceAccess, 'use' | 'views'> | null;
  /** All CI services but the own queue. */
  readonly services: readonly Pick<CiService, 'serviceJobs'>[];
  /** Since when the oldest job waits that each pool of the own queue could start, wall clock, ms. */
  readonly waitingSince: () => ReadonlyMap<string, number>;
  /** Waiting jobs of the own queue, also those of pools that the config no longer has. */
  readonly stranded: () => StrandedJobs;
}

const agentStates = ['registering', 'releasing', 'idle', 'retiring', 'busy', 'stopping', 'killing', 'proving'] as const;
const states = ['preparing', 'standby', ...agentStates, 'leaving'] as const;
const deviceStates = ['free', 'leased', 'occupied', 'reserved', 'quarantined', 'missing', 'unknown', 'elsewhere'] as const;
const bytesPerMiB = 2 ** 20;

/** `wall`: ms since the epoch. */
export function readings(parts: ReadingParts, wall: number): Reading[] {
  const { reconciler, devices } = parts;
  const { slots } = reconciler;
  const byPool = Map.groupBy(slots, ({ key }) => poolOf(key));
  const since = waitingSince(parts);
  return [
    ...[...Map.groupBy(reconciler.pools, labelOf)].flatMap(([name, pools]) => {
      const pool = pools.find(({ leaving }) => !leaving);
      const about = { name, slots: byPool.get(name) ?? [], oldest: wall - (since.get(name) ?? wall) };
      return pool === undefined ? ofLeaving(about) : ofPool(pool, about, reconciler.pause.holders.own);
    }),
    ...strandedJobs(parts, since, wall),
    ...(devices === null ? [] : [...ofDevices(devices.views.all()), ...ofJobs(slots, devices)]),
  ];
}

/** The name of a pool in labels. Each slot that has left the config is a pool of its own, which keeps the name that it had. */
function labelOf({ config, leaving }: Pool): string {
  return leaving ? poolOf(config.name) : config.name;
}

interface PoolReading {
  readonly name: string;
  readonly slots: readonly Slot[];
  readonly oldest: number;
}

/** Slots of a pool that the config no longer has. Its jobs are in `strandedJobs`. */
function ofLeaving({ name, slots }: PoolReading): Reading[] {
  return [['onejob_slots', { pool: name }, slots.length], ...ofSlots(name, slots)];
}

function strandedJobs({ stranded }: ReadingParts, since: ReadonlyMap<string, number>, wall: number): Reading[] {
  const { pools, waiting } = stranded();
  return [...waiting].flatMap(([pool, jobs]): Reading[] => {
    if (pools.has(pool)) return [];
    const oldest = Math.max(0, wall - (since.get(pool) ?? wall)) / 1000;
    return [
      // The alert about jobs that wait for long asks whether somebody has paused the pool.
      ['onejob_pool_paused', { pool }, 0],
      ['onejob_jobs_waiting', { pool }, jobs],
      ['onejob_oldest_waiting_job_seconds', { pool }, oldest],
    ];
  });
}

function ofSlots(name: string, slots: readonly Slot[]): Reading[] {
  const counts = new Map<(typeof states)[number], number>(states.map((state) => [state, 0]));
  const count = (state: (typeof states)[number], more = 1): void => void counts.set(state, (counts.get(state) ?? 0) + more);
  for (const { standby, agent, leaving } of slots) {
    if (standby.kind !== 'none') count(standby.kind);
    const state = stateName(agent);
    if (state !== 'free') count(state);
    if (leaving.length > 0) count('leaving', leaving.length);
  }
  return states.map((state): Reading => ['onejob_agents', { pool: name, state }, counts.get(state) ?? 0]);
}

function ofPool(pool: Pool, { name, slots, oldest }: PoolReading, hostHeld: readonly string[]): Reading[] {
  const waiting = pool.service.waiting?.(name) ?? null;
  const { people, own } = pool.pause.holders;
  return [
    ['onejob_slots', { pool: name }, slots.length],
    ...ofSlots(name, slots),
    ['onejob_pool_paused', { pool: name }, Number(people || pool.draining)],
    ...[...new Set([...hostHeld, ...own])].map((reason): Reading => ['onejob_pool_held', { pool: name, reason }, 1]),
    ['onejob_pool_backing_off', { pool: name }, Number(pool.backoff !== null)],
    ...(waiting === null ? [] : [['onejob_jobs_waiting', { pool: name }, waiting] as const]),
    ['onejob_oldest_waiting_job_seconds', { pool: name }, Math.max(0, oldest) / 1000],
  ];
}

/** By pool, when its oldest waiting job began to wait, as far as that is known. */
function waitingSince({ services, waitingSince }: ReadingParts): Map<string, number> {
  const since = new Map(waitingSince());
  for (const service of services) {
    for (const { state, pool, queuedAt } of service.serviceJobs?.() ?? []) {
      if (state === 'waiting' && queuedAt !== null) since.set(pool, Math.min(queuedAt, since.get(pool) ?? queuedAt));
    }
  }
  return since;
}

function ofDevices(views: readonly DeviceView[]): Reading[] {
  const counts = Map.groupBy(views, ({ state }) => state);
  return [
    ...deviceStates.map((state): Reading => ['onejob_devices', { state }, counts.get(state)?.length ?? 0]),
    ...views.flatMap(ofDevice),
  ];
}

function ofDevice({ uuid: device, kind, model, pciId, memoryMiB, state, slot, use }: DeviceView): Reading[] {
  const labels = { device, pool: slot === null ? '' : poolOf(slot) };
  const found: Reading[] = [
    ['onejob_device_info', { device, kind, model, pci: pciId ?? '' }, 1],
    ['onejob_device_quarantined', { device }, Number(state === 'quarantined')],
  ];
  // A value that is not known is left out: 0 would be one.
  if (memoryMiB !== null) found.push(['onejob_device_memory_bytes', { device }, memoryMiB * bytesPerMiB]);
  if (use === null) return found;
  const { memoryUsedMiB, utilization, temperature, powerW } = use;
  if (memoryUsedMiB !== null) found.push(['onejob_device_memory_used_bytes', labels, memoryUsedMiB * bytesPerMiB]);
  if (utilization !== null) found.push(['onejob_device_utilization_ratio', labels, utilization / 100]);
  if (temperature !== null) found.push(['onejob_device_temperature_celsius', labels, temperature]);
  if (powerW !== null) found.push(['onejob_device_power_watts', labels, powerW]);
  return found;
}

/** Running jobs with devices. Their series end with them: nothing else has a job as a label. */
function ofJobs(slots: readonly Slot[], { use }: Pick<DeviceAccess, 'use'>): Reading[] {
  return slots.flatMap(({ key, agent, devices }): Reading[] => {
    if (devices.length === 0 || (agent.kind !== 'busy' && agent.kind !== 'ending') || agent.job === null) return [];
    const labels = { pool: poolOf(key), job_id: agent.job };
    const { peakMemoryMiB = null, meanUtilization = null } = use.useOf(agent.agent) ?? {};
    return [
      ...devices.map((device): Reading => ['onejob_job_device', { ...labels, device }, 1]),
      ...(peakMemoryMiB === null ? [] : [['onejob_job_memory_peak_bytes', labels, peakMemoryMiB * bytesPerMiB] as const]),
      ...(meanUtilization === null ? [] : [['onejob_job_utilization_ratio', labels, meanUtilization / 100] as const]),
    ];
  });
}
