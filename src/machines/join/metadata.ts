/** The metadata service of a cloud: a fixed address that answers only on the machine itself. */
import type { Clock } from '../../core/clock.ts';
import { type Answer, exchange, type Outgoing } from '../../http/exchange.ts';

export interface MetadataParts {
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** For tests. */
  readonly base?: string;
}

/** Bytes of an answer. */
const most = 256 * 1024;

/** Asks for a path. `timeout`: ms. @throws Error without an answer */
export type AskMetadata = (
  path: string,
  headers: Outgoing['headers'],
  signal: AbortSignal,
  options?: { readonly method?: Outgoing['method']; readonly timeout?: number },
) => Promise<Answer>;

export function metadataOf({ clock, fetch, base = 'http://169.254.169.254' }: MetadataParts): AskMetadata {
  return (path, headers, signal, { method = 'GET', timeout = 5_000 } = {}) =>
    exchange({ method, url: `${base}${path}`, headers }, { clock, fetch, timeout, most }, signal);
}

/** AWS answers nothing without a token, which is good for `seconds`. @throws Error */
export async function awsToken(ask: AskMetadata, seconds: number, signal: AbortSignal): Promise<string> {
  const headers = { 'X-aws-ec2-metadata-token-ttl-seconds': String(seconds) };
  const { status, text } = await ask('/latest/api/token', headers, signal, { method: 'PUT' });
  if (status !== 200) throw new Error(`the metadata service gave no token: it answered ${status}`);
  return text.trim();
}

export const awsHeaders = (token: string) => ({ 'X-aws-ec2-metadata-token': token });
export const gcpHeaders = { 'Metadata-Flavor': 'Google' } as const;
export const azureHeaders = { Metadata: 'true' } as const;
