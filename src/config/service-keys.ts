/** Readers of keys of a service. */
import type { SecretReference } from '../secrets/reference.ts';
import type { AgentPackageConfig } from './config.ts';

export type Keys = Readonly<Record<string, unknown>>;

/** The version may also come from the name of the package. */
export function packageIn(found: unknown): AgentPackageConfig {
  const { version, from, sha256 } = mapIn(found);
  const place = typeof from === 'string' ? from : null;
  const told = place === null ? undefined : /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(place)?.[1];
  return {
    version: typeof version === 'string' && version !== 'latest' ? version : (told ?? null),
    from: place,
    sha256: typeof sha256 === 'string' ? sha256 : null,
  };
}

export function numberIn(found: unknown, usual: number): number {
  return typeof found === 'number' ? found : usual;
}

export function secretIn(found: unknown): SecretReference | null {
  return typeof found === 'object' && found !== null ? (found as SecretReference) : null;
}

export function mapIn(found: unknown): Keys {
  return typeof found === 'object' && found !== null ? (found as Keys) : {};
}

/** The host that would get a credential in clear text; null if none, or only this host. */
export function clearTextHost(url: string): string | null {
  const { protocol, hostname } = new URL(url);
  if (protocol !== 'http:') return null;
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname) ? null : hostname;
}
