/**
 * A stand-in for Azure DevOps: what a manager of agents, an agent, and the job in it talk to, on one local port.
 *
 * It is a small program at the network, not a mock: clients reach it by URL and cannot tell it from the service by what the
 * sources say of that.
 */
import { createServer } from 'node:http';
import { enter } from '../kit/door.ts';
import { createServerOf, openPorts, publicOf, sweeping } from '../kit/server.ts';
import type { Door } from './door.ts';
import { createOrganisation } from './organisation.ts';
import { sweep } from './queue.ts';
import type { AzureDevOps, LoggedRequest, StandInOptions } from './types.ts';

export type { Fault, Faults, FaultWhere, RejectionShape } from './faults.ts';
export { NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** Starts one. */
export async function startAzureDevOps(o: StandInOptions = {}): Promise<AzureDevOps> {
  const host = o.host ?? '127.0.0.1';
  const log: LoggedRequest[] = [];
  const strays: { path: string; authorization: string | null }[] = [];
  const other = createServer((request, response) => {
    strays.push({ path: request.url ?? '', authorization: request.headers.authorization ?? null });
    response.setHeader('content-type', 'application/json').end('{"count":0,"value":[]}');
  });
  await using stack = new AsyncDisposableStack();
  const elsewhere = stack.use(await openPorts([other], '127.0.0.1', 0));
  // The port is known only after the first listening, and every URL needs it.
  let door: Door;
  const pages = /\/_build\/results\?/;
  const server = createServerOf({ name: 'Azure DevOps', afterHalf: 'silence', pages, enter: (request) => enter(door, request) });
  const ports = stack.use(await openPorts([server], host, o.port ?? 0));
  const [port = 0] = ports.ports;
  const { azure, service } = createOrganisation(o, {
    origin: `http://${publicOf(o.publicHost ?? host)}:${port}`,
    port,
    elsewhere: `http://localhost:${elsewhere.ports[0]}`,
    strays,
    log,
    down: ports.down,
    up: ports.up,
  });
  door = service;
  if (o.now === undefined) stack.use(sweeping(() => sweep(service.world)));
  const all = stack.move();
  return { ...azure, [Symbol.asyncDispose]: () => all.disposeAsync() };
}
