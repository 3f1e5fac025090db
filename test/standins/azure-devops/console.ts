/** What a person types at the stand-in, and what it tells them. */
import { obeyLine } from '../kit/console.ts';
import { NAMED_FAULTS } from './faults.ts';
import type { AzureDevOps, StandInEvent } from './types.ts';

export const HELP = `queue [DEMAND, DEMAND …] [-- SCRIPT]   queue a job; a demand is "cuda" or "gpu.model -equals A100"
agents                                 the pool's registrations
requests                               its jobs
cancel ID                              cancel a job
update VERSION                         ask the agents to update
fault                                  names of faults
fault NAME [METHOD] [ROUTE] [TIMES]    from now on, e.g. "fault lost POST agents 1"; routes are named as in "log"
fault clear                            all is well again
log [N]                                the last requests to the service
expire                                 the PAT has expired
down, up                               nobody answers any more; and again
help, quit`;

/** Does what a line says; the answer is for the person. `quit` is the caller's. */
export function obey(azure: AzureDevOps, pool: number, line: string): Promise<string> {
  const commands = {
    queue: (_: readonly string[], rest: string) => queue(azure, pool, rest),
    agents: () => agents(azure, pool),
    requests: () => requests(azure, pool),
    cancel: ([id]: readonly string[]) => cancel(azure, pool, Number(id)),
    update([version]: readonly string[]) {
      if (version === undefined) return 'Which version? For example: update 5.279.0';
      azure.updateAgents(pool, version);
      return `Agents are asked to update to ${version}.`;
    },
    log: ([count = '20']: readonly string[]) => log(azure, Number(count)),
    expire() {
      azure.expirePat(azure.pat);
      return 'The PAT has expired.';
    },
  };
  return obeyLine({ help: HELP, address: azure.url, faults: azure.faults, named: NAMED_FAULTS, commands }, line);
}

function log(azure: AzureDevOps, count: number): string {
  return azure.log
    .slice(-count)
    .map(
      ({ status, identity, method, route }) =>
        `${status === 0 ? '—  ' : status} ${identity.padEnd(9)} ${method.padEnd(6)} ${route}`,
    )
    .join('\n');
}

function queue(azure: AzureDevOps, pool: number, rest: string): string {
  const [, wanted = '', script] = /^(.*?)(?:(?:^|\s)--\s+(.*))?$/s.exec(rest) ?? [];
  const demands = wanted.split(',').map((demand) => demand.trim());
  const job = { demands: demands.filter((demand) => demand !== ''), ...(script === undefined ? {} : { script }) };
  const { requestId, view } = azure.queue(pool, job);
  // What becomes of it is told as it happens; a job without an agent is over before anything can be told.
  return view().failedAtQueue ? `Job ${requestId} failed at once: ${view().statusMessage}` : `Job ${requestId} is queued.`;
}

function agents(azure: AzureDevOps, pool: number): string {
  const lines = azure.agents(pool).map(({ id, name, online, enabled, everOnline, request, version }) => {
    const state = request !== null ? `job ${request}` : online ? 'idle' : everOnline ? 'offline' : 'never online';
    return `${id}  ${name}  ${state}${enabled ? '' : ', disabled'}  ${version}`;
  });
  return lines.length === 0 ? 'No agent is registered.' : lines.join('\n');
}

function requests(azure: AzureDevOps, pool: number): string {
  const lines = azure.requests(pool).map(({ requestId, name, state, result, agent, demands }) => {
    const wanted = demands.length === 0 ? '' : `  (${demands.join(', ')})`;
    return `${requestId}  ${name}  ${result ?? state}${agent === null ? '' : `  ${agent.name}`}${wanted}`;
  });
  return lines.length === 0 ? 'No job has been queued. Try: queue -- echo hello' : lines.join('\n');
}

function cancel(azure: AzureDevOps, pool: number, id: number): string {
  if (!azure.requests(pool).some(({ requestId }) => requestId === id)) return 'There is no such job. See "requests".';
  azure.cancel(id);
  return `Job ${id} is being cancelled.`;
}

/** One line for what a person wants to see happen; null for the rest. */
export function told(event: StandInEvent): string | null {
  switch (event.kind) {
    case 'agentAdded':
      return `agent ${event.name} is registered`;
    case 'agentDeleted':
      return `agent ${event.name} is removed`;
    case 'sessionOpened':
      return `agent ${event.name} is online`;
    case 'sessionClosed':
      return `agent ${event.name} is offline (${event.why})`;
    case 'requestAssigned':
      return `job ${event.request.requestId} goes to ${event.request.agent?.name}`;
    case 'requestFinished':
      return `job ${event.request.requestId} ended: ${event.request.result}`;
    case 'line':
      return `  ${event.requestId} | ${event.text}`;
    default:
      return null;
  }
}
