/** Agents' programs as sandboxes find them. */
import { inQuotes } from '../../base/quoted.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';

/** Where onejob mounts what it adds. No image and no host has this folder. */
export const ownFolder = '/onejob';

export const readOnlyMount = (host: string, container: string): Mount => ({
  host,
  container,
  readOnly: true,
  variable: null,
  cache: null,
});

/** Adds the program `name` of a folder of this host; null: the image brings its own. */
export function mounted(recipe: Recipe, folder: string | null, name: string): Recipe {
  if (folder === null) return recipe;
  const program: Mount = { ...readOnlyMount(`${folder}/${name}`, `${ownFolder}/${name}`), program: true };
  return { ...recipe, mounts: [...recipe.mounts, program] };
}

/**
 * Shell lines that keep calls to this host away from proxies of the image or pool: no proxy leads to this host's bridges, but the
 * agent would use one. `endpoint`: on this host, as `http://172.18.0.1:7070/v3`.
 */
export function noProxyFor(endpoint: string): readonly string[] {
  const host = URL.parse(endpoint)?.hostname.replace(/^\[(.*)\]$/, '$1') ?? '';
  // It is not quoted below.
  if (!/^[\w.:-]+$/.test(host)) return [];
  return [
    'NO_PROXY=${NO_PROXY:-${no_proxy:-}}',
    `NO_PROXY="\${NO_PROXY:+$NO_PROXY,}${host}"`,
    'no_proxy=$NO_PROXY',
    'export NO_PROXY no_proxy',
  ];
}

/** Files with the certificates that a distribution accepts: Debian and Ubuntu, RHEL, SUSE, Alpine (Go's `crypto/x509/root_linux.go`). */
const accepted = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/ssl/ca-bundle.pem',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/etc/ssl/cert.pem',
];

/** Shell lines after which programs that use Go or OpenSSL accept one more certificate, in PEM. `file`: its path in the sandbox. */
export function acceptsToo(ca: string, file: string): readonly string[] {
  const own = inQuotes(file);
  return [
    `for f in "\${SSL_CERT_FILE:-}" ${accepted.join(' ')}; do if [ -r "$f" ]; then cat "$f"; break; fi; done >${own} || exit 1`,
    `printf '%s' ${inQuotes(ca)} >>${own} || exit 1`,
    `export SSL_CERT_FILE=${own}`,
  ];
}
