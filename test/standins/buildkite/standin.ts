/**
 * A stand-in for Buildkite: what a broker, an agent and the job in it talk to. The Agent API is on one port, the host that
 * artifacts go to on another.
 *
 * It is a small program at the network, not a mock: the real agent is its client in tests. What no source says is a guess,
 * and is called one beside its route.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { closed, inUrl, listening, portOf, publicOf } from '../listener.ts';
import { createArtifactHost } from './artifact-host.ts';
import { sweep } from './dispatch.ts';
import { passed, write } from './door.ts';
import { createOrganisation } from './organisation.ts';
import { createServerOf } from './server.ts';
import { callerOf } from './tokens.ts';
import type { BuildkiteOptions, BuildkiteStandin } from './types.ts';

export type { Fault, Faults, FaultWhere } from './faults.ts';
export { NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Starts one, with a cluster, its default queue and two tokens, and neither agents nor jobs. */
export async function startBuildkite(options: BuildkiteOptions = {}): Promise<BuildkiteStandin> {
  const host = options.host ?? '127.0.0.1';
  const publicHost = options.publicHost ?? publicOf(host);
  // Opening and closing one after the other, and nothing opens after the end.
  let turn: Promise<void> = Promise.resolve();
  let ended = false;
  const inTurn = (act: () => Promise<void>): Promise<void> => {
    turn = turn.then(act);
    return turn;
  };
  const ports = { api: options.port ?? 0, artifacts: 0 };
  const close = (): Promise<void> => inTurn(async () => void (await Promise.all([closed(server), closed(artifacts)])));
  const { buildkite, door } = createOrganisation(options, {
    log: [],
    down: close,
    up: () =>
      inTurn(async () => {
        if (!ended) await Promise.all([listening(server, host, ports.api), listening(artifacts, host, ports.artifacts)]);
      }),
  });
  const { world } = door;
  const server = createServerOf(door);
  const artifacts = createArtifactHost(() => world, beforeArtifact);
  // As long as the service's own: a client that thinks a connection is good must not be surprised.
  for (const one of [server, artifacts]) one.keepAliveTimeout = 75_000;
  await listening(server, host, ports.api);
  await listening(artifacts, host, 0);
  ports.api = portOf(server);
  ports.artifacts = portOf(artifacts);
  const at = (port: number): string => `http://${inUrl(publicHost)}:${port}`;
  world.origin = at(ports.api);
  world.artifactHost = at(ports.artifacts);
  const sweeping = options.now === undefined ? setInterval(() => sweep(world), SWEEP_MS) : null;
  sweeping?.unref();

  /** The log and the faults are those of the API; `half`, `doubled` and `garbage` change nothing here. */
  async function beforeArtifact(message: IncomingMessage, response: ServerResponse, route: string): Promise<boolean> {
    const { method = 'GET', headers, socket } = message;
    const caller = callerOf(world, headers.authorization);
    const from = socket.remoteAddress ?? '';
    const entry = write(door, { method, headers, from }, caller, { route, params: {}, query: '' });
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
  return {
    ...buildkite,
    endpoint: `${world.origin}/v3`,
    port: ports.api,
    artifactHost: world.artifactHost,
    async [Symbol.asyncDispose]() {
      if (sweeping !== null) clearInterval(sweeping);
      ended = true;
      await close();
    },
  };
}
