/** Tokens: how they look, and whose they are. A prefix tells the kind, as at the service. */
import { randomBytes } from 'node:crypto';
import type { Caller } from './http.ts';
import { isConnected, isOver, type World } from './state.ts';

export type Prefix = 'bkct' | 'bkaa' | 'bkaj' | 'bkjat';

export const newToken = (prefix: Prefix): string => `${prefix}_${randomBytes(30).toString('base64url')}`;

const NOBODY: Caller = { kind: 'none', valid: false, token: null, agent: null, job: null, only: null };

/** Reads the Authorization header; says whose token it is even when it is good no longer. */
export function callerOf(world: World, authorization: string | undefined): Caller {
  if (authorization === undefined) return NOBODY;
  const token = /^(?:Token|Bearer) (.+)$/.exec(authorization)?.[1] ?? '';
  const cluster = world.clusterTokens.get(token);
  if (cluster !== undefined) return { ...NOBODY, kind: cluster.kind, valid: !cluster.revoked, token: cluster };
  const agent = world.sessions.get(token);
  // Registered and not yet connected counts: that is what connect is called with.
  if (agent !== undefined) return { ...NOBODY, kind: 'session', valid: agent.gone === null, agent };
  const job = world.jobTokens.get(token);
  if (job !== undefined) {
    const held = job.token === token && !isOver(job) && job.agent !== null && isConnected(job.agent);
    return { ...NOBODY, kind: 'job', valid: held, job, agent: job.agent };
  }
  const acquisition = world.acquisitionTokens.get(token);
  if (acquisition !== undefined) {
    return { ...NOBODY, kind: 'acquisition', valid: acquisition.until > world.now(), only: acquisition.job };
  }
  return { ...NOBODY, kind: 'unknown' };
}

/** Whether a token that belongs on the host only stands in `text`. */
export function holdsToken(world: World, text: string): boolean {
  for (const token of world.clusterTokens.keys()) if (text.includes(token)) return true;
  for (const token of world.acquisitionTokens.keys()) if (text.includes(token)) return true;
  return false;
}
