/**
 * A stand-in for Azure DevOps: what a manager of agents, an agent, and the job in it talk to, on one local port.
 *
 * It is a small program at the network, not a mock: clients reach it by URL and cannot tell it from the service by what the
 * sources say of that. What no source says is a guess, and is in `StandInOptions.statusCodes` where it is a status code.
 */
import { createServer } from 'node:http';
import { closed, inUrl, listening, portOf, publicOf } from '../listener.ts';
import type { Door } from './door.ts';
import { createOrganisation } from './organisation.ts';
import { sweep } from './queue.ts';
import { createServerOf } from './server.ts';
import type { AzureDevOps, LoggedRequest, StandInOptions } from './types.ts';

export type { Fault, Faults, FaultWhere, RejectionShape } from './faults.ts';
export { FAULT_PLACES, NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Starts one. */
export async function startAzureDevOps(o: StandInOptions = {}): Promise<AzureDevOps> {
  const host = o.host ?? '127.0.0.1';
  const publicHost = o.publicHost ?? publicOf(host);
  const log: LoggedRequest[] = [];
  const strays: { path: string; authorization: string | null }[] = [];
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
  // The port is known only after the first listening, and every URL needs it.
  let door: Door;
  const server = createServerOf(() => door);
  await listening(server, host, o.port ?? 0);
  const port = portOf(server);
  const made = createOrganisation(o, {
    ...{ origin: `http://${inUrl(publicHost)}:${port}`, port, elsewhere: `http://localhost:${portOf(elsewhere)}`, strays, log },
    down: () => inTurn(() => closed(server)),
    up: () => inTurn(async () => (ended ? undefined : listening(server, host, port))),
  });
  door = made.door;
  const sweeping = o.now === undefined ? setInterval(() => sweep(made.door.world), SWEEP_MS) : null;
  sweeping?.unref();
  return {
    ...made.azure,
    async [Symbol.asyncDispose]() {
      if (sweeping !== null) clearInterval(sweeping);
      ended = true;
      await Promise.all([inTurn(() => closed(server)), closed(elsewhere)]);
    },
  };
}
