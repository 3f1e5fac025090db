/**
 * The session: opened with the agent's capabilities, polled for messages, deleted at the end. Who gives up when, and with which
 * exit code, is the real agent's (agent `MessageListener.cs`).
 */
import { createDecipheriv, constants as crypto, privateDecrypt } from 'node:crypto';
import { hostname, release } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from './connection.mjs';
import { stamp } from './diag.mjs';
import { wait } from './habits.mjs';
import { ServiceError } from './http.mjs';

const sessionRetry = 30_000;
/** Errors after which asking again is of no use, and the sentence or silence that each ends in. */
const fatal = new Set([
  'TaskAgentNotFoundException',
  'TaskAgentPoolNotFoundException',
  'AccessDeniedException',
  'VssUnauthorizedException',
  'UnauthorizedRequestException',
]);
const limits = { TaskAgentSessionConflictException: 4 * 60_000, 'Current server time is': 30 * 60_000 };

/** Ends the listener with `code`, saying `message` unless it is null. */
export class Ending extends Error {
  constructor(code, message) {
    super(message ?? '');
    this.code = code;
  }
}

/** Opens the session. Throws `Ending` when the real agent would give up; waits and tries again until `signal`. */
export async function openSession(parts) {
  const { settings, token, privateKey, version, capabilities, print, trace, signal } = parts;
  const seen = {};
  let said = false;
  for (;;) {
    try {
      const connection = await connect(settings.serverUrl, token);
      const agent = { id: settings.agentId, name: settings.agentName, version, osDescription: `Linux ${release()}` };
      const body = { ownerName: hostname(), agent, systemCapabilities: capabilities };
      const { value } = await connection.call('POST', 'sessions', { poolId: settings.poolId }, { body, signal });
      if (typeof value?.sessionId !== 'string') throw new Error('The service gave a session without an id');
      if (said) print(`${stamp()}: Agent reconnected.`);
      trace(`Session ${value.sessionId} created.`);
      return makeSession(parts, connection, value.sessionId, sessionKey(value.encryptionKey, privateKey));
    } catch (error) {
      if (signal.aborted) throw error;
      trace(`Session not created: ${error.message}`);
      judgeRefusal(error, seen, print);
      if (!said) print(`${stamp()}: Agent connect error: ${error.message}. Retrying until reconnected.`);
      said = true;
      await sleep(wait(sessionRetry), undefined, { signal });
    }
  }
}

function judgeRefusal(error, seen, print) {
  if (!(error instanceof ServiceError)) return;
  if (error.typeKey === 'TaskAgentAccessTokenExpiredException') throw new Ending(0, null);
  if (error.typeKey === 'TaskAgentNotFoundException')
    print('The agent no longer exists on the server. Please reconfigure the agent.');
  if (fatal.has(error.typeKey)) throw new Ending(1, `Failed to create session. ${error.message}`);
  for (const [sign, limit] of Object.entries(limits)) {
    if (error.typeKey !== sign && !error.message.includes(sign)) continue;
    print(
      sign.startsWith('Task')
        ? 'A session for this agent already exists.'
        : 'The local clock may be out of sync with the server time.',
    );
    seen[sign] = (seen[sign] ?? -1) + 1;
    if (seen[sign] * sessionRetry >= limit) throw new Ending(1, `Failed to create session. ${error.message}`);
  }
}

function sessionKey(given, privateKey) {
  if (given === undefined || given === null || given.value === '') return null;
  const bytes = Buffer.from(given.value, 'base64');
  if (!given.encrypted) return bytes;
  return privateDecrypt({ key: privateKey, padding: crypto.RSA_PKCS1_OAEP_PADDING, oaepHash: 'sha1' }, bytes);
}

function makeSession(parts, connection, sessionId, key) {
  const { settings, print, trace, signal } = parts;
  const poolId = settings.poolId;
  let last;
  const poll = (options) => connection.call('GET', 'messages', { poolId }, options);

  return {
    connection,
    /** The next message, its body parsed. Throws `Ending`, a 2 as for any unhandled exception, once the entry is gone. */
    async next(stop) {
      for (let failures = 0; ; ) {
        try {
          const query = { sessionId, ...(last === undefined ? {} : { lastMessageId: String(last) }) };
          const { status, value } = await poll({ query, signal: stop });
          if (failures > 0) print(`${stamp()}: Agent reconnected.`);
          failures = 0;
          if (status !== 202 && value !== null) {
            last = value.messageId;
            trace(`Message ${value.messageId} (${value.messageType}) received.`);
            return { ...value, body: JSON.parse(decrypt(value, key)) };
          }
          await sleep(wait(between(5, 15)), undefined, { signal: stop });
        } catch (error) {
          if (stop.aborted) throw error;
          trace(`No message: ${error.message}`);
          if (error instanceof ServiceError) {
            if (error.typeKey === 'TaskAgentAccessTokenExpiredException') throw new Ending(0, null);
            if (error.typeKey === 'TaskAgentSessionExpiredException') return await this.renewed(error, stop);
            if (fatal.has(error.typeKey)) throw new Ending(2, `An error occurred: ${error.message}`);
          }
          failures += 1;
          if (failures === 1) print(`${stamp()}: Agent connect error: ${error.message}. Retrying until reconnected.`);
          await sleep(wait(failures <= 5 ? between(15, 30) : between(30, 60)), undefined, { signal: stop });
        }
      }
    },
    /** The service dropped the session: a new one, unless `.agent` says to take that as the end. */
    async renewed(error, stop) {
      if (settings.skipSessionRecover === true) throw new Ending(2, `An error occurred: ${error.message}`);
      const again = await openSession(parts);
      Object.assign(this, again);
      return await this.next(stop);
    },
    acknowledge: (message) =>
      connection
        .call('DELETE', 'messages', { poolId, messageId: message.messageId }, { query: { sessionId } })
        .catch((error) => trace(`Message ${message.messageId} not deleted: ${error.message}`)),
    /** Polls beside the listener and throws the answers away, as the real agent does, until `signal`. */
    async keepAlive(stop) {
      while (!stop.aborted) {
        await poll({ query: { sessionId }, signal: stop }).catch(() => undefined);
        await sleep(30_000, undefined, { signal: stop }).catch(() => undefined);
      }
    },
    close: () =>
      connection
        .call('DELETE', 'sessions', { poolId, sessionId }, { signal: AbortSignal.timeout(wait(30_000) + 5000) })
        .catch((error) => trace(`Session not deleted: ${error.message}`)),
    aborted: () => signal.aborted,
  };
}

function between(from, to) {
  return (from + Math.random() * (to - from)) * 1000;
}

function decrypt({ body, iv }, key) {
  if (key === null || iv === undefined || iv === null || iv === '') return body;
  const decipher = createDecipheriv('aes-256-cbc', key, Buffer.from(iv, 'base64'));
  return Buffer.concat([decipher.update(Buffer.from(body, 'base64')), decipher.final()]).toString('utf8');
}
