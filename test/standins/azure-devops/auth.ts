/** Who asks, what for, and how it looks when the answer is no. */
import type { IncomingHttpHeaders } from 'node:http';
import type { RejectionShape } from './faults.ts';
import { type Caller, type Reply, type Route, ServiceFailure, wrapped } from './http.ts';
import { type Pat, urlOf, type World } from './state.ts';
import type { Scope } from './types.ts';

const NOBODY: Caller = { identity: 'none', pat: null, agent: null, plan: null };

/** What was presented, and whether it is good. `refused` null: good, or nothing presented. */
export interface SignIn {
  readonly caller: Caller;
  readonly refused: RejectionShape | 'bearer' | null;
  readonly presented: boolean;
}

/** Reads the Authorization header. A Basic header is a PAT's, whatever stands in it. */
export function signIn(world: World, headers: IncomingHttpHeaders, method: string): SignIn {
  const header = headers.authorization;
  if (header === undefined) return { caller: NOBODY, refused: null, presented: false };
  const [scheme = '', value = ''] = header.split(/ (.*)/s);
  if (scheme.toLowerCase() === 'basic') {
    const asPat: Caller = { ...NOBODY, identity: 'pat' };
    const decoded = Buffer.from(value, 'base64').toString('utf8');
    const secret = decoded.slice(decoded.indexOf(':') + 1);
    // A line break in the PAT makes a header that the service cannot read at all (reports of a bare 401).
    if (!decoded.includes(':') || /[\r\n]/.test(decoded)) return { caller: asPat, refused: '401-bare', presented: true };
    const pat = world.pats.get(secret);
    if (pat === undefined || pat.expired) return { caller: asPat, refused: shapeFor(method, headers), presented: true };
    return { caller: { ...asPat, pat }, refused: null, presented: true };
  }
  if (scheme.toLowerCase() !== 'bearer') return { caller: NOBODY, refused: '401-bare', presented: true };
  if (world.pats.has(value)) return { caller: { ...NOBODY, identity: 'pat' }, refused: 'bearer', presented: true };
  for (const plan of world.plans.values())
    if (plan.token === value) return { caller: { ...NOBODY, identity: 'job', plan }, refused: null, presented: true };
  const token = world.tokens.get(value);
  if (token === undefined) return { caller: NOBODY, refused: 'bearer', presented: true };
  const late = token.until <= world.now() + world.faults.skew;
  if (token.of === 'principal') {
    const gone = late || !world.hosted;
    return { caller: { ...NOBODY, identity: 'principal' }, refused: gone ? 'bearer' : null, presented: true };
  }
  const registered = token.of.pool.agents.has(token.of.id);
  return {
    caller: { ...NOBODY, identity: 'agent', agent: token.of },
    refused: late || !registered ? 'bearer' : null,
    presented: true,
  };
}

/** Reported per verb: a sign-in page with 203 for GET and POST, JSON with 401 for the others. */
function shapeFor(method: string, headers: IncomingHttpHeaders): RejectionShape {
  if (headers['x-tfs-fedauthredirect']?.toString().toLowerCase() !== 'suppress') return '302';
  return method === 'GET' || method === 'POST' ? '203' : '401-json';
}

/** The four shapes of a refused credential. */
export function rejection(world: World, shape: RejectionShape): Reply {
  const challenge = challengeOf(world);
  if (shape === '203') return { status: 203, type: 'text/html; charset=utf-8', text: SIGN_IN_PAGE };
  if (shape === '302') {
    const moved = '<html><head><title>Object moved</title></head><body><h2>Object moved to here.</h2></body></html>';
    return {
      status: 302,
      type: 'text/html; charset=utf-8',
      text: moved,
      headers: { location: `${urlOf(world)}/_signin?realm=stand-in` },
    };
  }
  if (shape === '401-bare') return { status: 401, headers: challenge };
  const message = 'TF400813: The user is not authorized to access this resource.';
  return { status: 401, json: wrapped('UnauthorizedRequestException', message), headers: challenge };
}

/** Clients of the .NET family send nothing before they are asked, and only what they are asked for (`VssHttpMessageHandler`). */
export function challengeOf(world: World): Record<string, string> {
  return {
    'www-authenticate': `Bearer authorization_uri=${world.origin}/entra/${world.principal.tenant}, Basic realm="${world.origin}/", TFS-Federated`,
  };
}

const SIGN_IN_PAGE =
  '<!DOCTYPE html>\n<html lang="en-US"><head><title>Azure DevOps Services | Sign In</title></head><body><form method="post"><p>Sign in to continue.</p></form></body></html>';

/** What answers instead of the route, or null when the caller may use it. */
export function refusal(
  world: World,
  route: Route,
  { caller, refused, presented }: SignIn,
  headers: IncomingHttpHeaders,
): Reply | null {
  if (route.allow.includes('anyone')) return null;
  if (!presented) {
    const suppress = headers['x-tfs-fedauthredirect'] !== undefined;
    return suppress || route.name === 'connectionData' || route.name === 'options'
      ? { status: 401, headers: challengeOf(world), text: '' }
      : rejection(world, '302');
  }
  if (refused === 'bearer') {
    if (caller.identity !== 'agent') return rejection(world, '401-json');
    const gone = caller.agent !== null && !caller.agent.pool.agents.has(caller.agent.id);
    return gone
      ? {
          status: 404,
          json: wrapped('TaskAgentNotFoundException', 'The agent of this token is not registered any more.'),
        }
      : {
          status: 401,
          headers: challengeOf(world),
          json: wrapped('TaskAgentAccessTokenExpiredException', 'The access token has expired.'),
        };
  }
  if (refused !== null) return rejection(world, refused);
  if (!route.allow.includes(caller.identity))
    return denied(`This credential (${caller.identity}) is not for ${route.method} ${route.name}.`);
  if (caller.identity === 'pat' && caller.pat !== null) return lacking(route, caller.pat);
  return null;
}

const SCOPES: Readonly<Record<NonNullable<Route['right']>, readonly Scope[]>> = {
  read: ['agentpools', 'agentpools_manage'],
  manage: ['agentpools_manage'],
  build: ['build'],
};

function lacking(route: Route, pat: Pat): Reply | null {
  const { right } = route;
  if (right === undefined) return null;
  if (!SCOPES[right].some((scope) => pat.scopes.includes(scope)))
    return denied(`Access denied: the personal access token needs one of the scopes vso.${SCOPES[right].join(', vso.')}.`);
  if (right === 'manage' && !pat.poolAdmin)
    return denied(
      'Access denied. The user needs Manage permissions for the pool to perform this action. For more information, contact the administrator.',
    );
  return null;
}

function denied(message: string): Reply {
  return { status: 403, json: wrapped('AccessDeniedException', message) };
}

/** Agents act for themselves only. */
export function ownAgent(x: { readonly caller: Caller }, id: number): void {
  if (x.caller.agent !== null && x.caller.agent.id !== id)
    throw new ServiceFailure(403, 'AccessDeniedException', 'An agent may act for itself only.');
}
