/** What pools have in common becomes `defaults`; what that would change in a pool which has it otherwise is written there. Pure. */
import { isDeepStrictEqual } from 'node:util';
import type { Plain, PlainMap } from './agent.ts';
import { isMap } from './plain.ts';

/** What a pool without a key writes to have none, where `defaults` have one. Other keys are only shared by pools that all have them. */
const nothing: Readonly<Record<string, Plain>> = {
  priority: 0,
  cpus: 'none',
  memory: 'none',
  shm_size: 'none',
  volumes: [],
  caches: [],
  cap_add: [],
};

/** Told apart for each pool, or better read there: what a later pool must not get unseen. */
const own = new Set(['name', 'agents', 'devices', 'tags', 'unsafe']);

/** Maps that merge key by key. */
const merged = new Set(['env', 'image', 'trust', 'ulimits', 'tmpfs']);

export interface Shared {
  readonly defaults: PlainMap;
  /** As many as were given, in their order. */
  readonly pools: readonly PlainMap[];
}

export function share(pools: readonly PlainMap[]): Shared {
  if (pools.length < 2) return { defaults: {}, pools };
  const defaults: Record<string, Plain> = {};
  const result = pools.map((pool): Record<string, Plain> => ({ ...pool }));
  const keys = [...new Set(pools.flatMap((pool) => Object.keys(pool)))].filter((key) => !own.has(key));
  for (const key of keys) {
    const values = pools.map((pool) => pool[key]);
    if (merged.has(key)) {
      const maps = values.filter((value) => isMap(value)) as PlainMap[];
      // A text in the place of a map replaces all of it, and one that has none would get it all.
      if (maps.length < 2 || values.some((value) => value === undefined)) continue;
      const inner = common(maps, {});
      if (Object.keys(inner).length === 0) continue;
      defaults[key] = inner;
      for (const pool of result) {
        const value = pool[key];
        if (!isMap(value)) continue;
        const left = Object.fromEntries(
          Object.entries(value as PlainMap).filter(([name, one]) => !isDeepStrictEqual(one, inner[name])),
        );
        if (Object.keys(left).length === 0) delete pool[key];
        else pool[key] = left;
      }
      continue;
    }
    const most = common(
      pools.map((pool) => (pool[key] === undefined ? {} : { [key]: pool[key] as Plain })),
      nothing,
    )[key];
    if (most === undefined) continue;
    defaults[key] = most;
    for (const pool of result) {
      if (pool[key] === undefined) pool[key] = nothing[key] ?? 0;
      else if (isDeepStrictEqual(pool[key], most)) delete pool[key];
    }
  }
  return { defaults, pools: result };
}

/** Of each key the value that most maps have, if at least two have it and the others can say otherwise. */
function common(maps: readonly PlainMap[], absent: Readonly<Record<string, Plain>>): Record<string, Plain> {
  const found: Record<string, Plain> = {};
  for (const key of new Set(maps.flatMap((map) => Object.keys(map)))) {
    const values = maps.map((map) => map[key]).filter((value) => value !== undefined);
    if (values.length < maps.length && absent[key] === undefined) continue;
    const counted = values.map((value) => ({ value, count: values.filter((other) => isDeepStrictEqual(value, other)).length }));
    const best = counted.reduce((one, other) => (other.count > one.count ? other : one));
    // Writing "none" into more pools than have it would make the file longer.
    if (best.count >= 2 && maps.length - values.length < best.count) found[key] = best.value;
  }
  return found;
}
