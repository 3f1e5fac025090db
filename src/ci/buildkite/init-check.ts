/** Looks at Buildkite with a token before anything is written: what it is for, and whether the queue is there. */

import { systemClock } from '../../clock.ts';
import type { Proxies } from '../../config/proxies.ts';
import { OnejobError } from '../../errors.ts';
import type { QueueCounts, ServiceApi, TokenIdentity } from './api.ts';

/** What `init` asks of the service. */
export type BuildkiteLook = Pick<ServiceApi, 'identity' | 'counts'> & { close(): void };

export async function lookAtBuildkite(endpoint: string, version: string, proxies: Proxies): Promise<BuildkiteLook> {
  const [{ createServiceApi }, { createOutbound }] = await Promise.all([import('./api.ts'), import('../../http/outbound.ts')]);
  const outbound = createOutbound(proxies);
  const api = createServiceApi({ endpoint, version, clock: systemClock, fetch: outbound.fetch });
  return { ...api, close: () => outbound.close() };
}

export interface Seen {
  /** null: the service was not reached, or does not say. */
  readonly identity: TokenIdentity | null;
  readonly counts: QueueCounts | null;
  /** For people. */
  readonly lines: readonly string[];
}

/** ms between both clocks that is told. */
const worstSkew = 30_000;

/** Whether trying again later could help, so that nothing speaks against the token itself. */
const isAway = (error: unknown): error is OnejobError =>
  error instanceof OnejobError && (error.code === 'E_CI_UNREACHABLE' || error.code === 'E_CI_THROTTLED');

/** A service that cannot be reached is no reason to write nothing. @throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_ANSWER */
export async function seeToken(look: BuildkiteLook, endpoint: string, token: string, signal: AbortSignal): Promise<Seen> {
  const lines: string[] = [];
  let identity: TokenIdentity | null = null;
  try {
    const told = await look.identity(token, signal);
    if (told !== null) {
      identity = told.value;
      const { organisation, cluster, queue } = identity;
      const of = organisation === null ? '' : ` of organisation ${organisation}`;
      const where = cluster === null ? '' : `, cluster ${JSON.stringify(cluster)}`;
      lines.push(`${endpoint} takes the token${of}${where}${queue === null ? '' : `, for queue ${JSON.stringify(queue)} only`}.`);
      if (told.skew !== null && Math.abs(told.skew) > worstSkew) {
        const seconds = Math.round(Math.abs(told.skew) / 1000);
        lines.push(`The clock of this host is ${seconds} s ${told.skew > 0 ? 'behind' : 'ahead'}; let NTP set it.`);
      }
    }
  } catch (error) {
    if (error instanceof OnejobError && (error.code === 'E_CI_CREDENTIAL' || error.code === 'E_CI_DENIED')) {
      throw new OnejobError(error.code, `The token is refused. ${error.message}`, {
        hint: 'Make an agent token on the website: Agents, the cluster, Agent Tokens. It begins with bkct_.',
        cause: error,
      });
    }
    if (!isAway(error)) throw error;
    return { identity: null, counts: null, lines: [`${error.message} So nobody has looked whether the token is right.`] };
  }
  try {
    return { identity, counts: (await look.counts(token, signal)).value, lines };
  } catch (error) {
    if (!(error instanceof OnejobError)) throw error;
    return { identity, counts: null, lines: [...lines, `${error.message} Queues are not counted then; all else works.`] };
  }
}

/** Whether the service speaks of queues and this is none of them. A cluster that is new speaks of none. */
export function isStrange({ counts }: Seen, queue: string): boolean {
  return counts !== null && counts.known.size > 0 && !counts.known.has(queue);
}

/** What is to be said of a queue. @throws OnejobError E_CI_POOL when the token is for another one */
export function seeQueue({ identity, counts }: Seen, queue: string): string[] {
  const only = identity?.queue ?? null;
  if (only !== null && only !== queue) {
    throw new OnejobError('E_CI_POOL', `The token is for queue ${JSON.stringify(only)} only, not for ${JSON.stringify(queue)}.`, {
      hint: `Name ${JSON.stringify(only)}, or make a token for the whole cluster.`,
    });
  }
  if (counts === null) return [];
  if (counts.known.has(queue)) {
    const waiting = counts.scheduled.get(queue) ?? 0;
    return [`There is a queue ${JSON.stringify(queue)}; ${waiting === 1 ? 'one job waits' : `${waiting} jobs wait`} in it.`];
  }
  const names = [...counts.known].toSorted().slice(0, 10);
  const seen = names.length === 0 ? '' : ` It speaks of: ${names.join(', ')}.`;
  return [
    `The service does not speak of a queue ${JSON.stringify(queue)}: it has no agent and no job, or there is none.${seen} In a cluster make it on the website first.`,
  ];
}
