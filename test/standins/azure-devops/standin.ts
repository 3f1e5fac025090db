/**
 * A stand-in for Azure DevOps: what a manager of agents, an agent, and the job in it talk to, on one local port.
 *
 * It is a small program at the network, not a mock: clients reach it by URL and cannot tell it from the service by what the
 * sources say of that. What no source says is a guess, and is in `StandInOptions.statusCodes` where it is a status code.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { createServer } from 'node:http';
import { closed, inUrl, listening, portOf, publicOf } from '../listener.ts';
import { createFaults } from './faults.ts';
import { askToUpdate } from './messages.ts';
import { newPool } from './pools.ts';
import { cancelRequest, queueJob, sweep, viewOf } from './queue.ts';
import { createDoor } from './server.ts';
import { type Agent, type Pool, requestOf, urlOf, type World } from './state.ts';
import type { AgentView, AzureDevOps, EventOf, LoggedRequest, StandInEvent, StandInOptions } from './types.ts';
import { createWorld, newPat } from './world.ts';

export type { Fault, Faults, FaultWhere, RejectionShape } from './faults.ts';
export { FAULT_PLACES, NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Starts one. It has the pools that every organisation has, `Default` and the hosted `Azure Pipelines`, and no agents. */
export async function startAzureDevOps(o: StandInOptions = {}): Promise<AzureDevOps> {
  const host = o.host ?? '127.0.0.1';
  const publicHost = o.publicHost ?? publicOf(host);
  const log: LoggedRequest[] = [];
  const strays: { path: string; authorization: string | null }[] = [];
  const listeners = new Set<(event: StandInEvent) => void>();
  const elsewhere = createServer((request, response) => {
    strays.push({ path: request.url ?? '', authorization: request.headers.authorization ?? null });
    response.setHeader('content-type', 'application/json').end('{"count":0,"value":[]}');
  });
  await listening(elsewhere, '127.0.0.1', 0);
  // Opening and closing one after the other, and nothing opens after the end.
  let turn: Promise<void> = Promise.resolve();
  let ended = false;
  const inTurn = (act: () => Promise<void>): Promise<void> => {
    turn = turn.then(act);
    return turn;
  };
  const faults = createFaults({
    down: () => inTurn(() => closed(server)),
    up: () => inTurn(async () => (ended ? undefined : listening(server, host, port))),
  });
  // The port is known only after the first listening, and every URL needs it.
  let port = o.port ?? 0;
  const door = { log, elsewhere: `http://localhost:${portOf(elsewhere)}`, pick: faults.pick, world: {} as World };
  const server = createDoor(door);
  await listening(server, host, port);
  port = portOf(server);
  const world = createWorld(o, `http://${inUrl(publicHost)}:${port}`, faults, (event) => {
    for (const listener of [...listeners]) listener(event);
  });
  door.world = world;
  newPool(world, 'Default');
  newPool(world, 'Azure Pipelines', { hosted: true });
  const sweeping = o.now === undefined ? setInterval(() => sweep(world), SWEEP_MS) : null;
  sweeping?.unref();
  const pat = addPat({ scopes: ['agentpools_manage', 'build'], poolAdmin: true });

  function addPat(about: Parameters<AzureDevOps['addPat']>[0]): string {
    const made = newPat();
    world.pats.set(made, { scopes: about.scopes, poolAdmin: about.poolAdmin ?? true, expired: about.expired ?? false });
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
  const azure: AzureDevOps = {
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
    expirePrincipal: () => {
      world.principal.expired = true;
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
    async addPackage({ version, file, platform = 'linux-x64', sha256 }) {
      const filename = `vsts-agent-${platform}-${version}.tar.gz`;
      const hash = sha256 === undefined ? await digestOf(file) : sha256;
      // What is listed from the start cannot be downloaded, so it makes room.
      const others = world.packages.filter(
        (each) => each.platform !== platform || (each.version !== version && each.file !== null),
      );
      world.packages.splice(0, world.packages.length, ...others, {
        type: 'agent',
        platform,
        version,
        filename,
        file,
        sha256: hash,
      });
    },
    sweep: () => sweep(world),
    log,
    lines: (id) => requestBy(id).plan.feed,
    strays,
    faults,
    on(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    next(kind, fits) {
      return new Promise((resolve) => {
        const off = azure.on((event) => {
          if (event.kind !== kind) return;
          const fitting = event as EventOf<typeof kind>;
          if (fits !== undefined && !fits(fitting)) return;
          off();
          resolve(fitting);
        });
      });
    },
    async [Symbol.asyncDispose]() {
      if (sweeping !== null) clearInterval(sweeping);
      ended = true;
      await Promise.all([inTurn(() => closed(server)), closed(elsewhere)]);
    },
  };
  return azure;
}

function agentView(world: World, agent: Agent): AgentView {
  return {
    id: agent.id,
    name: agent.name,
    version: agent.version,
    online: agent.session !== null,
    enabled: agent.enabled,
    everOnline: agent.everOnline,
    session: agent.session?.id ?? null,
    request: requestOf(world, agent)?.id ?? null,
    systemCapabilities: { ...agent.system },
    userCapabilities: { ...agent.user },
    clientId: agent.clientId,
  };
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file)) hash.update(chunk);
  return hash.digest('hex');
}
