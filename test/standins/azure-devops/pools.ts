/** Agent pools. */
import { type Exchange, list, nothing, objectBody, ok, type Reply, type Route, ServiceFailure, text } from './http.ts';
import type { Pool, World } from './state.ts';

const PATH = '_apis/distributedtask/pools';

export const poolRoutes: readonly Route[] = [
  { method: 'GET', name: 'pools', path: PATH, allow: ['pat', 'principal'], right: 'read', answer: find },
  { method: 'POST', name: 'pools', path: PATH, allow: ['pat', 'principal'], right: 'manage', answer: add },
  {
    method: 'GET',
    name: 'pools/{poolId}',
    path: `${PATH}/{poolId}`,
    allow: ['pat', 'principal'],
    right: 'read',
    answer: (x) => ok(poolBody(poolOf(x))),
  },
  {
    method: 'PATCH',
    name: 'pools/{poolId}',
    path: `${PATH}/{poolId}`,
    allow: ['pat', 'principal'],
    right: 'manage',
    answer: change,
  },
  {
    method: 'DELETE',
    name: 'pools/{poolId}',
    path: `${PATH}/{poolId}`,
    allow: ['pat', 'principal'],
    right: 'manage',
    answer: remove,
  },
];

/** The pool that the path names. */
export function poolOf(x: Exchange): Pool {
  const pool = x.world.pools.get(Number(x.params.poolId));
  if (pool === undefined)
    throw new ServiceFailure(
      x.world.codes.poolNotFound,
      'TaskAgentPoolNotFoundException',
      `No agent pool found with identifier ${x.params.poolId}.`,
    );
  return pool;
}

export function newPool(world: World, name: string, o: { readonly autoUpdate?: boolean; readonly hosted?: boolean } = {}): Pool {
  const pool: Pool = {
    id: world.next(),
    name,
    hosted: o.hosted ?? false,
    createdOn: world.now(),
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
    scope: '00000000-0000-0000-0000-000000000000',
    createdOn: new Date(pool.createdOn).toISOString(),
    autoProvision: false,
    autoUpdate: pool.autoUpdate,
    autoSize: true,
    targetSize: null,
    agentCloudId: pool.hosted ? 1 : null,
    isHosted: pool.hosted,
    isLegacy: false,
    poolType: 'automation',
    size: pool.agents.size,
    options: 'none',
  };
}

function find(x: Exchange): Reply {
  const name = x.query.get('poolname')?.toLowerCase();
  const ids = x.query.get('poolids')?.split(',').map(Number);
  const type = x.query.get('pooltype')?.toLowerCase() ?? 'automation';
  const fits = (pool: Pool) => (name === undefined || pool.name.toLowerCase() === name) && (ids?.includes(pool.id) ?? true);
  // The node client writes enums as numbers.
  return list(type === 'automation' || type === '1' ? [...x.world.pools.values()].filter(fits).map(poolBody) : []);
}

function add(x: Exchange): Reply {
  const body = objectBody(x);
  const name = text(body.name);
  if (name === '') throw new ServiceFailure(400, 'ArgumentNullException', 'Value cannot be null. Parameter name: pool.Name');
  if ([...x.world.pools.values()].some((pool) => pool.name.toLowerCase() === name.toLowerCase()))
    throw new ServiceFailure(409, 'TaskAgentPoolExistsException', `Agent pool ${name} already exists.`);
  return ok(poolBody(newPool(x.world, name, { autoUpdate: body.autoUpdate !== false })));
}

function change(x: Exchange): Reply {
  const pool = poolOf(x);
  const body = objectBody(x);
  if (typeof body.autoUpdate === 'boolean') pool.autoUpdate = body.autoUpdate;
  return ok(poolBody(pool));
}

function remove(x: Exchange): Reply {
  x.world.pools.delete(poolOf(x).id);
  return nothing;
}
