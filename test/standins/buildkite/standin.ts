/**
 * A stand-in for Buildkite: what a manager of agents, an agent and the job in it talk to. The Agent API is on one port, the host that
 * artifacts go to on another.
 *
 * It is a small program at the network, not a mock: the real agent is its client in tests. What no source says is a guess,
 * and is called one beside its route.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { enter, passed } from '../kit/door.ts';
import { createServerOf, openPorts, publicOf, sweeping } from '../kit/server.ts';
import { createArtifactHost } from './artifact-host.ts';
import { sweep } from './dispatch.ts';
import { type Door, entryOf } from './door.ts';
import { createOrganisation } from './organisation.ts';
import { callerOf } from './tokens.ts';
import type { BuildkiteOptions, BuildkiteStandin } from './types.ts';

export type { Fault, Faults, FaultWhere } from './faults.ts';
export { NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** Starts one, with a cluster, its default queue and two tokens, and neither agents nor jobs. */
export async function startBuildkite(options: BuildkiteOptions = {}): Promise<BuildkiteStandin> {
  const host = options.host ?? '127.0.0.1';
  // The ports are known only after the first listening, and URLs need them.
  let door: Door;
  const pages = /^\/(?!v3\/)[\w-]+\/[\w-]+\/builds\/\d+$/;
  const server = createServerOf({ name: 'Buildkite', afterHalf: 'cut', pages, enter: (request) => enter(door, request) });
  const artifacts = createArtifactHost(() => door.world, beforeArtifact);
  // As long as the service's own: a client that thinks a connection is good must not be surprised.
  for (const one of [server, artifacts]) one.keepAliveTimeout = 75_000;
  await using stack = new AsyncDisposableStack();
  const { ports, down, up } = stack.use(await openPorts([server, artifacts], host, options.port ?? 0));
  const [port = 0, artifactPort = 0] = ports;
  const { buildkite, service } = createOrganisation(options, { log: [], down, up });
  door = service;
  const { world } = service;
  const at = (of: number): string => `http://${publicOf(options.publicHost ?? host)}:${of}`;
  world.origin = at(port);
  world.artifactHost = at(artifactPort);
  if (options.now === undefined) stack.use(sweeping(() => sweep(world)));

  /** The log and the faults are those of the API; `half`, `doubled` and `garbage` change nothing here. */
  async function beforeArtifact(message: IncomingMessage, response: ServerResponse, route: string): Promise<boolean> {
    const { method = 'GET', headers, socket } = message;
    const caller = callerOf(world, headers.authorization);
    const from = socket.remoteAddress ?? '';
    const entry = entryOf(world, { method, headers, from }, caller, { route, params: {}, query: '' });
    door.log.push(entry);
    const fault = door.pick(entry);
    response.once('finish', () => {
      entry.status = response.statusCode;
      entry.bytes = Number(message.headers['content-length'] ?? 0);
      world.emit({ kind: 'answered', request: entry });
    });
    switch (fault?.kind) {
      case 'reset':
        message.socket.destroy();
        return true;
      case 'lost':
        // All of it has come, and will be kept; only the answer finds nobody.
        message.once('end', () => message.socket.destroy());
        return false;
      case 'hang':
        return true;
      case 'error':
      case 'dropped':
        message.resume();
        response.writeHead(fault.kind === 'error' ? fault.status : 201).end();
        return true;
      case 'delay': {
        const gone = new AbortController();
        response.on('close', () => gone.abort());
        return !(await passed(world, fault.ms, gone.signal));
      }
      default:
        return false;
    }
  }
  const all = stack.move();
  return {
    ...buildkite,
    endpoint: `${world.origin}/v3`,
    port,
    artifactHost: world.artifactHost,
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}
