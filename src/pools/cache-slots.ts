/** Which caches no agent works in right now, and which ones config asks for, as the loop and config know it. */
import type { PoolConfig } from '../config/config.ts';
import { isNamed } from '../config/volumes.ts';
import type { Slot } from '../core/slot.ts';
import type { WantedCaches } from './cache-known.ts';
import type { CachePlace } from './cache-places.ts';

/**
 * Whether no released agent can have the place among its mounts. A standby may have: it waits, and touches nothing. For a
 * cache of no slot that is there, a slot of its pool may have it from before: then nothing of the pool may be in use.
 */
export function isIdle(
  place: CachePlace,
  { slots, nameOf }: { readonly slots: readonly Slot[]; readonly nameOf: (slot: string) => string },
): boolean {
  const inPool = slots.filter(({ key }) => poolOf(key) === place.pool);
  const own = place.agent === null ? [] : inPool.filter(({ key }) => nameOf(key) === place.agent);
  if (own.length > 0) return own.every(hasNoAgent);
  if (place.agent === null) return inPool.every(hasNoAgent);
  return inPool.every((slot) => hasNoAgent(slot) && slot.standby.kind === 'none' && slot.leaving.length === 0);
}

/** The named caches of each pool, and whose they are. */
export function wantedCaches(
  pools: readonly Pick<PoolConfig, 'name' | 'recipe' | 'cacheLimit' | 'trust'>[],
  slots: readonly Slot[],
  nameOf: (slot: string) => string,
): WantedCaches[] {
  return pools.map(({ name, recipe, cacheLimit, trust }) => ({
    pool: name,
    agents: slots.filter(({ key }) => poolOf(key) === name).map(({ key }) => nameOf(key)),
    caches: recipe.mounts.flatMap(({ cache }) => (isNamed(cache) ? [cache.name] : [])),
    limit: cacheLimit,
    untrusted: trust.caches === 'private',
  }));
}

/** Whether the change took the slot's agent away, though the next one may be about to be released already. */
export function hasEnded(before: Slot, after: Slot): boolean {
  if (hasNoAgent(before)) return false;
  return hasNoAgent(after) || agentOf(before) !== agentOf(after);
}

function agentOf({ agent }: Slot): string | null {
  return agent.kind === 'free' ? null : agent.agent;
}

/** Whether no agent was let through its gate, and none is about to be. */
function hasNoAgent({ agent }: Slot): boolean {
  return agent.kind === 'free' || agent.kind === 'proving';
}

function poolOf(slot: string): string {
  return slot.slice(0, slot.lastIndexOf('/'));
}
