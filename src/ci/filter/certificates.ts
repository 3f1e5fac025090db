/**
 * The filter's certificates, for sandboxes on other hosts. An authority of the installation's own signs one for each address. Sandboxes
 * get the authority's certificate with their job and accept no other one, so a program that takes the port later learns nothing.
 *
 * ```
 * STATE/filter/ca.pem ca.key             the authority, for ten years
 *              tls-ADDRESS.pem .key      of an address; `:` is written as `_`
 * ```
 */
import fs from 'node:fs';
import { join } from 'node:path';
import { attempt, OnejobError } from '../../base/errors.ts';
import { isNamed } from '../../http/address.ts';
import { writeWhole } from '../../system/files.ts';
import { run } from '../../system/run.ts';

export interface Certificate {
  readonly cert: Buffer;
  readonly key: Buffer;
}

/** The authority's certificate in PEM; null: not made yet, or damaged. */
export function authorityIn(dir: string): string | null {
  return certificateAt(join(dir, 'ca'))?.cert.toString() ?? null;
}

/** null: not made yet, or damaged. */
export function certificateIn(dir: string, address: string): Certificate | null {
  return certificateAt(pathOf(dir, address));
}

function certificateAt(path: string): Certificate | null {
  const [cert, key] = ['pem', 'key'].map((end) => attempt(() => fs.readFileSync(`${path}.${end}`)));
  const isWhole = (text: Buffer | null | undefined): text is Buffer => text?.includes('\n-----END ') === true;
  return isWhole(cert) && isWhole(key) ? { cert, key } : null;
}

/** What is being made, by folder: several agents ask at the same time, and there is one authority. */
const making = new Map<string, Promise<unknown>>();

/** Makes what is missing for an IP address, or a name. The authority's certificate in PEM. @throws OnejobError E_FILTER */
export async function certify(dir: string, address: string, signal: AbortSignal): Promise<string> {
  const before = making.get(dir) ?? Promise.resolve();
  const own = before.then(() => makeMissing(dir, address, signal));
  making.set(
    dir,
    own.catch(() => {}),
  );
  return own;
}

async function makeMissing(dir: string, address: string, signal: AbortSignal): Promise<string> {
  if (authorityIn(dir) === null) await makeAuthority(dir, signal);
  if (certificateIn(dir, address) === null) await makeCertificate(dir, address, signal);
  const authority = authorityIn(dir);
  if (authority === null) throw failure(`${dir}/ca.pem is gone`);
  return authority;
}

function pathOf(dir: string, address: string): string {
  return join(dir, `tls-${address.replaceAll(':', '_')}`);
}

/** Days for which certificates are valid: longer than an installation lasts. */
const lasting = ['-days', '3650'];
const newKey = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'];

async function makeAuthority(dir: string, signal: AbortSignal): Promise<void> {
  // Nobody trusts any more what an earlier one has signed.
  for (const name of fs.readdirSync(dir)) if (name.startsWith('tls-')) fs.rmSync(join(dir, name));
  const path = join(dir, 'ca');
  const uses = ['basicConstraints=critical,CA:TRUE,pathlen:0', 'keyUsage=critical,keyCertSign'];
  const settings = `[req]\ndistinguished_name=dn\n[dn]\n[ca]\n${uses.join('\n')}\nsubjectKeyIdentifier=hash\n`;
  await whole(path, async (key, pem, file) => {
    fs.writeFileSync(file, settings);
    const how = ['-config', file, '-extensions', 'ca', '-subj', '/CN=onejob filter'];
    await openssl(['req', '-x509', ...newKey, ...lasting, ...how, '-keyout', key, '-out', pem], signal);
  });
}

async function makeCertificate(dir: string, address: string, signal: AbortSignal): Promise<void> {
  const subject = isNamed(address) ? `DNS:${address}` : `IP:${address.replace(/%.*/, '')}`;
  await whole(pathOf(dir, address), async (key, pem, file) => {
    fs.writeFileSync(file, `[req]\ndistinguished_name=dn\n[dn]\n`);
    const asked = `${file}.csr`;
    await openssl(['req', '-new', ...newKey, '-config', file, '-subj', '/CN=onejob filter', '-keyout', key, '-out', asked], signal);
    const uses = ['basicConstraints=critical,CA:FALSE', 'extendedKeyUsage=serverAuth', `subjectAltName=${subject}`];
    fs.writeFileSync(file, `${uses.join('\n')}\n`);
    const serial = `0x${process.getBuiltinModule('node:crypto').randomBytes(8).toString('hex')}`;
    const by = ['-CA', join(dir, 'ca.pem'), '-CAkey', join(dir, 'ca.key'), '-set_serial', serial];
    await openssl(['x509', '-req', '-in', asked, ...by, ...lasting, '-sha256', '-extfile', file, '-out', pem], signal);
    fs.rmSync(asked);
  });
}

/**
 * The key is there before its certificate, whose name says that both are complete: sandboxes on other hosts accept no other one, also
 * after a power cut of this host. @throws Error of the file system
 */
export function keepCertificate(path: string, { cert, key }: Certificate): void {
  writeWhole(`${path}.key`, key, { over: true, mode: 0o600 });
  writeWhole(`${path}.pem`, cert, { over: true, mode: 0o600 });
}

async function whole(path: string, make: (key: string, pem: string, scratch: string) => Promise<void>): Promise<void> {
  const [key, pem, scratch] = ['key', 'pem', 'cnf'].map((end) => `${path}.${process.pid}.${end}`) as [string, string, string];
  try {
    // It gets its mode before its contents.
    fs.writeFileSync(key, '', { mode: 0o600 });
    await make(key, pem, scratch);
    keepCertificate(path, { cert: fs.readFileSync(pem), key: fs.readFileSync(key) });
  } finally {
    for (const left of [key, pem, scratch]) fs.rmSync(left, { force: true });
  }
}

/** ms */
const patience = 20_000;

async function openssl(args: readonly string[], signal: AbortSignal): Promise<void> {
  const env = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
  const ended = await run('openssl', args, { env, timeout: patience, signal });
  signal.throwIfAborted();
  if (ended.code === 'ENOENT') throw failure('the program "openssl" is not installed', 'Install openssl on this host.');
  if (ended.error !== null) throw failure(`openssl says "${ended.stderr.trim().split('\n').at(-1) ?? ''}"`);
}

function failure(why: string, hint: string | null = null): OnejobError {
  const message = `Cannot make the certificate of the filter: ${why}.`;
  return new OnejobError('E_FILTER', message, { ...(hint !== null && { hint }), retry: true });
}
