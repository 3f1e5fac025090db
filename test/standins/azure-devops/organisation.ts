/** What tests do to an organisation, and see of it, whatever way requests come to it. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { createEvents } from '../kit/events.ts';
import type { Entrance as Doorway } from '../kit/in-process.ts';
import { createDoor, type Door } from './door.ts';
import { createFaults } from './faults.ts';
import { askToUpdate } from './messages.ts';
import { newPool } from './pools.ts';
import { cancelRequest, queueJob, sweep, viewOf } from './queue.ts';
import { type Agent, type Pool, requestOf, urlOf, type World } from './state.ts';
import type { AgentView, AzureDevOps, LoggedRequest, StandInEvent, StandInOptions } from './types.ts';
import { createWorld, newPat } from './world.ts';

export interface Entrance extends Doorway<LoggedRequest> {
  /** `http://host:port`. */
  readonly origin: string;
  readonly port: number;
  /** URL of the host to which a redirect leads. */
  readonly elsewhere: string;
  readonly strays: AzureDevOps['strays'];
}

/** It has the pools that every organisation has, `Default` and the hosted `Azure Pipelines`, and no agents. */
export function createOrganisation(
  o: StandInOptions,
  { origin, port, elsewhere, strays, log, down, up }: Entrance,
): { readonly azure: Omit<AzureDevOps, typeof Symbol.asyncDispose>; readonly service: Door } {
  const { emit, on, next } = createEvents<StandInEvent>();
  const faults = createFaults(o.now ?? Date.now, { down, up });
  const world = createWorld(o, origin, faults, emit);
  newPool(world, 'Default');
  newPool(world, 'Azure Pipelines', { hosted: true });
  const pat = addPat({ scopes: ['agentpools_manage', 'build'], poolAdmin: true });

  function addPat(about: Parameters<AzureDevOps['addPat']>[0]): string {
    const made = newPat();
    world.pats.set(made, { scopes: about.scopes, poolAdmin: about.poolAdmin ?? true, expired: false });
    return made;
  }
  function poolOf(id: number): Pool {
    const pool = world.pools.get(id);
    if (pool === undefined) throw new Error(`The stand-in has no pool ${id}; it has ${[...world.pools.keys()].join(', ')}.`);
    return pool;
  }
  function requestBy(id: number) {
    const request = world.requests.get(id);
    if (request === undefined) throw new Error(`The stand-in has no request ${id}.`);
    return request;
  }
  const { tenant, client, secret } = world.principal;
  const azure: Omit<AzureDevOps, typeof Symbol.asyncDispose> = {
    url: urlOf(world),
    port,
    pat,
    principal: { tenant, client, secret, authority: `${world.origin}/entra` },
    addPat,
    expirePat(known) {
      const found = world.pats.get(known);
      if (found === undefined) throw new Error('The stand-in has no such PAT.');
      found.expired = true;
    },
    addPool: (name, about) => newPool(world, name, about).id,
    queue(pool, job = {}) {
      const request = queueJob(world, poolOf(pool), job);
      return { requestId: request.id, finished: request.done.promise, view: () => viewOf(request) };
    },
    cancel: (id) => cancelRequest(world, requestBy(id)),
    agents: (pool) => [...poolOf(pool).agents.values()].map((agent) => agentView(world, agent)),
    requests: (pool) => [...world.requests.values()].filter((request) => request.pool.id === pool).map(viewOf),
    updateAgents(id, version) {
      const pool = poolOf(id);
      pool.wanted = version;
      for (const agent of pool.agents.values()) if (agent.session !== null) askToUpdate(world, agent, version);
    },
    async addPackage({ version, file }) {
      const platform = 'linux-x64';
      const filename = `vsts-agent-${platform}-${version}.tar.gz`;
      const sha256 = await digestOf(file);
      // What is listed from the start cannot be downloaded, so it makes room.
      const others = world.packages.filter(
        (each) => each.platform !== platform || (each.version !== version && each.file !== null),
      );
      world.packages.splice(0, world.packages.length, ...others, { platform, version, filename, file, sha256 });
    },
    sweep: () => sweep(world),
    log,
    lines: (id) => requestBy(id).plan.feed,
    strays,
    faults,
    on,
    next,
  };
  return { azure, service: createDoor(world, log, elsewhere, faults.pick) };
}

function agentView(world: World, agent: Agent): AgentView {
  return {
    id: agent.id,
    name: agent.name,
    version: agent.version,
    online: agent.session !== null,
    enabled: agent.enabled,
    everOnline: agent.everOnline,
    request: requestOf(world, agent)?.id ?? null,
    systemCapabilities: { ...agent.system },
    userCapabilities: { ...agent.user },
  };
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file)) hash.update(chunk);
  return hash.digest('hex');
}
