/**
 * How onejob signs in to GitHub: with the access token of the config, or as a GitHub App, whose key is exchanged for a token of one hour
 * for each account that installed it. Only GitHub gets either, and no sandbox.
 */
import { createPrivateKey, type KeyObject, sign } from 'node:crypto';
import { abortable } from '../../base/abortable.ts';
import { attempt, hasCode, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { secretPlace } from '../../schema/secret-reference.ts';
import { createRest, type RestParts } from '../kit/rest.ts';
import type { GithubCredential } from './config.ts';
import * as wire from './wire.ts';

/** Signs the calls for one account in. */
export type GithubAccess = Pick<RestParts, 'authorization' | 'again'>;

export interface AccessParts extends Pick<RestParts, 'base' | 'clock' | 'fetch' | 'version' | 'accept' | 'headers'> {
  readonly credential: GithubCredential;
  /** The access token, or the App's private key. @throws OnejobError E_SECRET */
  readonly secret: () => Promise<string>;
}

/** ms. A token is renewed this long before its hour is over; GitHub may refuse a new one for a few seconds (octokit/auth-app). */
const [early, settling] = [300_000, 10_000];
/** ms that a clock may be off without GitHub refusing what it signed: `iat` lies this far back. */
const tolerance = 60_000;
/** ms until a refused key is sent again. */
const refusedFor = 600_000;
/** ms that a signed assertion is valid; GitHub takes ten minutes at most. */
const assertionLife = 480_000;

interface Held {
  readonly header: string;
  readonly madeAt: number;
  readonly renewAt: number;
}

/** By place, whose runners the calls are about: `orgs/acme`, `repos/acme/app`, `enterprises/acme`. */
export function createAccess(parts: AccessParts): (place: string) => GithubAccess {
  const { credential, clock, secret } = parts;
  if (credential.kind === 'token') {
    const only: GithubAccess = { authorization: async () => `Bearer ${(await secret()).trim()}` };
    return () => only;
  }
  const accounts = new Map<string, GithubAccess>();
  const assertion = createAssertion(parts, credential.id);
  const rest = createRest({
    ...parts,
    authorization: assertion.header,
    again: assertion.again,
    hints: {
      credential: `Check "app" of the service: the id, and whether ${secretPlace(credential.privateKey)} holds a key of that App.`,
      denied: 'Check that the App is not suspended.',
      answer: 'Check "url" of the service, and what answers there.',
    },
  });

  /** A key that GitHub refuses is not sent again and again: each assertion is another text. */
  let refused: { readonly key: string; readonly until: number; readonly error: unknown } | null = null;

  async function mint(place: string, signal: AbortSignal): Promise<Held> {
    const key = await secret();
    if (refused !== null && refused.key === key && clock.now() < refused.until) throw refused.error;
    try {
      return await exchange(place, signal);
    } catch (error) {
      if (hasCode(error, 'E_CI_CREDENTIAL')) refused = { key, until: clock.now() + refusedFor, error };
      throw error;
    }
  }

  async function exchange(place: string, signal: AbortSignal): Promise<Held> {
    const id = credential.kind === 'app' ? (credential.installation ?? (await installationOf(place, signal))) : 0;
    const doing = `get a token for installation ${id} of the App`;
    const call = { method: 'POST', path: `/app/installations/${id}/access_tokens`, doing } as const;
    const madeAt = clock.now();
    const { token } = await rest.send(wire.installationToken, call, signal);
    return { header: `Bearer ${token}`, madeAt, renewAt: madeAt + 3_600_000 - early };
  }

  async function installationOf(place: string, signal: AbortSignal): Promise<number> {
    const found = await rest.find(
      wire.installation,
      { path: `/${place}/installation`, doing: `find the App's installation` },
      signal,
    );
    if (found !== null) return found.id;
    const account = place.replace(/^\w+\//, '');
    throw new OnejobError(
      'E_CI_DENIED',
      `Cannot sign in for "${account}": App ${credential.kind === 'app' ? credential.id : ''} has no installation there.`,
      {
        hint: `Install the App for ${account} (settings of the App, Install App), or fix "queue" of the pool.`,
      },
    );
  }

  return (place) => {
    // A repository belongs to the installation of its owner, but only its own path is there for users as well.
    const known = accounts.get(place);
    if (known !== undefined) return known;
    const made = renewed(clock, (signal) => mint(place, signal));
    accounts.set(place, made);
    return made;
  };
}

/** Holds a token until it ends, and makes one at a time for all callers. */
function renewed(clock: Clock, mint: (signal: AbortSignal) => Promise<Held>): GithubAccess {
  let held: Held | null = null;
  let flight: Promise<Held> | null = null;
  const make = (): Promise<Held> => {
    // Not bound to one caller's signal, because others wait for it too.
    flight ??= mint(new AbortController().signal)
      .then((made) => {
        held = made;
        return made;
      })
      .finally(() => {
        flight = null;
      });
    return flight;
  };
  return {
    async authorization(signal) {
      const now = clock.now();
      if (held !== null && now < held.renewAt) return held.header;
      try {
        return (await abortable(make(), signal)).header;
      } catch (error) {
        // The early renewal covers minutes in which GitHub cannot be reached.
        if (held !== null && now < held.renewAt + early && error instanceof OnejobError && error.retry) return held.header;
        throw error;
      }
    },
    async again(header, refusals, _, signal) {
      if (held === null || held.header !== header) return refusals <= 2;
      if (clock.now() - held.madeAt >= settling) {
        held = null;
        return refusals <= 2;
      }
      await sleep(clock, 1_000, signal);
      signal.throwIfAborted();
      return refusals < settling / 1_000;
    },
  };
}

/** What the App signs to show that it has its key (RS256, RFC 7519). The clock of this host may be wrong, so GitHub's counts. */
function createAssertion({ clock, secret }: AccessParts, app: number) {
  let key: { readonly text: string; readonly key: KeyObject } | null = null;
  /** ms by which GitHub's clock is ahead. */
  let skew = 0;

  return {
    async header(): Promise<string> {
      const text = await secret();
      if (key?.text !== text) key = { text, key: keyIn(text) };
      const at = Math.floor((clock.wall() + skew) / 1000);
      const claims = { iat: at - tolerance / 1000, exp: at + assertionLife / 1000, iss: String(app) };
      const body = [{ alg: 'RS256', typ: 'JWT' }, claims]
        .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
        .join('.');
      return `Bearer ${body}.${sign('sha256', Buffer.from(body), key.key).toString('base64url')}`;
    },
    async again(_: string, refusals: number, answer: Headers): Promise<boolean> {
      const at = Date.parse(answer.get('Date') ?? '');
      const found = Number.isNaN(at) ? 0 : at - clock.wall();
      if (refusals > 1 || Math.abs(found - skew) < tolerance / 2) return false;
      skew = found;
      return true;
    },
  };
}

/** @throws OnejobError E_SECRET */
function keyIn(text: string): KeyObject {
  const key = attempt(() => createPrivateKey(text));
  if (key?.asymmetricKeyType === 'rsa') return key;
  throw new OnejobError('E_SECRET', 'Cannot sign in as the GitHub App: "private_key" does not hold an RSA key in PEM format.', {
    hint: 'Generate a key in the settings of the App (Private keys), and put the whole file there.',
  });
}
