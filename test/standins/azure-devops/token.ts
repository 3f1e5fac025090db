/** Token endpoints: the agents' own, and the one that stands in for Entra (layer D). */
import { createPublicKey, randomBytes, verify } from 'node:crypto';
import { authorizationUrl } from './agents.ts';
import { type Exchange, isRecord, ok, type Reply, type Route } from './http.ts';
import type { Agent, World } from './state.ts';

export const tokenRoutes: readonly Route[] = [
  { method: 'POST', name: 'oauth2/token', path: '_apis/oauth2/token', allow: ['anyone'], unversioned: true, answer: agentToken },
  {
    method: 'POST',
    name: 'oauth2/token',
    path: '/vssps/{organisation}/_apis/oauth2/token',
    allow: ['anyone'],
    unversioned: true,
    answer: agentToken,
  },
  {
    method: 'POST',
    name: 'entra/token',
    path: '/entra/{tenant}/oauth2/v2.0/token',
    allow: ['anyone'],
    unversioned: true,
    answer: principalToken,
  },
];

/** Scope of Azure DevOps at Entra. */
const SCOPE = '499b84ac-1321-427f-aa17-267ca6975798/.default';
/** Clocks may differ by so much. */
const LEEWAY_S = 300;

function refused(status: number, error: string, error_description: string): Reply {
  return { status, json: { error, error_description } };
}

/** A signed assertion for a token (.NET client `VssOAuthJwtBearerAssertion`, `VssOAuthTokenHttpClient`). */
function agentToken(x: Exchange): Reply {
  const { world } = x;
  const form = new URLSearchParams(x.body.toString('utf8'));
  if (form.get('grant_type') !== 'client_credentials')
    return refused(400, 'unsupported_grant_type', 'The grant type is not supported.');
  if (form.get('client_assertion_type') !== 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer')
    return refused(400, 'invalid_client', 'The client assertion type is not supported.');
  const token = form.get('client_assertion') ?? '';
  const [head = '', claims = '', signature = ''] = token.split('.');
  const header = decoded(head);
  const said = decoded(claims);
  if (header?.alg !== 'RS256' || header.typ !== 'JWT' || said === null)
    return refused(400, 'invalid_client', 'The client assertion is not a JWT signed with RS256.');
  const agent = clientOf(world, said);
  if (agent === null || !signed(agent, `${head}.${claims}`, signature))
    return refused(400, 'invalid_client', 'The client is not valid.');
  if (said.aud !== authorizationUrl(world)) return refused(400, 'invalid_client', `The audience ${String(said.aud)} is not valid.`);
  const now = (world.now() + world.faults.skew) / 1000;
  const [from, until] = [Number(said.nbf), Number(said.exp)];
  // The service's own words for a clock that differs: agents look for them, and say so to their owner.
  if (!(from - LEEWAY_S <= now && now < until + LEEWAY_S) || typeof said.jti !== 'string')
    return refused(
      400,
      'invalid_client',
      `The client assertion is not valid at this time. Current server time is ${new Date(now * 1000).toUTCString()}.`,
    );
  return ok({ access_token: grant(world, agent), token_type: 'Bearer', expires_in: Math.round(world.tokenMs / 1000) });
}

function clientOf(world: World, said: Record<string, unknown>): Agent | null {
  if (said.sub !== said.iss) return null;
  for (const pool of world.pools.values()) for (const agent of pool.agents.values()) if (agent.clientId === said.sub) return agent;
  return null;
}

function signed(agent: Agent, what: string, signature: string): boolean {
  const base64url = (value: string) => Buffer.from(value, 'base64').toString('base64url');
  const key = createPublicKey({
    format: 'jwk',
    key: { kty: 'RSA', n: base64url(agent.publicKey.modulus), e: base64url(agent.publicKey.exponent) },
  });
  return verify('RSA-SHA256', Buffer.from(what), key, Buffer.from(signature, 'base64url'));
}

function decoded(part: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(Buffer.from(part, 'base64url').toString('utf8'));
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}

function grant(world: World, of: Agent | 'principal'): string {
  const token = `${of === 'principal' ? 'entra' : 'agent'}.${randomBytes(32).toString('base64url')}`;
  world.tokens.set(token, { of, until: world.now() + world.faults.skew + world.tokenMs });
  return token;
}

/** Client credentials as Entra takes them. */
function principalToken(x: Exchange): Reply {
  const { principal, tokenMs } = x.world;
  const form = new URLSearchParams(x.body.toString('utf8'));
  const isKnown =
    x.params.tenant === principal.tenant &&
    form.get('grant_type') === 'client_credentials' &&
    form.get('scope') === SCOPE &&
    form.get('client_id') === principal.client;
  if (!isKnown) return refused(400, 'invalid_request', 'AADSTS90002: No such tenant, application, scope or grant type.');
  if (form.get('client_secret') !== principal.secret)
    return refused(401, 'invalid_client', 'AADSTS7000215: Invalid client secret provided.');
  const expires_in = Math.round(tokenMs / 1000);
  return ok({ token_type: 'Bearer', expires_in, access_token: grant(x.world, 'principal') });
}
