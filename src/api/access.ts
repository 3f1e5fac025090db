/**
 * Who may do what over TCP. A role's token is in a file that only this user can read. It also signs the sessions of browsers, so
 * these survive a restart of the daemon, and end when the token is replaced. Codes for a login are used once, and soon.
 *
 * A session says who has the key in it, and gives no access by itself: the browser signs each request with that key, which never
 * leaves it (`signed.ts`). No cookies: browsers send those of one port of a host to all its ports, so also to the programs of other
 * users.
 */

import {
  createHash,
  createHmac,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  randomBytes,
  sign,
  timingSafeEqual,
  verify,
} from 'node:crypto';
import { closeSync, existsSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, codeOf, messageOf, OnejobError } from '../base/errors.ts';
import type { PeopleTable } from '../config/people.ts';
import { publicKey } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import { subdirectory } from '../store/directory.ts';
import { writeWhole } from '../system/files.ts';
import { jsonOf } from '../system/json.ts';
import { type Caller, callerOf } from './caller.ts';
import { type PublicKey, parseAuthorization, requestText } from './signed.ts';

/** Who sends a request. */
export interface CallerAdmission {
  readonly caller: Caller;
  /** Whose limits count: a token, or a single login. */
  readonly id: string;
  /** SHA-256 of the body that was signed; null: nothing was. */
  readonly body: string | null;
}

/** What a request is checked against. `challenge` and `port`: of the listener that it came to. */
export interface AccessRequest {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly challenge: string;
  readonly port: number;
}

/** ms that a code and a login last. */
const codeLife = 60_000;
export const sessionLife = 7 * 86_400_000;
/** Codes of a person, or of all others, at a time, and wrong ones within so many ms (monotonic) before no more are tried. */
const [mostCodes, mostWrong, wrongWithin] = [100, 10, 60_000];
/** ms between the clocks of a page, which follows the daemon's, and of the daemon. */
const patience = 60_000;

/** Each has a token. */
const roles = ['read', 'operator'] as const;
type TokenRole = (typeof roles)[number];

/** Who a login is for: a role, or a person, who then has at most that role. */
export interface LoginFor {
  readonly role: TokenRole;
  readonly user: string | null;
  readonly person: number | null;
}
const payload = z.object({
  role: z.enum(roles),
  user: z.string().nullable(),
  /** The uid of a person, whose role is looked up anew for each request. */
  person: z.number().nullable().default(null),
  until: z.number(),
  key: publicKey,
  /** Where somebody logged in. What listens elsewhere, such as the next daemon while another program has the port, is not meant. */
  port: z.number(),
});
/** Signed payload. */
const session = /^ojs_([\w-]+)\.([\w-]+)$/;

export interface AccessTable {
  /** The daemon's own key: a page knows the daemon again by it. */
  readonly key: PublicKey;
  /** Signs a text as this daemon. */
  prove(text: string): string;
  /** The caller, by the header `authorization` of a request; null if it gives no access. */
  callerOf(authorization: string | undefined, asked: AccessRequest): CallerAdmission | null;
  /** A code for one login within a minute: 128 bits. */
  code(caller: LoginFor): { readonly code: string; readonly name: string; readonly until: number };
  /** Whether there is a code with this name, which says nothing of the code. */
  isCode(name: string): boolean;
  /**
   * Uses a code, for the browser that has the key of `key` and asks at `port`; `session` is what it sends from then on.
   * @throws OnejobError E_API_LOGIN, E_API_LIMIT, E_API_REQUEST
   */
  login(code: string, key: PublicKey, port: number): Pick<LoginFor, 'role' | 'user'> & { readonly session: string };
  /** Reads the tokens again, and makes those that are missing. True if one is another. @throws as `openAccess` */
  refresh(): boolean;
}

interface AccessParts {
  /** The state directory. */
  readonly dir: string;
  readonly clock: Clock;
  /** null: logins of people give no access. */
  readonly people?: Pick<PeopleTable, 'of'> | null;
}

/** @throws OnejobError E_API_LISTEN if the tokens cannot be read or made */
export function openAccess({ dir, clock, people = null }: AccessParts): AccessTable {
  const codes: { readonly digest: Buffer; readonly caller: LoginFor; readonly until: number }[] = [];
  let wrong: number[] = [];
  let tokens = readTokens();
  const identity = readIdentity(join(subdirectory(dir, 'api'), 'identity.key'));

  function readTokens(): Record<TokenRole, string> {
    const folder = subdirectory(dir, 'api');
    return { read: tokenIn(join(folder, 'read.token')), operator: tokenIn(join(folder, 'operator.token')) };
  }

  /** A reader's token must not make the login of a person who may do more, and an older onejob must not take it for an operator's. */
  function signatureOf(text: string, { role, person }: Pick<LoginFor, 'role' | 'person'>): string {
    const [token, what] = person === null ? [tokens[role], 'session'] : [tokens.operator, 'person'];
    return createHmac('sha256', token).update(`${what} ${text}`).digest('base64url');
  }

  function byToken(token: string): CallerAdmission | null {
    const role = roles.find((one) => isSame(digestOf(token), digestOf(tokens[one])));
    return role === undefined ? null : { caller: { role, user: null, until: null, person: null }, id: `token ${role}`, body: null };
  }

  function bySession(header: string, asked: AccessRequest): CallerAdmission | null {
    const sent = parseAuthorization(header);
    const [, text = '', mac = ''] = session.exec(sent?.session ?? '') ?? [];
    const found = payload.safeParse(jsonOf(Buffer.from(text, 'base64url').toString()));
    if (sent === null || !found.success || !isSame(digestOf(mac), digestOf(signatureOf(text, found.data)))) return null;
    const { role, user, person: uid, until, key, port } = found.data;
    const now = clock.wall();
    if (until <= now || port !== asked.port || Math.abs(now - sent.at) > patience) return null;
    const signed = Buffer.from(requestText({ ...asked, ...sent }));
    if (!isSignature(signed, key, Buffer.from(sent.signature, 'base64url'))) return null;
    const person = uid === null ? null : (people?.of(uid) ?? null);
    if (uid !== null && person === null) return null;
    const whole: Caller = person === null ? { role, user, until, person } : callerOf(person, until);
    return { caller: role === 'read' ? { ...whole, role } : whole, id: `login ${key.x}`, body: sent.body };
  }

  return {
    key: identity.key,
    prove: identity.prove,
    callerOf(authorization, asked) {
      const [, token] = /^Bearer +(\S+)$/i.exec(authorization ?? '') ?? [];
      return token === undefined ? bySession(authorization ?? '', asked) : byToken(token);
    },
    code(caller) {
      const code = randomBytes(16).toString('base64url');
      const until = clock.wall() + codeLife;
      const digest = digestOf(code);
      codes.push({ digest, caller, until });
      const [oldest, ...others] = codes.filter((one) => one.caller.person === caller.person);
      if (oldest !== undefined && others.length >= mostCodes) codes.splice(codes.indexOf(oldest), 1);
      return { code, name: nameOf(digest), until };
    },
    isCode: (name) => codes.some(({ digest, until }) => nameOf(digest) === name && until > clock.wall()),
    login(code, key, port) {
      if (keyOf(key) === null) throw new OnejobError('E_API_REQUEST', 'Cannot log in: the key is not a public key on P-256.');
      const now = clock.wall();
      const digest = digestOf(code);
      const at = codes.findIndex((one) => isSame(one.digest, digest));
      const [found] = at < 0 ? [] : codes.splice(at, 1);
      wrong = wrong.filter((at) => at > clock.now() - wrongWithin);
      // A right one is never refused: guesses must not keep people from logging in.
      if (found === undefined && wrong.length >= mostWrong) {
        throw new OnejobError('E_API_LIMIT', 'Cannot log in: too many logins have failed within a minute.', {
          hint: 'Wait a minute, then type "onejob dashboard" again.',
          retry: true,
        });
      }
      if (found === undefined || found.until <= now) {
        wrong.push(clock.now());
        throw new OnejobError('E_API_LOGIN', 'Cannot log in: the link was used before, or is older than a minute.', {
          hint: 'Type "onejob dashboard" on the host for a new one.',
        });
      }
      const { role, user, person } = found.caller;
      const text = Buffer.from(
        JSON.stringify({ role, user, person, until: now + sessionLife, key, port } satisfies z.infer<typeof payload>),
      ).toString('base64url');
      return { role, user, session: `ojs_${text}.${signatureOf(text, found.caller)}` };
    },
    refresh() {
      const before = tokens;
      tokens = readTokens();
      return roles.some((role) => tokens[role] !== before[role]);
    },
  };
}

/** Whether the `id` of an admission is that of one login or person. */
export function isLogin(id: string): boolean {
  return /^(login|person) /.test(id);
}

function digestOf(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/** Of a code, for the address of its page: nobody can guess it, and it is not the code. */
function nameOf(digest: Buffer): string {
  return digest.toString('base64url').slice(0, 22);
}

/** null if it is not a point of the curve. */
function keyOf({ x, y }: PublicKey) {
  return attempt(() => createPublicKey({ key: { kty: 'EC', crv: 'P-256', x, y }, format: 'jwk' }));
}

function isSignature(text: Buffer, key: PublicKey, signature: Buffer): boolean {
  const found = keyOf(key);
  return found !== null && verify('sha256', text, { key: found, dsaEncoding: 'ieee-p1363' }, signature);
}

/** In constant time. */
function isSame(a: Buffer, b: Buffer): boolean {
  return timingSafeEqual(a, b);
}

function tokenIn(path: string): string {
  const token = secretIn(path, 'token', () => `${randomBytes(32).toString('base64url')}\n`);
  return token.trim();
}

/** The daemon's own key, and what it signs. @throws OnejobError E_API_LISTEN */
function readIdentity(path: string) {
  const pem = secretIn(path, 'key', () =>
    generateKeyPairSync('ec', {
      namedCurve: 'P-256',
      publicKeyEncoding: { type: 'spki', format: 'pem' },
      privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
    }).privateKey.toString(),
  );
  const own = attempt(() => createPrivateKey(pem));
  const known = own === null ? null : publicKey.safeParse(withoutRest(createPublicKey(own).export({ format: 'jwk' })));
  if (own === null || known?.success !== true) throw unusable(path, 'key', 'it is not a private key on P-256');
  return {
    key: known.data,
    prove: (text: string): string =>
      sign('sha256', Buffer.from(text), { key: own, dsaEncoding: 'ieee-p1363' }).toString('base64url'),
  };
}

function withoutRest({ x, y }: { readonly x?: unknown; readonly y?: unknown }): unknown {
  return { x, y };
}

function unusable(path: string, what: string, why: string, cause?: unknown): OnejobError {
  const hint = `Delete ${path} and type "onejob config apply": onejob makes a new one.`;
  return new OnejobError('E_API_LISTEN', `Cannot use the ${what} in ${path}: ${why}.`, { hint, cause });
}

/** Reads a secret, and makes it if it does not exist. @throws OnejobError E_API_LISTEN */
function secretIn(path: string, what: string, made: () => string): string {
  const refuse = (why: string, cause?: unknown): never => {
    throw unusable(path, what, why, cause);
  };
  try {
    if (!existsSync(path)) make(path, made());
  } catch (error) {
    return refuse(messageOf(error), error);
  }
  const file = attempt(() => openSync(path, 'r')) ?? refuse('it cannot be read');
  try {
    const { mode, uid } = fstatSync(file);
    if ((mode & 0o077) !== 0) return refuse(`others can read it (mode ${(mode & 0o777).toString(8).padStart(4, '0')})`);
    if (uid !== process.geteuid?.()) return refuse(`it belongs to user ${uid}`);
    const secret = readFileSync(file, 'utf8');
    return secret.trim().length >= 32 ? secret : refuse('it has less than 32 characters');
  } finally {
    closeSync(file);
  }
}

/** One that exists by now is kept. */
function make(path: string, text: string): void {
  try {
    writeWhole(path, text, { over: false, mode: 0o600, alone: true });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error;
  }
}
