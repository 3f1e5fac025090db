/** Who may call the GitHub stand-in, and how often: the app's signed claims, tokens with permissions, and the quota of each hour. */
import type { Clock } from '../../src/core/clock.ts';
import { type Answer, absent, type Credential, type RestCall, refusal } from './github-rest.ts';
import { parseJwt } from './github-runner.ts';
import { filled } from './github-schema.ts';
import { sharedKey, type World } from './github-world.ts';

export type Permissions = Readonly<Record<string, 'read' | 'write' | 'admin'>>;

export interface Installation {
  readonly id: number;
  readonly account: string;
  permissions: Permissions;
  /** Names as `acme/demo`; null: all of the account. */
  repositories: readonly string[] | null;
  isSuspended: boolean;
}

interface Token {
  readonly credential: Credential;
  readonly createdAt: number;
  /** ms since the epoch. */
  readonly expiresAt: number;
  /** Whose quota it uses. */
  readonly payer: string;
}

/** Calls that an app makes with its own signature. */
export const appCalls = [
  'POST /app/installations/{installation_id}/access_tokens',
  'GET /orgs/{org}/installation',
  'GET /repos/{owner}/{repo}/installation',
];

const hour = 3_600_000;
const levels = ['read', 'write', 'admin'];
const level = (permissions: Readonly<Record<string, string>>, name: string): number => levels.indexOf(permissions[name] ?? '');

/** `needs` as `actions=read`. An app cannot be given an enterprise's runners. */
export function grants({ kind, permissions }: Credential, needs: string | null): boolean {
  const [name = '', least = ''] = needs?.split('=') ?? [];
  if (name === 'enterprise') return kind === 'user' && permissions === null;
  return needs === null || permissions === null || level(permissions, name) >= levels.indexOf(least);
}

export function createAccess(clock: Clock, world: World, faults: { readonly unusableFor: number }) {
  const app = {
    id: 4_711,
    clientId: 'Iv23liExample',
    key: sharedKey(),
    /** As a person downloads it. */
    pem: sharedKey().export({ type: 'pkcs1', format: 'pem' }).toString(),
  };
  const installations: Installation[] = [];
  const tokens = new Map<string, Token>();
  /** `limit`: calls of an hour; the least that an installation has. */
  const quota = { limit: 5_000, used: new Map<string, { count: number; until: number }>() };
  let made = 0;

  const addToken = (prefix: string, token: Token): string => {
    made += 1;
    const text = `${prefix}${String(made).padStart(36, '0')}`;
    tokens.set(text, token);
    return text;
  };

  /** Null when the claims are good. */
  const refusedClaims = (bearer: string): string | null => {
    const now = clock.wall() / 1000;
    const jwt = parseJwt(bearer);
    if (jwt?.alg !== 'RS256' || !jwt.isOf(app.key)) return 'A JSON web token could not be decoded';
    const { iss, iat, exp } = jwt.claims as { readonly iss: unknown; readonly iat: number; readonly exp: number };
    if (![String(app.id), app.clientId].includes(String(iss))) return 'Integration not found';
    if (!Number.isInteger(iat) || iat > now) return "'Issued at' claim ('iat') must be an integer that is not in the future";
    if (!Number.isInteger(exp) || exp <= now) return "'Expiration time' claim ('exp') must be an integer that is in the future";
    return exp > now + 600 ? "'Expiration time' claim ('exp') is too far in the future" : null;
  };

  const tokenOf = (row: Installation, body: Readonly<Record<string, unknown>>): Answer => {
    if (row.isSuspended) return refusal(403, 'This installation has been suspended');
    const asked = (body.permissions ?? row.permissions) as Permissions;
    const isMore = Object.keys(asked).some((name) => level(asked, name) > level(row.permissions, name));
    if (isMore) return refusal(422, 'The permissions requested are not granted to this installation.');
    const some = (body.repositories as string[] | undefined)?.map((name) => `${row.account}/${name}`);
    const repositories = some ?? row.repositories;
    if (some?.some((name) => !world.repositories.has(name.toLowerCase()) || row.repositories?.includes(name) === false))
      return refusal(422, 'There is at least one repository that does not exist or is not accessible to the parent installation.');
    const credential: Credential = { kind: 'installation', permissions: asked, account: row.account, repositories };
    const expiresAt = clock.wall() + hour;
    const token = addToken('ghs_', { credential, createdAt: clock.now(), expiresAt, payer: `installation ${row.id}` });
    const selection = { repository_selection: repositories === null ? 'all' : 'selected' };
    return { status: 201, body: { token, expires_at: new Date(expiresAt).toISOString(), permissions: asked, ...selection } };
  };
  const view = (row: Installation) =>
    filled('installation', {
      id: row.id,
      app_id: app.id,
      client_id: app.clientId,
      app_slug: 'onejob',
      permissions: row.permissions,
      events: [],
      account: filled('simple-user', { login: row.account, type: 'Organization' }),
      target_type: 'Organization',
      repository_selection: row.repositories === null ? 'all' : 'selected',
      suspended_at: null,
    });

  const access = {
    app,
    installations,
    quota,
    install(account: string, permissions: Permissions): Installation {
      const row = { id: 50 + installations.length, account, permissions, repositories: null, isSuspended: false };
      installations.push(row);
      return row;
    },
    /** A person's token; null: it may do everything, the enterprise's runners too. */
    userToken: (permissions: Permissions | null = null): string =>
      addToken('ghp_', {
        credential: { kind: 'user', permissions, account: null, repositories: null },
        createdAt: clock.now(),
        expiresAt: Number.POSITIVE_INFINITY,
        payer: 'user',
      }),
    /** Someone takes all tokens back. */
    revokeTokens: (): void => tokens.clear(),
    /** Answers one of `appCalls`. */
    ofApp(call: string, { path, body }: Pick<RestCall, 'path' | 'body'>, bearer: string): Answer {
      const refused = refusedClaims(bearer);
      if (refused !== null) return refusal(401, refused);
      const { installation_id: id, org, owner } = path;
      const found = installations.find((one) => (id === undefined ? one.account === (org ?? owner) : one.id === Number(id)));
      if (found === undefined) return absent();
      return call.startsWith('POST') ? tokenOf(found, body) : { status: 200, body: view(found) };
    },
    /** Null: it is no token, not one yet, or not one any more. */
    tokenAt(bearer: string): Token | null {
      const token = tokens.get(bearer);
      if (token === undefined || token.expiresAt <= clock.wall()) return null;
      const isEarly = token.credential.kind === 'installation' && clock.now() - token.createdAt < faults.unusableFor;
      return isEarly ? null : token;
    },
    /** Takes `cost` calls from a quota: what its headers say then, and whether it was used up. */
    pay(payer: string, cost: 0 | 1 | -1): { readonly headers: Readonly<Record<string, string>>; readonly isOver: boolean } {
      const now = clock.wall();
      const before = quota.used.get(payer);
      const entry = before === undefined || before.until <= now ? { count: 0, until: now + hour } : before;
      quota.used.set(payer, entry);
      const isOver = cost === 1 && entry.count >= quota.limit;
      if (!isOver) entry.count += cost;
      const counts = { limit: quota.limit, remaining: Math.max(0, quota.limit - entry.count), used: entry.count };
      const all = { ...counts, reset: Math.ceil(entry.until / 1000), resource: 'core' };
      return { isOver, headers: Object.fromEntries(Object.entries(all).map(([key, value]) => [`x-ratelimit-${key}`, `${value}`])) };
    },
  };
  access.install('acme', { metadata: 'read', actions: 'read', administration: 'write', organization_self_hosted_runners: 'write' });
  return access;
}

/** Body of `GET /rate_limit`. */
export function rateView(headers: Readonly<Record<string, string>>) {
  const of = (key: string): number => Number(headers[`x-ratelimit-${key}`]);
  const core = { limit: of('limit'), remaining: of('remaining'), reset: of('reset'), used: of('used') };
  return { resources: { core, search: core }, rate: core };
}
