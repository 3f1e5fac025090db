/** Agent pools. */
import { type Exchange, list, type Reply, type Route, ServiceFailure } from './http.ts';
import type { Pool, World } from './state.ts';

const PATH = '_apis/distributedtask/pools';

export const poolRoutes: readonly Route[] = [
  { method: 'GET', name: 'pools', path: PATH, allow: ['pat', 'principal'], right: 'read', answer: find },
];

/** The pool that the path names. */
export function poolOf(x: Exchange): Pool {
  const pool = x.world.pools.get(Number(x.params.poolId));
  if (pool === undefined)
    throw new ServiceFailure(404, 'TaskAgentPoolNotFoundException', `No agent pool found with identifier ${x.params.poolId}.`);
  return pool;
}

export function newPool(world: World, name: string, o: { readonly autoUpdate?: boolean; readonly hosted?: boolean } = {}): Pool {
  const pool: Pool = {
    id: world.next(),
    name,
    hosted: o.hosted ?? false,
    autoUpdate: o.autoUpdate ?? true,
    wanted: null,
    agents: new Map(),
  };
  world.pools.set(pool.id, pool);
  return pool;
}

function poolBody(pool: Pool): Record<string, unknown> {
  return {
    id: pool.id,
    name: pool.name,
    autoUpdate: pool.autoUpdate,
    isHosted: pool.hosted,
    poolType: 'automation',
    size: pool.agents.size,
  };
}

function find(x: Exchange): Reply {
  const name = x.query.get('poolname')?.toLowerCase();
  const type = x.query.get('pooltype')?.toLowerCase() ?? 'automation';
  const fits = (pool: Pool) => name === undefined || pool.name.toLowerCase() === name;
  // The node client writes enums as numbers.
  return list(type === 'automation' || type === '1' ? [...x.world.pools.values()].filter(fits).map(poolBody) : []);
}
