/** Requests to the daemon that serves this page. */
import { nonceHeader, proofHeader } from '../../src/api/signed.ts';
import { isProof, keepLogin, type Login, makeKey, newNonce, readKey, readLogin, signed } from './login.ts';
import type { ErrorView, LoginView } from './views.ts';

/** An answer that is an error, or none. */
export class Problem extends Error {
  override readonly name = 'Problem';
  readonly code: string;
  readonly hint: string | null;
  /** Of the answer; 0 if none came. */
  readonly status: number;
  /** It may succeed when it is asked again: the daemon says so, or none answered, such as behind a proxy. */
  readonly mayPass: boolean;

  constructor(
    status: number,
    { code, message, hint, retry = false }: Pick<ErrorView, 'code' | 'message' | 'hint'> & { readonly retry?: boolean },
  ) {
    super(message);
    this.mayPass = retry || status === 0 || status >= 500;
    this.code = code;
    this.hint = hint;
    this.status = status;
  }
}

const noAnswer = { code: 'E_DAEMON_ABSENT', message: 'The daemon does not answer.', hint: 'Look at "onejob status" on the host.' };

const loggedOut = {
  code: 'E_API_LOGIN',
  message: 'This browser is not logged in, or no longer.',
  hint: 'Type "onejob dashboard" on the host for a link.',
};

const stranger = {
  code: 'E_DAEMON_ABSENT',
  message: `What answers at ${globalThis.location?.host ?? 'this address'} is not the onejob that you logged in to.`,
  hint: 'Nothing that it says is shown. Look at "onejob status" on the host; for a new login there, type "onejob dashboard".',
};

type Asked = Omit<RequestInit, 'body'> & { readonly body?: string };

/** What requests are signed for: the listener that answers now. `ahead`: ms that the daemon's clock is. */
interface Listener {
  readonly challenge: string;
  readonly ahead: number;
}

const door = createDoor();

/** @throws Problem for an answer that is an error, of somebody else, or none; the signal's reason when it is aborted */
export async function ask(path: string, asked: Asked = {}): Promise<Response> {
  let response = await door.ask(path, asked);
  // The daemon may be another one by now, or its clock was set.
  if (response.status === 401) response = await door.ask(path, asked);
  if (response.ok) return response;
  throw await problemOf(response);
}

/** Nothing more is sent before who answers has proved who it is: a connection has ended, and the port may be another program's. */
export function meetAgain(): void {
  door.renew();
}

function createDoor() {
  let login: Promise<Login | null> | null = null;
  let listener: Promise<Listener> | null = null;

  async function askAs(known: Login, path: string, asked: Asked, authorization: (nonce: string) => Promise<string | null>) {
    const nonce = newNonce();
    const headers = new Headers(asked.headers);
    headers.set(nonceHeader, nonce);
    const sent = await authorization(nonce);
    if (sent !== null) headers.set('authorization', sent);
    const response = await answered(path, { ...asked, headers });
    if (await isProof(known, response.headers.get(proofHeader), nonce)) return response;
    // What a proxy says itself.
    const isProxy = response.status >= 502 && !response.headers.has(proofHeader);
    throw isProxy ? new Problem(response.status, { ...noAnswer, hint: null }) : new Problem(0, stranger);
  }

  async function meet(known: Login): Promise<Listener> {
    const response = await askAs(known, '/v1/challenge', {}, async () => null);
    if (!response.ok) throw await problemOf(response);
    const { challenge, at } = (await response.json()) as { challenge: string; at: number };
    return { challenge, ahead: at - Date.now() };
  }

  return {
    renew(): void {
      listener = null;
    },
    /** The answer of the daemon of the login. @throws as `ask`, but for errors of the daemon */
    async ask(path: string, asked: Asked): Promise<Response> {
      login ??= readLogin();
      const known = await login;
      if (known === null) throw new Problem(401, loggedOut);
      listener ??= meet(known);
      const mine = listener;
      try {
        const { challenge, ahead } = await mine;
        asked.signal?.throwIfAborted();
        const response = await askAs(known, path, asked, (nonce) => {
          const { method = 'GET', body = '' } = asked;
          return signed(known, { method, path, body, challenge, at: Date.now() + ahead, nonce });
        });
        if (response.status === 401 && listener === mine) listener = null;
        return response;
      } catch (error) {
        // Who answers next may be somebody else.
        if (!asked.signal?.aborted && listener === mine) listener = null;
        throw error;
      }
    },
  };
}

/** Turns the code of a link into a login of this browser. @throws as `ask` */
export async function logIn(code: string): Promise<void> {
  const { own, key } = await makeKey();
  const headers = { 'content-type': 'application/json' };
  // A browser clears nothing for a request without credentials, although there are none.
  const how = { method: 'POST', credentials: 'same-origin', headers } as const;
  const response = await answered('/v1/login', { ...how, body: JSON.stringify({ code, key }) });
  if (!response.ok) throw await problemOf(response);
  const { session, daemon } = (await response.json()) as LoginView;
  await keepLogin({ session, key: own, daemon: await readKey(daemon.key), port: daemon.port });
}

async function answered(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, { credentials: 'omit', cache: 'no-store', ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, noAnswer);
  }
}

async function problemOf(response: Response): Promise<Problem> {
  const said: unknown = await response.json().catch(() => null);
  return new Problem(response.status, isError(said) ? said : { ...noAnswer, message: `The daemon answered ${response.status}.` });
}

function isError(said: unknown): said is ErrorView {
  return typeof said === 'object' && said !== null && 'message' in said && typeof said.message === 'string';
}

/** The body is of the same daemon as this page, and checked there. @throws as `ask` */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await ask(path, signal === undefined ? {} : { signal })).json()) as T;
}

/** @throws as `ask` */
export async function post<T>(path: string, body: unknown = {}): Promise<T | null> {
  const headers = { 'content-type': 'application/json' };
  const response = await ask(path, { method: 'POST', headers, body: JSON.stringify(body) });
  const text = await response.text();
  return text === '' ? null : (JSON.parse(text) as T);
}

/** ms that the daemon's clock is ahead of the browser's. Its header counts in seconds, so a difference of less than two does not count. */
export function clockOffset(response: Response, now: number): number {
  const said = Date.parse(response.headers.get('date') ?? '');
  const ahead = said - now;
  return Number.isNaN(said) || Math.abs(ahead) < 2_000 ? 0 : ahead;
}

/** Parts of a path or a query, escaped. */
export function path(strings: TemplateStringsArray, ...parts: readonly (string | number)[]): string {
  return String.raw({ raw: strings }, ...parts.map((part) => encodeURIComponent(part)));
}

/** `?a=1&b=2` of what is given; empty if nothing is. */
export function query(given: Readonly<Record<string, string | number | boolean | null | undefined>>): string {
  const pairs = Object.entries(given).flatMap(([key, value]) =>
    value === null || value === undefined || value === '' ? [] : [[key, String(value)]],
  );
  return pairs.length === 0 ? '' : `?${new URLSearchParams(pairs)}`;
}
