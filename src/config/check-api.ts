/** Checks where the API listens: beyond this host only with TLS, or behind a proxy that has it. */
import { readFileSync } from 'node:fs';
import { codeOf, messageOf } from '../base/errors.ts';
import { isAny, isLoopback } from '../http/address.ts';
import type { Checking } from './checking.ts';

export function checkApi({ config, written, host: here, starting, at }: Checking): void {
  const keys = written.top.api ?? {};
  const { api } = config;
  if (written.broken.has('api') || [...written.broken].some((key) => key.startsWith('api.'))) return;
  if (api === null) {
    for (const key of Object.keys(keys)) at(['api', key], 'is not used: "listen" is missing', 'warning');
    return;
  }
  const { listen, tls, behindProxy, hosts } = api;
  if ((keys.tls_cert === undefined) !== (keys.tls_key === undefined)) {
    const [there, missing] = keys.tls_cert === undefined ? ['tls_key', 'tls_cert'] : ['tls_cert', 'tls_key'];
    at(['api', there], `needs "${missing}": TLS takes a certificate and its key`);
  } else if (tls === null && !behindProxy && !isLoopback(listen.host)) {
    const why = 'which others can reach, so logins and tokens would travel unencrypted';
    const help = 'listen on 127.0.0.1, give "tls_cert" and "tls_key", or write "behind_proxy: true" if a proxy encrypts';
    at(['api', 'listen'], `is ${listen.host}, ${why}; ${help}`);
  }
  if (hosts.length === 0 && (behindProxy || isAny(listen.host)))
    at(['api', 'hosts'], 'is missing: name the hosts that browsers will use here, such as [gpuci.example.org]');
  if (tls === null || here === null) return;
  const problem = tlsProblem(tls);
  // A certificate that is renewed badly must not keep agents from working: the daemon shows the problem and tries again.
  if (problem !== null) at(['api', 'tls_cert'], problem, starting ? 'warning' : 'error');
}

/** Why these files cannot be used together, as the rest of a sentence; null if they can. */
function tlsProblem({ cert, key }: { readonly cert: string; readonly key: string }): string | null {
  for (const path of [cert, key]) {
    try {
      readFileSync(path);
    } catch (error) {
      return `cannot be used: ${path} cannot be read (${codeOf(error)})`;
    }
  }
  try {
    // Loaded late: it is slow to load, and most configs have no certificate.
    const { createSecureContext } = process.getBuiltinModule('node:tls');
    createSecureContext({ cert: readFileSync(cert), key: readFileSync(key) });
    return null;
  } catch (error) {
    return `cannot be used with "tls_key": ${messageOf(error)}`;
  }
}
