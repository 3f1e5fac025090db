/**
 * An agent that a test moves by hand, step by step, over the wire: for tests of the stand-in, and of managers that do not need
 * a process. It signs in with its key as the real one does, and never sees a PAT.
 */
import {
  constants,
  createDecipheriv,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  privateDecrypt,
  randomUUID,
  sign,
} from 'node:crypto';
import { z } from 'zod';
import {
  CredentialsSchema,
  JobSchema,
  MessageSchema,
  RegisteredSchema,
  RsaSchema,
  SessionSchema,
  SettingsSchema,
} from './hand-agent-wire.ts';
import type { AzureDevOps } from './types.ts';

/** What the three files of an agent say. */
export interface AgentIdentity {
  readonly agentId: number;
  readonly agentName: string;
  readonly poolId: number;
  /** Organisation or collection, with or without a slash at the end. */
  readonly serverUrl: string;
  readonly clientId: string;
  readonly authorizationUrl: string;
  readonly tokenUrl: string;
  readonly key: KeyObject;
}

export interface Job {
  readonly requestId: number;
  readonly jobId: string;
  readonly message: Record<string, unknown>;
}

export interface HandAgent {
  readonly identity: AgentIdentity;
  /** A fresh token, from the signed assertion. `at`: the agent's idea of now, ms since the epoch. */
  signIn(at?: number): Promise<string>;
  /** Opens a session, with these system capabilities. */
  open(capabilities?: Record<string, string>): Promise<void>;
  /** One poll; null when there was nothing. Messages of any kind, decrypted. */
  poll(
    lastMessageId?: number,
  ): Promise<{ readonly messageId: number; readonly type: string; readonly body: Record<string, unknown> } | null>;
  /** Polls until there is a job, renews its lock and acknowledges it, as the real one does before it starts anything. */
  take(): Promise<Job>;
  renew(requestId: number): Promise<void>;
  /** What became of the job and its steps, for the timeline. */
  report(job: Job, records: readonly Readonly<Record<string, unknown>>[]): Promise<void>;
  /** The job's end, with which the agent says that it will take no other, as one in once mode does. */
  complete(job: Job, result?: string): Promise<void>;
  close(): Promise<void>;
}

/** RSA-2048. It takes a good part of a second. */
export function newKey(): KeyObject {
  return generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey;
}

/** Registers an agent with the PAT, and hands it out, offline. */
export async function registerByHand(
  azure: AzureDevOps,
  pool: number,
  name: string,
  { capabilities = {} }: { readonly capabilities?: Record<string, string> } = {},
): Promise<HandAgent> {
  const privateKey = newKey();
  const { n, e } = createPublicKey(privateKey).export({ format: 'jwk' });
  const standard = (value: string | undefined) => Buffer.from(value ?? '', 'base64url').toString('base64');
  const response = await fetch(`${azure.url}/_apis/distributedtask/pools/${pool}/agents`, {
    method: 'POST',
    headers: { ...HEADERS, authorization: `Basic ${Buffer.from(`:${azure.pat}`).toString('base64')}` },
    body: JSON.stringify({
      name,
      version: '5.278.0',
      osDescription: 'Linux by hand',
      maxParallelism: 1,
      provisioningState: 'Provisioned',
      systemCapabilities: capabilities,
      authorization: { publicKey: { exponent: standard(e), modulus: standard(n) } },
    }),
  });
  const agent = RegisteredSchema.parse(await answerOf(response));
  const { clientId, authorizationUrl } = agent.authorization;
  return handAgent({
    agentId: agent.id,
    agentName: agent.name,
    poolId: pool,
    serverUrl: azure.url,
    clientId,
    authorizationUrl,
    tokenUrl: `${new URL(azure.url).origin}${new URL(authorizationUrl).pathname}`,
    key: privateKey,
  });
}

/** Reads the file of a key as the agent does it. */
export function privateKeyOf(text: string): KeyObject {
  const rsa = RsaSchema.parse(JSON.parse(text));
  const url = (bytes: Buffer) => bytes.toString('base64url');
  const key = {
    n: url(rsa.modulus),
    e: url(rsa.exponent),
    d: url(rsa.d),
    p: url(rsa.p),
    q: url(rsa.q),
    dp: url(rsa.dp),
    dq: url(rsa.dq),
    qi: url(rsa.inverseQ),
  };
  return createPrivateKey({ format: 'jwk', key: { kty: 'RSA', ...key } });
}

/** The agent that three files make, by name of the file. */
export function handAgentFromFiles(
  files: Readonly<Record<'.agent' | '.credentials' | '.credentials_rsaparams', string>>,
): HandAgent {
  const settings = SettingsSchema.parse(JSON.parse(files['.agent']));
  const { data } = CredentialsSchema.parse(JSON.parse(files['.credentials']));
  return handAgent({
    agentId: Number(settings.agentId),
    agentName: settings.agentName,
    poolId: Number(settings.poolId),
    serverUrl: settings.serverUrl,
    clientId: data.clientId,
    authorizationUrl: data.authorizationUrl,
    tokenUrl: data.oauthEndpointUrl ?? data.authorizationUrl,
    key: privateKeyOf(files['.credentials_rsaparams']),
  });
}

export function handAgent(identity: AgentIdentity): HandAgent {
  const base = identity.serverUrl.replace(/\/+$/, '');
  const pool = `_apis/distributedtask/pools/${identity.poolId}`;
  let token: string | null = null;
  let session: { readonly id: string; readonly key: Buffer } | null = null;
  let last: number | undefined;

  const send = (bearer: string, method: string, path: string, body?: unknown): Promise<Response> =>
    fetch(`${base}/${path}`, {
      method,
      headers: { ...HEADERS, authorization: `Bearer ${bearer}` },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  /** With the agent's own token. */
  const call = async (method: string, path: string, body?: unknown) => send(token ?? (await agent.signIn()), method, path, body);
  const open = () => {
    if (session === null) throw new Error(`${identity.agentName} has no session.`);
    return session;
  };
  const plan = (job: Job) => {
    const { plan: of, timeline, resources } = JobSchema.parse(job.message);
    const bearer = resources.endpoints[0]?.authorization.parameters.AccessToken ?? '';
    return { bearer, path: `${of.scopeIdentifier}/_apis/distributedtask/hubs/build/plans/${of.planId}`, timeline: timeline.id };
  };
  const agent: HandAgent = {
    identity,
    async signIn(at = Date.now()) {
      const response = await fetch(identity.tokenUrl, {
        method: 'POST',
        body: new URLSearchParams({
          grant_type: 'client_credentials',
          client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
          client_assertion: assertion(identity, at),
        }),
      });
      token = z.object({ access_token: z.string() }).parse(await answerOf(response)).access_token;
      return token;
    },
    async open(systemCapabilities = {}) {
      const { agentId: id, agentName: name } = identity;
      const about = { id, name, version: '5.278.0', osDescription: 'Linux by hand' };
      const response = await call('POST', `${pool}/sessions`, { ownerName: 'by hand', agent: about, systemCapabilities });
      const { sessionId, encryptionKey } = SessionSchema.parse(await answerOf(response));
      const sealed = Buffer.from(encryptionKey.value, 'base64');
      const padding = { padding: constants.RSA_PKCS1_OAEP_PADDING, oaepHash: 'sha1' };
      session = {
        id: sessionId,
        key: encryptionKey.encrypted ? privateDecrypt({ key: identity.key, ...padding }, sealed) : sealed,
      };
    },
    async poll(lastMessageId) {
      const { id, key } = open();
      const after = lastMessageId === undefined ? '' : `&lastMessageId=${lastMessageId}`;
      const response = await call('GET', `${pool}/messages?sessionId=${id}${after}`);
      if (response.status === 202) return null;
      const { messageId, messageType, iv, body } = MessageSchema.parse(await answerOf(response));
      const decipher = createDecipheriv('aes-256-cbc', key, Buffer.from(iv, 'base64'));
      const plain = Buffer.concat([decipher.update(Buffer.from(body, 'base64')), decipher.final()]).toString('utf8');
      return { messageId, type: messageType, body: z.record(z.string(), z.unknown()).parse(JSON.parse(plain)) };
    },
    async take() {
      for (;;) {
        const message = await agent.poll(last);
        if (message === null) continue;
        last = message.messageId;
        if (message.type !== 'PipelineAgentJobRequest') continue;
        const { requestId, jobId } = JobSchema.parse(message.body);
        await agent.renew(requestId);
        await answerOf(await call('DELETE', `${pool}/messages/${message.messageId}?sessionId=${open().id}`));
        return { requestId, jobId, message: message.body };
      }
    },
    async renew(requestId) {
      const renewed = await answerOf(
        await call('PATCH', `${pool}/jobrequests/${requestId}?lockToken=${NO_LOCK_TOKEN}`, { requestId }),
      );
      z.object({ lockedUntil: z.iso.datetime() }).parse(renewed);
    },
    async report(job, records) {
      const { bearer, path, timeline } = plan(job);
      const body = { value: records, count: records.length };
      await answerOf(await send(bearer, 'PATCH', `${path}/timelines/${timeline}/records`, body));
    },
    async complete(job, result = 'succeeded') {
      const { requestId, jobId } = job;
      const { bearer, path } = plan(job);
      const body = { name: 'JobCompleted', requestId, jobId, result, agentShuttingDown: true };
      await answerOf(await send(bearer, 'POST', `${path}/events`, body));
    },
    async close() {
      await answerOf(await call('DELETE', `${pool}/sessions/${open().id}`));
      session = null;
    },
  };
  return agent;
}

const HEADERS = {
  accept: 'application/json; api-version=7.1-preview',
  'content-type': 'application/json',
  'x-tfs-fedauthredirect': 'Suppress',
};
const NO_LOCK_TOKEN = '00000000-0000-0000-0000-000000000000';

/** Signed with RS256, good for five minutes. */
function assertion({ clientId, authorizationUrl, key }: AgentIdentity, at: number): string {
  const now = Math.floor(at / 1000);
  const claims = { sub: clientId, iss: clientId, jti: randomUUID(), aud: authorizationUrl, nbf: now, exp: now + 300 };
  const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const text = `${part({ typ: 'JWT', alg: 'RS256' })}.${part(claims)}`;
  return `${text}.${sign('RSA-SHA256', Buffer.from(text), key).toString('base64url')}`;
}

/** JSON of an answer that is 2xx; otherwise what came instead, as an error. */
async function answerOf(response: Response): Promise<unknown> {
  const text = await response.text();
  if (!response.ok) throw new Error(`${response.status} ${text}`);
  return text === '' ? null : JSON.parse(text);
}
