/** What the service tells an agent: messages of a session, encrypted with its key, again and again until they are deleted. */
import { createCipheriv, randomBytes } from 'node:crypto';
import type { Agent, Session, World } from './state.ts';

/** Puts a message into the session's queue and wakes every poll. */
export function post(
  world: World,
  session: Session,
  type: string,
  body: Record<string, unknown>,
  request: number | null = null,
): void {
  const iv = randomBytes(16);
  const cipher = createCipheriv('aes-256-cbc', session.key, iv);
  const sealed = Buffer.concat([cipher.update(JSON.stringify(body), 'utf8'), cipher.final()]).toString('base64');
  session.messages.push({ id: world.next(), type, iv: iv.toString('base64'), body: sealed, request });
  for (const wake of [...session.polls]) wake();
}

/** Asks an agent to update. */
export function askToUpdate(world: World, agent: Agent, version: string): void {
  if (agent.session !== null)
    post(world, agent.session, 'AgentRefresh', { agentId: agent.id, timeout: '00:05:00', targetVersion: version });
}

/** The session is over: its agent is offline, and its polls are answered. */
export function endSession(world: World, session: Session, why: 'left' | 'expired' | 'removed'): void {
  const { agent } = session;
  if (!world.sessions.delete(session.id)) return;
  if (agent.session === session) agent.session = null;
  agent.leaving = false;
  for (const wake of [...session.polls]) wake();
  world.emit({ kind: 'sessionClosed', pool: agent.pool.id, agent: agent.id, name: agent.name, why });
}
