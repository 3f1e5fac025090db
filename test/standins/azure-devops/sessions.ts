/** Sessions of agents, and the polls in which they wait for messages (layer E). */
import { constants, createPublicKey, publicEncrypt, randomBytes, randomUUID } from 'node:crypto';
import { agentOf } from './agents.ts';
import { ownAgent } from './auth.ts';
import {
  type Exchange,
  isRecord,
  nothing,
  objectBody,
  ok,
  type Reply,
  type Route,
  ServiceFailure,
  stringMap,
  text,
} from './http.ts';
import { compareVersions } from './matcher.ts';
import { askToUpdate, endSession } from './messages.ts';
import { poolOf } from './pools.ts';
import { assignWaiting, received } from './queue.ts';
import { agentReference } from './request-body.ts';
import type { Agent, Message, Session } from './state.ts';

const PATH = '_apis/distributedtask/pools/{poolId}';

export const sessionRoutes: readonly Route[] = [
  { method: 'POST', name: 'sessions', path: `${PATH}/sessions`, allow: ['agent'], answer: open },
  { method: 'DELETE', name: 'sessions/{sessionId}', path: `${PATH}/sessions/{sessionId}`, allow: ['agent'], answer: close },
  { method: 'GET', name: 'messages', path: `${PATH}/messages`, allow: ['agent'], answer: poll },
  { method: 'DELETE', name: 'messages/{messageId}', path: `${PATH}/messages/{messageId}`, allow: ['agent'], answer: acknowledge },
];

function open(x: Exchange): Reply {
  const { world } = x;
  const body = objectBody(x);
  const said = isRecord(body.agent) ? body.agent : {};
  const agent = agentOf({ ...x, params: { ...x.params, agentId: String(said.id) } });
  ownAgent(x, agent.id);
  if (agent.session !== null)
    throw new ServiceFailure(
      409,
      'TaskAgentSessionConflictException',
      `The task agent ${agent.name} already has an active session for owner ${agent.session.owner}.`,
    );
  const session: Session = {
    id: randomUUID(),
    agent,
    owner: text(body.ownerName),
    key: randomBytes(32),
    messages: [],
    lastSeen: world.now(),
    polls: new Set(),
  };
  agent.session = session;
  agent.everOnline = true;
  agent.leaving = false;
  agent.version = text(said.version, agent.version);
  agent.osDescription = text(said.osDescription, agent.osDescription);
  agent.system = stringMap(body.systemCapabilities);
  world.sessions.set(session.id, session);
  world.emit({ kind: 'sessionOpened', pool: agent.pool.id, agent: agent.id, name: agent.name });
  const { wanted, autoUpdate } = agent.pool;
  if (wanted !== null && autoUpdate && compareVersions(agent.version, wanted) < 0) askToUpdate(world, agent, wanted);
  else assignWaiting(world);
  return ok({
    sessionId: session.id,
    ownerName: session.owner,
    agent: agentReference(agent),
    encryptionKey: { encrypted: true, value: sealedFor(agent, session.key) },
  });
}

/** RSA-OAEP with SHA-1, as .NET's `RSAEncryptionPadding.OaepSHA1` reads it. */
function sealedFor(agent: Agent, key: Buffer): string {
  const base64url = (value: string) => Buffer.from(value, 'base64').toString('base64url');
  const publicKey = createPublicKey({
    format: 'jwk',
    key: { kty: 'RSA', n: base64url(agent.publicKey.modulus), e: base64url(agent.publicKey.exponent) },
  });
  return publicEncrypt({ key: publicKey, padding: constants.RSA_PKCS1_OAEP_PADDING, oaepHash: 'sha1' }, key).toString('base64');
}

/** The caller's own session by id; what became of one that is not there any more is an error. */
function sessionOf(x: Exchange, id: string | undefined): Session {
  const session = x.world.sessions.get(id ?? '');
  if (session === undefined || session.agent.pool.id !== poolOf(x).id)
    throw new ServiceFailure(403, 'TaskAgentSessionExpiredException', `The session ${id} has expired or was never opened.`);
  ownAgent(x, session.agent.id);
  session.lastSeen = x.world.now();
  return session;
}

function close(x: Exchange): Reply {
  endSession(x.world, sessionOf(x, x.params.sessionId), 'left');
  return nothing;
}

/** Held until there is a message, or time is up: then 202 without a body. Several polls at once all get the same message. */
async function poll(x: Exchange): Promise<Reply> {
  const { world } = x;
  const id = x.query.get('sessionid');
  const session = sessionOf(x, id);
  const last = Number(x.query.get('lastmessageid') ?? 0);
  const first = (): Message | undefined => session.messages.find((message) => message.id > last);
  if (first() === undefined) {
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        cancel();
        session.polls.delete(wake);
        session.lastSeen = world.now();
        resolve();
      };
      const cancel = world.after(world.pollHoldMs, wake);
      session.polls.add(wake);
      if (x.signal.aborted) wake();
      x.signal.addEventListener('abort', wake, { once: true });
    });
    if (!x.signal.aborted && !session.agent.pool.agents.has(session.agent.id))
      throw new ServiceFailure(404, 'TaskAgentNotFoundException', `The agent ${session.agent.name} is not registered any more.`);
    if (!x.signal.aborted) sessionOf(x, id);
  }
  const message = first();
  if (message === undefined || x.signal.aborted) return { status: 202, text: '' };
  return ok({ messageId: message.id, messageType: message.type, iv: message.iv ?? undefined, body: message.body });
}

function acknowledge(x: Exchange): Reply {
  const session = sessionOf(x, x.query.get('sessionid'));
  const at = session.messages.findIndex((message) => message.id === Number(x.params.messageId));
  const message = session.messages[at];
  if (message === undefined) return nothing;
  session.messages.splice(at, 1);
  const request = message.request === null ? undefined : x.world.requests.get(message.request);
  if (request !== undefined) received(x.world, request);
  return nothing;
}
