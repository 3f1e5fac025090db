/**
 * What keeps jobs from ever starting until a person does something. Pure: `status`, `doctor`, the dashboard, notices, metrics and a
 * dry run of another config ask this of the same values, so they cannot disagree.
 */

import { type Finding, warning } from '../base/finding.ts';
import type { FindingCode } from '../base/finding-codes.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { type StrandedJobs, strandedHint } from '../ci/own-queue/stranded.ts';
import { fits, isNamedIn, matchesModel } from '../config/conditions.ts';
import type { DeviceRequest, PoolConfig } from '../config/config.ts';
import type { CiService, UnfitJobs } from '../ports/ci-service.ts';
import type { DeviceAccess } from './devices/device-views.ts';
import type { Pool } from './loop/pool.ts';
import type { Reconciler } from './loop/reconciler.ts';

export interface Condition {
  readonly kind: 'stranded jobs' | 'jobs of another daemon' | 'no agents' | 'no devices' | 'unfit jobs' | 'job too big';
  /** The pool that it is about, which the config may no longer have; null: the host. */
  readonly pool: string | null;
  /** The CI service that it is about; null: the own queue, or that of the pool. */
  readonly service: string | null;
  /** A sentence. About a pool of the config it begins with "It". */
  readonly text: string;
  /** What to do about it, as a sentence; null if the text says it. */
  readonly hint: string | null;
  /** ms that it must last before people are told of it; null: they see it where they look. */
  readonly patience: number | null;
}

export interface HostState {
  /** The own queue, and the pools that take its jobs. */
  readonly queue: StrandedJobs & { readonly leftToOthers: number };
  readonly pools: readonly PoolState[];
  /** Of CI services. */
  readonly unfit: readonly (UnfitJobs & { readonly service: string })[];
}

/** A pool of the config. */
export interface PoolState {
  readonly name: string;
  readonly agents: number | 'per-device';
  /** Whether this host has, or had, a device that fits; null: unknown, or the pool needs none. */
  readonly hasDevices: boolean | null;
  /**
   * How many devices its next job asks for, how many of this host fit, and how many more did that are gone; null: unknown, or it asks for
   * none of its own.
   */
  readonly nextJob: { readonly devices: number; readonly fitting: number; readonly missing: number } | null;
}

interface StateParts {
  readonly queue: Pick<OwnQueue, 'stranded'>;
  /** All CI services but the own queue. */
  readonly others: readonly Pick<CiService, 'name' | 'unfit'>[];
  readonly reconciler: Pick<Reconciler, 'pools'>;
  /** null if no pool needs devices. */
  readonly deviceManager: Pick<DeviceAccess, 'registry' | 'views'> | null;
}

/** The state as it is now. */
export function stateOf({ queue, others, reconciler, deviceManager }: StateParts): HostState {
  const pools = reconciler.pools.flatMap((pool): PoolState[] => {
    const { config, leaving } = pool;
    if (leaving) return [];
    const hasDevices = deviceManager === null || config.devices.count === 0 ? null : hasDevicesFor(config, deviceManager);
    return [{ name: config.name, agents: config.agents, hasDevices, nextJob: nextJobOf(pool, deviceManager) }];
  });
  const unfit = others.flatMap(({ name: service, unfit }) => (unfit?.() ?? []).map((one) => ({ ...one, service })));
  return { queue: queue.stranded(), pools, unfit };
}

/** Only a pool that leases for each job gives a job more devices than others. */
function nextJobOf(pool: Pool, deviceManager: StateParts['deviceManager']): PoolState['nextJob'] {
  const { devices, standby } = pool.config;
  const registry = deviceManager?.registry ?? null;
  if (standby || devices.count === 0 || registry?.inventory?.complete !== true) return null;
  const { jobs } = pool.service;
  const job = jobs?.next(pool.config.name, null)?.job ?? null;
  const wanted = job === null ? null : (jobs?.devicesFor?.(job) ?? null);
  if (wanted === null) return null;
  const fitting = registry.inventory.devices.filter((one) => fits(one, devices)).length;
  return { devices: wanted, fitting, missing: missingFor(devices, registry) };
}

/** Devices that this host had in use, and that would fit as far as is known of them. */
function missingFor({ mig, model, uuids }: DeviceRequest, registry: DeviceAccess['registry']): number {
  const isInstance = mig !== null && mig !== false;
  return registry.known.all.filter(
    (one) =>
      registry.device(one.uuid) === null &&
      (one.slot !== null || one.quarantine !== null) &&
      (one.parent !== null) === isInstance &&
      (model === null || matchesModel(one.model, model)) &&
      (uuids.length === 0 || isNamedIn(uuids, one.uuid)),
  ).length;
}

function hasDevicesFor(config: PoolConfig, { registry, views }: Pick<DeviceAccess, 'registry' | 'views'>): boolean | null {
  if (registry.inventory?.complete !== true) return null;
  return registry.inventory.devices.some((device) => fits(device, config.devices)) || (views.ofPool(config)?.wanted ?? 0) > 0;
}

/** ms. Somebody who has just changed the config may still be about to move the jobs. */
const strandedPatience = 10 * 60_000;

export function conditions({ queue, pools, unfit }: HostState): Condition[] {
  return [...strandedJobs(queue), ...jobsOfOthers(queue), ...unfit.map(ofUnfit), ...pools.flatMap(ofPool)];
}

/** Whether it is shown with the host: the pool that it is about, if any, has no place of its own. */
export function isOfHost({ kind }: Condition): boolean {
  return kind !== 'no agents' && kind !== 'no devices' && kind !== 'job too big';
}

/** A condition of a host as `doctor` shows it. */
export function findingOf({ kind, pool, service, text, hint }: Condition): Finding {
  const code = codeOf({ kind });
  if (service !== null) return warning(`service ${service}`, text.replace(` of service ${service}`, ''), hint, code);
  return warning(pool === null ? 'own queue' : `pool ${pool}`, text, hint, code);
}

const codes: Readonly<Record<Condition['kind'], FindingCode>> = {
  'stranded jobs': 'stranded-jobs',
  'jobs of another daemon': 'jobs-of-another-daemon',
  'no agents': 'no-agents',
  'no devices': 'no-devices',
  'unfit jobs': 'unfit-jobs',
  'job too big': 'unfit-jobs',
};

/** What programs know it by. */
export function codeOf({ kind }: Pick<Condition, 'kind'>): FindingCode {
  return codes[kind];
}

/** For after the name of its pool, such as `has no agents`. */
export function clauseOf({ text }: Condition): string {
  return text.replace(/^It /, '').replace(/\.$/, '');
}

/** In one line. */
export function lineOf({ text, hint }: Condition): string {
  return hint === null ? text : `${text} ${hint}`;
}

function strandedJobs(queue: HostState['queue']): Condition[] {
  return [...queue.waiting].flatMap(([pool, jobs]) => {
    if (queue.pools.has(pool) || jobs === 0) return [];
    const text = `${jobs === 1 ? '1 job waits' : `${jobs} jobs wait`} in pool ${pool} and would wait for ever: the config has no such pool of the own queue.`;
    return [
      { kind: 'stranded jobs', pool, service: null, text, hint: strandedHint(pool, queue.pools), patience: strandedPatience },
    ];
  });
}

function jobsOfOthers({ leftToOthers }: HostState['queue']): Condition[] {
  if (leftToOthers === 0) return [];
  const [jobs, them] = leftToOthers === 1 ? ['One job waits', 'it'] : [`${leftToOthers} jobs wait`, 'them'];
  const text = `${jobs} for the daemon that accepted ${them}, but this daemon is temporary: type "onejob up".`;
  return [{ kind: 'jobs of another daemon', pool: null, service: null, text, hint: null, patience: null }];
}

/** Nobody is called for it: another host may have the agents. */
function ofUnfit({ service, jobs, how, hint }: HostState['unfit'][number]): Condition {
  const text = `${jobs === 1 ? '1 job' : `${jobs} jobs`} of service ${service} ${jobs === 1 ? 'waits' : 'wait'} ${how}.`;
  return { kind: 'unfit jobs', pool: null, service, text, hint, patience: null };
}

function ofPool({ name, agents, hasDevices, nextJob }: PoolState): Condition[] {
  const about = { pool: name, service: null, patience: null } as const;
  if (agents === 0) {
    const hint = 'Give it "agents" in the config, or remove it.';
    return [{ kind: 'no agents', ...about, text: 'It has no agents ("agents: 0"), so its jobs wait.', hint }];
  }
  if (nextJob !== null && nextJob.fitting > 0 && nextJob.devices > nextJob.fitting) {
    return [{ kind: 'job too big', ...about, ...tooBig(nextJob) }];
  }
  if (agents !== 'per-device' || hasDevices !== false) return [];
  const hint = 'See "onejob gpus": is the driver installed, and do its "devices" fit this host?';
  return [{ kind: 'no devices', ...about, text: 'It has no device: this host has none that fits, so its jobs wait.', hint }];
}

function tooBig({ devices, fitting, missing }: NonNullable<PoolState['nextJob']>): Pick<Condition, 'text' | 'hint'> {
  const isForNow = devices <= fitting + missing;
  const gone = missing === 0 ? '' : `, and ${missing} ${missing === 1 ? 'is' : 'are'} missing`;
  const text = `It cannot run its next job${isForNow ? ' yet' : ''}, which asks for ${devices} devices: this host has ${fitting} that ${fitting === 1 ? 'fits' : 'fit'}${gone}.`;
  if (isForNow) return { text, hint: '"onejob gpus" says what is known of what is missing, and what to do.' };
  return { text, hint: 'Cancel that job, and run it with fewer "--devices".' };
}
