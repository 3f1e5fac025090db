/**
 * A stand-in for Azure DevOps: what a manager of agents, an agent, and the job in it talk to, on one local port.
 *
 * It is a small program at the network, not a mock: clients reach it by URL and cannot tell it from the service by what the
 * sources say of that. What no source says is a guess, and is in `StandInOptions.statusCodes` where it is a status code.
 */
import { createHash, randomBytes, randomInt, randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createFaults } from './faults.ts';
import { askToUpdate } from './messages.ts';
import { newPool } from './pools.ts';
import { cancelRequest, queueJob, sweep, viewOf } from './queue.ts';
import { createDoor } from './server.ts';
import { type Agent, type Pool, requestOf, urlOf, type World } from './state.ts';
import type { AgentView, AzureDevOps, LoggedRequest, StandInEvent, StandInOptions, StatusCodes } from './types.ts';

export type { Fault, Faults, FaultWhere, RejectionShape } from './faults.ts';
export { FAULT_PLACES, NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

const CODES: StatusCodes = {
  agentAdded: 200,
  nameTaken: 409,
  deleteRefused: 400,
  agentNotFound: 404,
  poolNotFound: 404,
  sessionConflict: 409,
  sessionExpired: 403,
  jobNotFound: 400,
  denied: 403,
};
/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Starts one. It has the pools that every organisation has, `Default` and the hosted `Azure Pipelines`, and no agents. */
export async function startAzureDevOps(o: StandInOptions = {}): Promise<AzureDevOps> {
  const host = o.host ?? '127.0.0.1';
  const publicHost = o.publicHost ?? (host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host);
  const log: LoggedRequest[] = [];
  const strays: { path: string; authorization: string | null }[] = [];
  const listeners = new Set<(event: StandInEvent) => void>();
  const elsewhere = createServer((request, response) => {
    strays.push({ path: request.url ?? '', authorization: request.headers.authorization ?? null });
    response.setHeader('content-type', 'application/json').end('{"count":0,"value":[]}');
  });
  await listening(elsewhere, '127.0.0.1', 0);
  const faults = createFaults({ down: () => closed(server), up: () => listening(server, host, port) });
  // The port is known only after the first listening, and every URL needs it.
  let port = o.port ?? 0;
  const door = { log, elsewhere: `http://localhost:${portOf(elsewhere)}`, pick: faults.pick, world: {} as World };
  const server = createDoor(door);
  await listening(server, host, port);
  port = portOf(server);
  const world = createWorld(o, `http://${publicHost.includes(':') ? `[${publicHost}]` : publicHost}:${port}`, faults, (event) => {
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
      const same = world.packages.findIndex((each) => each.version === version && each.platform === platform);
      if (same !== -1) world.packages.splice(same, 1);
      world.packages.push({
        type: 'agent',
        platform,
        version,
        filename,
        file,
        sha256: sha256 === undefined ? await digestOf(file) : sha256,
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
          const fitting = event as Extract<StandInEvent, { kind: typeof kind }>;
          if (fits !== undefined && !fits(fitting)) return;
          off();
          resolve(fitting);
        });
      });
    },
    async [Symbol.asyncDispose]() {
      if (sweeping !== null) clearInterval(sweeping);
      await Promise.all([closed(server), closed(elsewhere)]);
    },
  };
  return azure;
}

function createWorld(o: StandInOptions, origin: string, faults: World['faults'], emit: World['emit']): World {
  const hosted = o.collectionPath === undefined;
  const base = (o.collectionPath ?? o.organisation ?? 'acme')
    .replace(/^\/+|\/+$/g, '')
    .split('/')
    .map(encodeURIComponent)
    .join('/');
  let last = 0;
  return {
    origin,
    base,
    hosted,
    codes: { ...CODES, ...o.statusCodes },
    pollHoldMs: o.pollHoldMs ?? 50_000,
    lockMs: o.lockMs ?? 10 * 60_000,
    sessionMs: o.sessionMs ?? 5 * 60_000,
    tokenMs: o.tokenMs ?? 60 * 60_000,
    planVersion: o.planVersion ?? 8,
    requeueUnreceived: o.requeueUnreceived ?? false,
    serverUrl: o.serverUrl === undefined ? (hosted ? `${origin}/${base}/` : null) : o.serverUrl,
    faults,
    now: o.now ?? Date.now,
    next: () => ++last,
    emit,
    pools: new Map(),
    sessions: new Map(),
    requests: new Map(),
    plans: new Map(),
    builds: new Map(),
    pats: new Map(),
    principal: {
      tenant: randomUUID(),
      client: randomUUID(),
      secret: `stand-in~${randomBytes(24).toString('base64url')}`,
      expired: false,
    },
    tokens: new Map(),
    packages: ['linux-x64', 'linux-arm64'].flatMap((platform) =>
      ['5.278.0', '4.275.0'].map((version) => ({
        type: 'agent',
        platform,
        version,
        filename: `vsts-agent-${platform}-${version}.tar.gz`,
        file: null,
        sha256: createHash('sha256')
          .update(platform + version)
          .digest('hex'),
      })),
    ),
  };
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

/** The shape by which clients and scanners know a PAT: 76 characters, `AZDO`, 4 characters. */
function newPat(): string {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
  const some = (count: number) => Array.from({ length: count }, () => letters[randomInt(letters.length)]).join('');
  return `${some(76)}AZDO${some(4)}`;
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file)) hash.update(chunk);
  return hash.digest('hex');
}

function listening(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

async function closed(server: Server): Promise<void> {
  if (!server.listening) return;
  const done = new Promise<void>((resolve) => server.close(() => resolve()));
  server.closeAllConnections();
  await done;
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}
