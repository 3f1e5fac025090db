/** Requests to the daemon that serves this page. */
import type { ErrorView } from './views.ts';

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

const stored = 'onejob-session';

/** Of this origin, for all its tabs. No cookie: browsers would send that to the other ports of this host too. */
export const session = {
  set: (value: string): void => localStorage.setItem(stored, value),
  forget: (): void => localStorage.removeItem(stored),
  /** Calls back when another tab has logged in or out. */
  onChange(call: () => void): void {
    window.addEventListener('storage', ({ key }) => {
      // null: all was removed.
      if (key === stored || key === null) call();
    });
  },
};

/** @throws Problem for an answer that is an error, or none; the signal's reason when it is aborted */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const value = localStorage.getItem(stored);
  const headers = new Headers(init.headers);
  if (value !== null) headers.set('authorization', `Bearer ${value}`);
  let response: Response;
  try {
    response = await fetch(path, { credentials: 'omit', cache: 'no-store', ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, noAnswer);
  }
  if (response.ok) return response;
  const said: unknown = await response.json().catch(() => null);
  throw new Problem(response.status, isError(said) ? said : { ...noAnswer, message: `The daemon answered ${response.status}.` });
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

/** ms that the daemon's clock is ahead of the browser's. Its header counts in seconds, so less than two are none. */
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
