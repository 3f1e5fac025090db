/** Views of the loop's state for people. They change nothing. */
import type { AboutView, CloudHostView, PlanLine, PoolView, SlotView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import { type Intent, sameDevices } from '../core/plan.ts';
import { type AgentLane, isEmpty, type Slot, type StandbyLane, stateName } from '../core/slot.ts';
import { type Condition, clauseOf, codeOf, isOfHost } from './conditions.ts';
import type { DeviceAccess } from './devices/device-views.ts';
import type { HeldJobs } from './held/held-jobs.ts';
import { pausedText } from './loop/pause.ts';
import type { Pool } from './loop/pool.ts';
import type { Reconciler } from './loop/reconciler.ts';

export interface StatusParts {
  readonly clock: Clock;
  readonly reconciler: Reconciler;
  readonly nameOf: (key: string) => string;
  readonly noteOf: (key: string) => string | null;
  /** What a job's CI service reports about it; null if that is nothing, or unknown. */
  readonly about: (job: string) => AboutView | null;
  /** null if no pool needs devices. */
  readonly deviceManager: DeviceAccess | null;
  readonly held: Pick<HeldJobs, 'count'>;
  readonly conditions: () => readonly Condition[];
  /** What jobs of the pool should know about where they run. */
  readonly notesOf: (pool: Pool) => readonly string[];
}

export function poolViews(parts: StatusParts): PoolView[] {
  return [...poolHeads(parts)].map(([head, slots]) => ({ ...head, slots: slots.map((slot) => slotView(slot, parts)) }));
}

/** Each pool, with its slots as the loop has them. */
export function* poolHeads(parts: StatusParts): Generator<readonly [Omit<PoolView, 'slots'>, readonly Slot[]]> {
  const slots = Map.groupBy(parts.reconciler.slots, ({ key }) => parts.reconciler.poolOf(key));
  const found = Map.groupBy(
    parts.conditions().filter((one) => !isOfHost(one)),
    ({ pool }) => pool,
  );
  for (const pool of parts.reconciler.pools) {
    const mine = slots.get(pool) ?? [];
    if (pool.leaving && mine.every(isEmpty)) continue;
    const { name, recipe } = pool.config;
    const problems = found.get(name)?.map(clauseOf) ?? [];
    const held = parts.held.count(name);
    const notes = parts.notesOf(pool);
    const isOutage = pool.away !== null || parts.reconciler.pause.isOutage || pool.pause.isOutage;
    const head = {
      name,
      service: pool.config.service,
      runtime: pool.runtime.name,
      ...(pool.runtime.capabilities.images && recipe.image !== null && { image: recipe.image }),
      agents: mine.length,
      waiting: pool.service.waiting?.(name) ?? null,
      ...(held > 0 && { held }),
      ...(problems.length > 0 && { problems, problemCodes: found.get(name)?.map(codeOf) }),
      ...(notes.length > 0 && { notes: [...notes] }),
      paused: [...parts.reconciler.pause.details, ...pool.pause.details],
      ...(isOutage && { outage: true }),
      draining: pool.draining,
      leaving: pool.leaving,
      backoff: backoffView(pool, parts.clock.now()),
      ...updateOf(pool, parts.clock.now()),
      devices: parts.deviceManager?.views.ofPool(pool.config) ?? null,
    };
    yield [head, mine];
  }
}

function updateOf({ rollout: { update } }: Pool, now: number): Pick<PoolView, 'update'> {
  if (update === null) return {};
  const { until, others: _, ...said } = update;
  return { update: { ...said, retryIn: until === null ? null : Math.max(0, Math.round(until - now)) } };
}

/** Machines that begin or end, and why a host has fewer than its jobs need. */
export function hostPlan(hosts: readonly CloudHostView[]): PlanLine[] {
  return hosts.flatMap(({ host, machines, reason, held }) => [
    ...[...(reason === null ? [] : [reason]), ...held].map((because) => ({ slot: host, intent: 'nothing yet', because })),
    ...machines.flatMap(({ run, state, why }) => {
      const intent = state === 'ending' ? 'remove a machine' : state === 'draining' ? 'drain a machine' : 'wait for a machine';
      return state === 'joined'
        ? []
        : [{ slot: `${host}/${run}`, intent, because: why ?? (state === 'booting' ? 'it boots' : 'the cloud makes it') }];
    }),
  ]);
}

/** What the config asks for compared with what exists: a line per slot that has something to do or cannot do it. */
export function planLines(parts: StatusParts): PlanLine[] {
  return parts.reconciler.slots.flatMap((slot) => {
    const pool = parts.reconciler.poolOf(slot.key);
    if (pool.leaving && isEmpty(slot)) return [];
    const intent = parts.reconciler.intentOf(slot.key);
    if (intent !== null) return [{ slot: slot.key, intent: intentText(intent), because: becauseOf(intent, slot, pool, parts) }];
    const held = heldBack(slot, pool, parts);
    return held === null ? [] : [{ slot: slot.key, intent: 'nothing yet', because: held }];
  });
}

/** Why jobs of a pool wait, as a sentence; null if its agents are just busy. */
export function waitingReason(
  reconciler: Reconciler,
  poolName: string,
  noteOf: (key: string) => string | null = () => null,
): string | null {
  const pool = reconciler.pools.find((one) => one.config.name === poolName);
  if (pool === undefined) return null;
  const [held] = [...reconciler.pause.details, ...pool.pause.details];
  if (held !== undefined) return pausedText([held]);
  if (pool.leaving) return leaves;
  if (pool.draining) return 'the pool drains';
  if (pool.config.agents === 0) return `pool ${poolName} has no agents`;
  if (pool.away !== null) return pool.away;
  if (pool.backoff !== null) return `${waitsFor(pool)}${pool.backoff.last.message}`;
  if (pool.rollout.update !== null && !pool.rollout.canGoBack) return pool.rollout.update.text;
  // Agents may be busy or under way for jobs that need fewer.
  const waits = pool.devices.waitText?.(poolName) ?? null;
  return waits ?? devicesReason(reconciler, pool) ?? preparing(reconciler, pool, noteOf);
}

/** Null if no slot without an agent has a sandbox under way. */
function preparing(reconciler: Reconciler, pool: Pool, noteOf: (key: string) => string | null): string | null {
  const isNext = ({ key, agent, standby }: Slot) =>
    agent.kind === 'free' && standby.kind === 'preparing' && reconciler.poolOf(key) === pool;
  const next = reconciler.slots.find(isNext);
  if (next === undefined) return null;
  // An engine says why it waits.
  const said = pool.runtime.capabilities.grants === 'engine' ? noteOf(next.key) : null;
  return said ?? 'the next agent is being prepared';
}

const leaves = 'the config no longer asks for it';

/** `waits for image "x:1" on docker: ` if that causes the pool's failures; else empty. */
function waitsFor({ awaitsImage }: Pool): string {
  return awaitsImage === null ? '' : `waits for ${awaitsImage}: `;
}

/** How many reasons are shown per pool, and how many slots with each. */
const [reasonsShown, slotsNamed] = [2, 3];

/** What keeps the pool's free slots from their devices; null if one of them could work, or all are busy. */
function devicesReason(reconciler: Reconciler, pool: Pool): string | null {
  if (pool.config.devices.count === 0) return null;
  const slots = reconciler.slots.filter((slot) => reconciler.poolOf(slot.key) === pool);
  // One slot per device, but there are no devices.
  if (slots.length === 0) return pool.devices.heldBack(`${pool.config.name}/1`);
  const free = slots.filter(({ agent }) => agent.kind === 'free').map(({ key }) => ({ key, why: pool.devices.heldBack(key) }));
  if (free.length === 0 || free.some(({ why }) => why === null)) return null;
  const reasons = [...Map.groupBy(free, ({ why }) => why)].map(([why, held]) => {
    const keys = held.map(({ key }) => key);
    const who = keys.length > slotsNamed ? `${keys.length} slots` : keys.join(', ');
    return keys.length === slots.length ? `${why}` : `${who}: ${why}`;
  });
  const more = reasons.length > reasonsShown ? [`${reasons.length - reasonsShown} more`] : [];
  return [...reasons.slice(0, reasonsShown), ...more].join('; ');
}

function intentText(intent: Intent): string {
  switch (intent.kind) {
    case 'fill':
      return intent.reserved === null ? 'prepare a standby' : `prepare a sandbox for job ${intent.reserved.job}`;
    case 'discard':
      return 'remove the standby';
    case 'assign':
      return `release job ${intent.job}`;
    case 'engage':
      return 'register an agent';
    case 'retire':
      return 'end the idle agent';
  }
}

function becauseOf(intent: Intent, slot: Slot, pool: Pool, { reconciler }: StatusParts): string {
  if (pool.leaving) return leaves;
  if (pool.draining) return 'the pool drains';
  switch (intent.kind) {
    case 'fill':
      if (pool.rollout.isCanary(slot.key)) return pool.rollout.update?.text ?? '';
      if (pool.hasPilots) return 'a job waits';
      if (pool.borrows) return 'a job waits, and the slot has devices for it';
      return intent.reserved === null ? 'the pool keeps one standby per slot' : 'no standby fits the job';
    case 'discard': {
      if (isUnneeded(pool) || pool.hasPilots) return 'no job waits for it';
      const devices = pool.devices.of(slot.key);
      if (devices !== null && sameDevices(devices, slot.devices)) return 'it no longer matches the config, or is too old';
      return pool.devices.heldBack(slot.key) ?? 'its devices no longer belong to it';
    }
    case 'assign':
      return 'the slot is free and work waits';
    case 'engage':
      return 'the slot is free, and its CI service gives jobs only to agents that are online';
    case 'retire':
      if (reconciler.stopping) return 'onejob is stopping';
      if (pool.pause.closes) return pausedText(pool.pause.details);
      if (isUnneeded(pool)) return 'no job waits for it';
      if (pool.borrows && pool.devices.contested(pool.config.name)) return 'it got no job, and another pool waits for its devices';
      if (!sameDevices(slot.devices, pool.devices.of(slot.key) ?? slot.devices))
        return pool.devices.heldBack(slot.key) ?? 'its devices no longer belong to it';
      return 'it no longer matches the config, or is too old';
  }
}

function isUnneeded(pool: Pool): boolean {
  return pool.borrows && pool.service.waiting?.(pool.config.name) === 0;
}

function heldBack(slot: Slot, pool: Pool, parts: StatusParts): string | null {
  const devices = slot.agent.kind === 'free' ? devicesHeld(slot, pool, parts) : null;
  if (devices !== null) return [devices, inLine(slot, pool, parts)].filter((why) => why !== null).join('; ');
  const { binds, standsForSlots } = pool.service.capabilities;
  const needsJob = binds === 'late' && !standsForSlots && pool.service.jobs?.next(pool.config.name, null) == null;
  if (needsJob && slot.standby.kind !== 'none' && slot.agent.kind === 'free') return null;
  if (slot.standby.kind !== 'none' && slot.agent.kind !== 'free') return null;
  const paused = [...parts.reconciler.pause.details, ...pool.pause.details];
  if (paused.length > 0) return pausedText(paused);
  if (pool.away !== null) return pool.away;
  const waits = updateHolds(slot, pool, parts.clock.now());
  if (waits !== null) return waits;
  const backoff = backoffView(pool, parts.clock.now());
  if (backoff === null) return null;
  const seconds = Math.ceil(backoff.retryIn / 1000);
  if (backoff.waitsFor !== null) return `waits for ${backoff.waitsFor}, next try in ${seconds} s: ${backoff.reason}`;
  return `backing off for ${seconds} s: ${backoff.reason}`;
}

/** How long the pool of a slot without a lease has waited for one, and after which others; null: it does not wait. */
function inLine(slot: Slot, { config }: Pool, { deviceManager }: StatusParts): string | null {
  return config.standby || !isEmpty(slot) ? null : (deviceManager?.registry.waitingText(config.name) ?? null);
}

/** What a slot waits for because its pool tries a new image; null if that does not keep it from anything. */
function updateHolds({ key }: Slot, { rollout }: Pool, now: number): string | null {
  const { update } = rollout;
  if (update === null) return null;
  if (!rollout.isCanary(key)) return rollout.canGoBack ? null : update.text;
  return update.until !== null && update.until > now
    ? `${update.text}; next try in ${Math.ceil((update.until - now) / 1000)} s`
    : null;
}

/** Why the slot's devices must not be used now. Without standbys a slot needs devices only for a job. */
export function devicesHeld(slot: Slot, pool: Pool, { deviceManager }: StatusParts): string | null {
  const { name, standby } = pool.config;
  if (standby || !isEmpty(slot)) return pool.devices.heldBack(slot.key);
  const isUnknown = pool.leases && pool.borrows && (pool.service.waiting?.(name) ?? null) === null;
  if (isUnknown) return 'its devices are leased when a job waits, and its CI service has not said yet whether one does';
  return deviceManager?.registry.partition.waiting.has(name) === true ? pool.devices.heldBack(slot.key) : null;
}

function backoffView(pool: Pool, now: number): PoolView['backoff'] {
  if (pool.backoff === null) return null;
  const { failures, until, last } = pool.backoff;
  return { failures, retryIn: Math.max(0, Math.round(until - now)), reason: last.message, waitsFor: pool.awaitsImage };
}

export function slotView(slot: Slot, parts: StatusParts): SlotView {
  const now = parts.clock.now();
  const pool = parts.reconciler.poolOf(slot.key);
  const job = 'job' in slot.agent ? slot.agent.job : null;
  return {
    key: slot.key,
    name: parts.nameOf(slot.key),
    devices: [...slot.devices],
    standby: { state: slot.standby.kind, agent: agentOf(slot.standby), since: sinceOf(slot.standby, now) },
    agent: {
      state: stateName(slot.agent),
      agent: agentOf(slot.agent),
      job,
      about: job === null ? null : parts.about(job),
      online: slot.agent.kind === 'idle' ? slot.agent.online : null,
      since: sinceOf(slot.agent, now),
    },
    leaving: slot.leaving.map((one) => one.agent),
    note: parts.noteOf(slot.key) ?? placeText(slot, pool),
    held: devicesHeld(slot, pool, parts),
  };
}

/** Where the engine of its runtime has put what a slot has. */
function placeText({ agent, standby }: Slot, { runtime }: Pool): string | null {
  const id = agentOf(agent) ?? agentOf(standby);
  const granted = id === null ? null : (runtime.placeOf?.(id) ?? null);
  if (granted === null) return null;
  return `on node ${granted.place}${granted.devices === '' ? '' : `, GPU ${granted.devices}`}`;
}

function agentOf(lane: StandbyLane | AgentLane): string | null {
  return 'agent' in lane ? lane.agent : null;
}

function sinceOf(lane: StandbyLane | AgentLane, now: number): number | null {
  // The time of another boot may be in the future, and means nothing.
  return 'since' in lane && lane.since <= now ? Math.round(now - lane.since) : null;
}
