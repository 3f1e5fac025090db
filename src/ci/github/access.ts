/**
 * How onejob signs in to GitHub: with the access token of the config, or as a GitHub App, whose key is exchanged for a token of one hour
 * for each account that installed it. Only GitHub gets either, and no sandbox.
 */
import type { KeyObject } from 'node:crypto';
import { hasCode, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { secretPlace } from '../../schema/secret-reference.ts';
import { assertion, CachedToken, rsaKeyIn, type TokenTimes } from '../../secrets/tokens.ts';
import { Rest, type RestParts } from '../kit/rest.ts';
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

interface InstallationToken extends TokenTimes {
  readonly header: string;
}

/** By place, whose runners the calls are about: `orgs/acme`, `repos/acme/app`, `enterprises/acme`. */
export function createAccess(parts: AccessParts): (place: string) => GithubAccess {
  const { credential, clock, secret } = parts;
  if (credential.kind === 'token') {
    const only: GithubAccess = { authorization: async () => `Bearer ${(await secret()).trim()}` };
    return () => only;
  }
  const accounts = new Map<string, GithubAccess>();
  const rest = new Rest({
    ...parts,
    ...createAppAssertion(parts, credential.id),
    hints: {
      credential: `Check "app" of the service: the id, and whether ${secretPlace(credential.privateKey)} holds a key of that App.`,
      denied: 'Check that the App is not suspended.',
      answer: 'Check "url" of the service, and what answers there.',
    },
  });

  /** A key that GitHub refuses is not sent again and again: each assertion is another text. */
  let refused: { readonly key: string; readonly until: number; readonly error: unknown } | null = null;

  async function mint(place: string): Promise<InstallationToken> {
    const key = await secret();
    if (refused !== null && refused.key === key && clock.now() < refused.until) throw refused.error;
    try {
      return await exchange(place, new AbortController().signal);
    } catch (error) {
      if (hasCode(error, 'E_CI_CREDENTIAL')) refused = { key, until: clock.now() + refusedFor, error };
      throw error;
    }
  }

  async function exchange(place: string, signal: AbortSignal): Promise<InstallationToken> {
    const id = credential.kind === 'app' ? (credential.installation ?? (await installationOf(place, signal))) : 0;
    const doing = `get a token for installation ${id} of the App`;
    const call = { method: 'POST', path: `/app/installations/${id}/access_tokens`, doing } as const;
    const madeAt = clock.now();
    const { token } = await rest.send(wire.installationToken, call, signal);
    const endsAt = madeAt + 3_600_000;
    return { header: `Bearer ${token}`, madeAt, renewAt: endsAt - early, endsAt };
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
    const made = renewed(clock, () => mint(place));
    accounts.set(place, made);
    return made;
  };
}

function renewed(clock: Clock, mint: () => Promise<InstallationToken>): GithubAccess {
  const token = new CachedToken<InstallationToken>(clock);
  return {
    authorization: async (signal) => (await token.get(mint, signal)).header,
    async again(header, refusals, _, signal) {
      const { current } = token;
      if (current === null || current.header !== header) return refusals <= 2;
      if (clock.now() - current.madeAt >= settling) {
        token.forget();
        return refusals <= 2;
      }
      await sleep(clock, 1_000, signal);
      signal.throwIfAborted();
      return refusals < settling / 1_000;
    },
  };
}

/** What the App signs to show that it has its key (RS256, RFC 7519). The clock of this host may be wrong, so GitHub's counts. */
function createAppAssertion({ clock, secret }: AccessParts, app: number): Required<GithubAccess> {
  let key: { readonly text: string; readonly key: KeyObject } | null = null;
  /** ms by which GitHub's clock is ahead. */
  let skew = 0;

  return {
    async authorization() {
      const text = await secret();
      if (key?.text !== text) key = { text, key: keyIn(text) };
      const at = Math.floor((clock.wall() + skew) / 1000);
      const claims = { iat: at - tolerance / 1000, exp: at + assertionLife / 1000, iss: String(app) };
      return `Bearer ${assertion(key.key, claims)}`;
    },
    async again(_, refusals, answer) {
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
  const key = rsaKeyIn(text);
  if (key !== null) return key;
  throw new OnejobError('E_SECRET', 'Cannot sign in as the GitHub App: "private_key" does not hold an RSA key in PEM format.', {
    hint: 'Generate a key in the settings of the App (Private keys), and put the whole file there.',
  });
}
