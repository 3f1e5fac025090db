/** Registrations: made, found, changed, replaced, removed, and what agents say they can (layer C). */
import { randomUUID } from 'node:crypto';
import { ownAgent } from './auth.ts';
import {
  type Exchange,
  flag,
  isRecord,
  list,
  nothing,
  objectBody,
  ok,
  type Reply,
  type Route,
  ServiceFailure,
  stringMap,
  text,
} from './http.ts';
import { endSession } from './messages.ts';
import { poolOf } from './pools.ts';
import { assignWaiting } from './queue.ts';
import { agentReference, requestBody } from './request-body.ts';
import { type Agent, newAgent, type PublicKey, requestOf, urlOf, type World } from './state.ts';

const PATH = '_apis/distributedtask/pools/{poolId}/agents';
const MANAGERS = ['pat', 'principal'] as const;

export const agentRoutes: readonly Route[] = [
  { method: 'GET', name: 'agents', path: PATH, allow: MANAGERS, right: 'read', answer: find },
  { method: 'POST', name: 'agents', path: PATH, allow: MANAGERS, right: 'manage', answer: add },
  {
    method: 'GET',
    name: 'agents/{agentId}',
    path: `${PATH}/{agentId}`,
    allow: MANAGERS,
    right: 'read',
    answer: (x) => ok(agentBody(x, agentOf(x))),
  },
  { method: 'PUT', name: 'agents/{agentId}', path: `${PATH}/{agentId}`, allow: MANAGERS, right: 'manage', answer: replace },
  { method: 'PATCH', name: 'agents/{agentId}', path: `${PATH}/{agentId}`, allow: MANAGERS, right: 'manage', answer: change },
  { method: 'DELETE', name: 'agents/{agentId}', path: `${PATH}/{agentId}`, allow: MANAGERS, right: 'manage', answer: remove },
  {
    method: 'PUT',
    name: 'usercapabilities',
    path: `${PATH}/{agentId}/usercapabilities`,
    allow: MANAGERS,
    right: 'manage',
    answer: setUserCapabilities,
  },
  { method: 'PUT', name: 'updates', path: `${PATH}/{agentId}/updates`, allow: ['agent'], answer: heardOfUpdate },
];

/** The registration that the path names. */
export function agentOf(x: Exchange): Agent {
  const agent = poolOf(x).agents.get(Number(x.params.agentId));
  if (agent === undefined)
    throw new ServiceFailure(404, 'TaskAgentNotFoundException', `No agent found with identifier ${x.params.agentId}.`);
  return agent;
}

/** Capabilities and requests are there only for those who asked for them. */
function agentBody(x: Exchange, agent: Agent): Record<string, unknown> {
  const { world } = x;
  const body: Record<string, unknown> = {
    ...agentReference(agent),
    authorization: authorization(world, agent),
  };
  if (flag(x, 'includeCapabilities')) Object.assign(body, { systemCapabilities: agent.system, userCapabilities: agent.user });
  if (flag(x, 'includeAssignedRequest')) {
    const busy = requestOf(world, agent);
    if (busy !== null) body.assignedRequest = requestBody(world, busy);
  }
  return body;
}

/** On-premises the audience names the host as the service knows itself, which is not always the one that was configured. */
function authorization(world: World, agent: Agent): Record<string, unknown> {
  return { clientId: agent.clientId, authorizationUrl: authorizationUrl(world), publicKey: agent.publicKey };
}

export function authorizationUrl(world: World): string {
  const origin = world.hosted ? world.origin : world.origin.replace(/\/\/[^:/]+/, '//tfs.stand-in.invalid');
  return world.hosted
    ? `${origin}/vssps/${world.base}/_apis/oauth2/token`
    : `${urlOf(world).replace(world.origin, origin)}/_apis/oauth2/token`;
}

function find(x: Exchange): Reply {
  const name = x.query.get('agentname')?.toLowerCase();
  const named = [...poolOf(x).agents.values()].filter((agent) => name === undefined || agent.name.toLowerCase() === name);
  return list(named.map((agent) => agentBody(x, agent)));
}

function add(x: Exchange): Reply {
  const pool = poolOf(x);
  const about = described(objectBody(x));
  if ([...pool.agents.values()].some((agent) => agent.name.toLowerCase() === about.name.toLowerCase()))
    throw new ServiceFailure(409, 'TaskAgentExistsException', `Pool ${pool.id} already contains an agent with name ${about.name}.`);
  const agent = newAgent(x.world, pool, about);
  pool.agents.set(agent.id, agent);
  x.world.emit({ kind: 'agentAdded', pool: pool.id, agent: agent.id, name: agent.name });
  return ok(registered(x, agent));
}

/** As an answer to POST and PUT: with capabilities, and with where to go. */
function registered(x: Exchange, agent: Agent): Record<string, unknown> {
  const url = `${urlOf(x.world)}/`;
  const properties = x.world.hosted ? { properties: { ServerUrl: { $type: 'System.String', $value: url } } } : {};
  return { ...agentBody(x, agent), systemCapabilities: agent.system, userCapabilities: agent.user, ...properties };
}

/** Whether PUT gives a new client is not known; here it does, so that nobody relies on the old one. */
function replace(x: Exchange): Reply {
  const agent = agentOf(x);
  const body = objectBody(x);
  sameId(body, agent);
  const { name, version, osDescription, system, publicKey } = described(body);
  Object.assign(agent, { name, version, osDescription, system, publicKey, clientId: randomUUID() });
  return ok(registered(x, agent));
}

function change(x: Exchange): Reply {
  const agent = agentOf(x);
  const body = objectBody(x);
  sameId(body, agent);
  if (typeof body.enabled === 'boolean') agent.enabled = body.enabled;
  assignWaiting(x.world);
  return ok(agentBody(x, agent));
}

function remove(x: Exchange): Reply {
  const agent = agentOf(x);
  if (requestOf(x.world, agent) !== null)
    throw new ServiceFailure(
      400,
      'TaskAgentJobStillRunningException',
      `Agent ${agent.name} cannot be deleted because it is currently running a job for pool ${agent.pool.name}.`,
    );
  agent.pool.agents.delete(agent.id);
  if (agent.session !== null) endSession(x.world, agent.session, 'removed');
  x.world.emit({ kind: 'agentDeleted', pool: agent.pool.id, agent: agent.id, name: agent.name });
  return nothing;
}

function setUserCapabilities(x: Exchange): Reply {
  const agent = agentOf(x);
  agent.user = stringMap(objectBody(x));
  assignWaiting(x.world);
  return ok({ ...agentBody(x, agent), userCapabilities: agent.user });
}

function heardOfUpdate(x: Exchange): Reply {
  const agent = agentOf(x);
  ownAgent(x, agent.id);
  return ok(agentBody(x, agent));
}

function sameId(body: Record<string, unknown>, agent: Agent): void {
  if (body.id !== agent.id)
    throw new ServiceFailure(
      400,
      'VssPropertyValidationException',
      `The body must carry the id ${agent.id}, not ${String(body.id)}.`,
    );
}

/** What POST and PUT must say. */
function described(body: Record<string, unknown>): Pick<Agent, 'name' | 'version' | 'osDescription' | 'system' | 'publicKey'> {
  const name = text(body.name);
  if (name === '' || name.length > 64)
    throw new ServiceFailure(
      400,
      'VssPropertyValidationException',
      'The property agent.Name is required, with 64 characters at most.',
    );
  if (body.maxParallelism !== 1)
    throw new ServiceFailure(400, 'VssPropertyValidationException', 'The property agent.MaxParallelism must be 1.');
  const key = isRecord(body.authorization) && isRecord(body.authorization.publicKey) ? body.authorization.publicKey : {};
  return {
    name,
    version: text(body.version),
    osDescription: text(body.osDescription),
    system: stringMap(body.systemCapabilities),
    publicKey: publicKey(text(key.exponent), text(key.modulus)),
  };
}

/** Standard base64 with its padding, as .NET writes bytes; the modulus of RSA-2048. */
function publicKey(exponent: string, modulus: string): PublicKey {
  const bytes = (value: string) =>
    /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(value) ? Buffer.from(value, 'base64') : Buffer.alloc(0);
  if (bytes(exponent).length === 0 || bytes(modulus).length !== 256)
    throw new ServiceFailure(
      400,
      'VssPropertyValidationException',
      'The property authorization.publicKey must hold exponent and modulus of an RSA-2048 key in base64.',
    );
  return { exponent, modulus };
}
