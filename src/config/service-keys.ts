/** What types of services share about their keys. */
import type { AgentPackageConfig } from './config.ts';

/** Parsed, but without defaults. */
export type Keys = Readonly<Record<string, unknown>>;

type WrittenPackage = { readonly [K in keyof AgentPackageConfig]?: string | null | undefined };

/** The version may also come from the name of the package. */
export function packageOf({ version = 'latest', from = null, sha256 = null }: WrittenPackage = {}): AgentPackageConfig {
  const told = from === null ? null : (/-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(from)?.[1] ?? null);
  return { version: version === 'latest' ? told : version, from, sha256 };
}

/** The host that would get a credential in clear text; null if none, or only this host. */
export function clearTextHost(url: string): string | null {
  const { protocol, hostname } = new URL(url);
  if (protocol !== 'http:') return null;
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname) ? null : hostname;
}
