/** Requests to the stand-in in one line, for its own tests. */
import type { AzureDevOps } from './types.ts';

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** What it says of JSON; null for anything else. */
  readonly json: Record<string, unknown> | null;
  /** The entries, if it is a list. */
  readonly list: readonly Record<string, unknown>[];
}

export type Ask = (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Answer>;

export const basic = (pat: string): string => `Basic ${Buffer.from(`:${pat}`).toString('base64')}`;

/** Asks below the organisation or collection, without following redirects; as the manager unless another header is given. */
export function asking(azure: AzureDevOps, authorization: string | null = basic(azure.pat)): Ask {
  return async (method, path, body, headers = {}) => {
    const response = await fetch(path.startsWith('http') ? path : `${azure.url}/${path}`, {
      method,
      redirect: 'manual',
      headers: {
        accept: 'application/json; api-version=7.1',
        'x-tfs-fedauthredirect': 'Suppress',
        ...(authorization === null ? {} : { authorization }),
        ...(body === undefined || body instanceof URLSearchParams ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: body instanceof URLSearchParams ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    const isJson = response.headers.get('content-type')?.startsWith('application/json') === true;
    const json = isJson ? JSON.parse(text) : null;
    return { status: response.status, headers: response.headers, text, json, list: Array.isArray(json?.value) ? json.value : [] };
  };
}

/** A body for POST agents. */
export function registration(name: string, o: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    name,
    version: '5.278.0',
    osDescription: 'Linux',
    maxParallelism: 1,
    provisioningState: 'Provisioned',
    systemCapabilities: {},
    authorization: { publicKey: { exponent: 'AQAB', modulus: Buffer.alloc(256, 7).toString('base64') } },
    ...o,
  };
}
