/**
 * Who may do what over TCP. A role's token is in a file that only this user can read. It also signs the sessions of browsers, so
 * these survive a restart of the daemon, and end when the token is replaced. Codes for a login are used once, and soon.
 *
 * No cookies: browsers send those of one port of a host to all its ports, so also to the programs of other users.
 */
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { closeSync, existsSync, fstatSync, fsyncSync, linkSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { Clock } from '../core/clock.ts';
import { attempt, codeOf, messageOf, OnejobError } from '../errors.ts';
import { subdirectory } from '../store/directory.ts';
import { jsonOf } from '../system/json.ts';
import type { Role } from './route.ts';

/** What a token or a session can be for. */
export type Access = Exclude<Role, 'anyone'>;

export interface Caller {
  readonly role: Access;
  /** As the client said when it asked for the login, unchecked. */
  readonly user: string | null;
  /** When the login ends, wall clock, ms; null: never. */
  readonly until: number | null;
}

/** ms that a code and a login last. */
const codeLife = 60_000;
export const sessionLife = 7 * 86_400_000;
/** Codes at a time, and wrong ones within so many ms (monotonic) before no more are tried. */
const [mostCodes, mostWrong, wrongWithin] = [100, 10, 60_000];

const roles = ['read', 'operator'] as const satisfies readonly Access[];
const payload = z.object({ role: z.enum(roles), user: z.string().nullable(), until: z.number() });
/** Signed payload. A token that onejob made has no dot. */
const session = /^ojs_([\w-]+)\.([\w-]+)$/;

export type AccessTable = ReturnType<typeof openAccess>;

/** `dir`: the state directory. @throws OnejobError E_API_LISTEN if the tokens cannot be read or made */
export function openAccess({ dir, clock }: { readonly dir: string; readonly clock: Clock }) {
  const codes: { readonly digest: Buffer; readonly caller: Omit<Caller, 'until'>; readonly until: number }[] = [];
  let wrong: number[] = [];
  let tokens = readTokens();

  function readTokens(): Record<Access, string> {
    const folder = subdirectory(dir, 'api');
    return { read: tokenIn(join(folder, 'read.token')), operator: tokenIn(join(folder, 'operator.token')) };
  }

  function signatureOf(text: string, role: Access): string {
    return createHmac('sha256', tokens[role]).update(`session ${text}`).digest('base64url');
  }

  function byToken(token: string): Caller | null {
    const role = roles.find((one) => isSame(digestOf(token), digestOf(tokens[one])));
    return role === undefined ? null : { role, user: null, until: null };
  }

  function bySession(text: string, signature: string): Caller | null {
    const found = payload.safeParse(jsonOf(Buffer.from(text, 'base64url').toString()));
    if (!found.success || !isSame(digestOf(signature), digestOf(signatureOf(text, found.data.role)))) return null;
    return found.data.until > clock.wall() ? found.data : null;
  }

  return {
    /** The caller, by the header `authorization` of a request; null if it gives no access. */
    callerOf(authorization = ''): Caller | null {
      const [, sent = ''] = /^Bearer +(\S+)$/i.exec(authorization) ?? [];
      const [, text, signature] = session.exec(sent) ?? [];
      return text === undefined || signature === undefined ? byToken(sent) : bySession(text, signature);
    },
    /** A code for one login within a minute: 128 bits. */
    code(caller: Omit<Caller, 'until'>): { readonly code: string; readonly until: number } {
      const code = randomBytes(16).toString('base64url');
      const until = clock.wall() + codeLife;
      codes.push({ digest: digestOf(code), caller, until });
      codes.splice(0, Math.max(0, codes.length - mostCodes));
      return { code, until };
    },
    /** Uses a code; `session` is what the browser sends from then on. @throws OnejobError E_API_LOGIN, E_API_LIMIT */
    login(code: string): Omit<Caller, 'until'> & { readonly session: string } {
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
      const { role, user } = found.caller;
      const text = Buffer.from(JSON.stringify({ role, user, until: now + sessionLife })).toString('base64url');
      return { role, user, session: `ojs_${text}.${signatureOf(text, role)}` };
    },
    /** Reads the tokens again, and makes those that are missing. True if one is another. @throws as `openAccess` */
    refresh(): boolean {
      const before = tokens;
      tokens = readTokens();
      return roles.some((role) => tokens[role] !== before[role]);
    },
  };
}

function digestOf(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/** In constant time. */
function isSame(a: Buffer, b: Buffer): boolean {
  return timingSafeEqual(a, b);
}

/** Reads a token, and makes it if it does not exist. @throws OnejobError E_API_LISTEN */
function tokenIn(path: string): string {
  const refuse = (why: string, cause?: unknown): never => {
    const hint = `Delete ${path} and type "onejob config apply": onejob makes a new one.`;
    throw new OnejobError('E_API_LISTEN', `Cannot use the token in ${path}: ${why}.`, { hint, cause });
  };
  try {
    if (!existsSync(path)) makeToken(path);
  } catch (error) {
    return refuse(messageOf(error), error);
  }
  const file = attempt(() => openSync(path, 'r')) ?? refuse('it cannot be read');
  try {
    const { mode, uid } = fstatSync(file);
    if ((mode & 0o077) !== 0) return refuse(`others can read it (mode ${(mode & 0o777).toString(8).padStart(4, '0')})`);
    if (uid !== process.geteuid?.()) return refuse(`it belongs to user ${uid}`);
    const token = readFileSync(file, 'utf8').trim();
    return token.length >= 32 ? token : refuse('it has less than 32 characters');
  } finally {
    closeSync(file);
  }
}

/** Whole or not at all, also after kill -9. One that exists by now is kept. */
function makeToken(path: string): void {
  const unfinished = `${path}.new`;
  rmSync(unfinished, { force: true });
  const file = openSync(unfinished, 'wx', 0o600);
  try {
    writeFileSync(file, `${randomBytes(32).toString('base64url')}\n`);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  try {
    linkSync(unfinished, path);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error;
  } finally {
    rmSync(unfinished, { force: true });
  }
}
