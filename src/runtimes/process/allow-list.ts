/**
 * What of the host a job sees under bubblewrap: programs and libraries, and those files of /etc that programs need to
 * find libraries, names and certificates. Never `/`, `/run`, `/var`, homes, or anything that could hold a secret.
 */
import { existsSync, lstatSync, readdirSync, readlinkSync } from 'node:fs';

const etc =
  /^(alternatives|bash_completion.d|ca-certificates|ca-certificates\.conf|crypto-policies|debian_version|fonts|gai\.conf|host\.conf|hosts|java.*|ld\.so\..*|localtime|locale\.alias|locale\.conf|magic|magic\.mime|mime\.types|networks|nsswitch\.conf|os-release|perl|pki|protocols|python.*|resolv\.conf|services|terminfo|timezone)$/;

const ssl = ['/etc/ssl/certs', '/etc/ssl/openssl.cnf', '/etc/ssl/cert.pem'];

/** Bubblewrap's options for the host's part of the sandbox, as this host is now. Reads the host's file system once. */
export function hostMounts(): string[] {
  const args: string[] = [];
  for (const name of ['bin', 'sbin', ...readdirSync('/').filter((name) => /^lib/.test(name))]) {
    const path = `/${name}`;
    const kind = lstatSync(path, { throwIfNoEntry: false });
    if (kind?.isSymbolicLink()) args.push('--symlink', readlinkSync(path), path);
    else if (kind?.isDirectory()) args.push('--ro-bind', path, path);
  }
  // /usr/local is part of /usr, unless it is a file system of its own; binds are recursive, so that is included too.
  for (const path of ['/usr', '/opt', '/nix', '/gnu']) args.push('--ro-bind-try', path, path);
  args.push('--dir', '/etc', '--dir', '/etc/ssl');
  for (const name of readdirSync('/etc').filter((name) => etc.test(name)))
    args.push('--ro-bind-try', `/etc/${name}`, `/etc/${name}`);
  for (const path of ssl) args.push('--ro-bind-try', path, path);
  args.push('--proc', '/proc');
  // Names the keys of whoever started the manager, as long as their keyring is handed on.
  if (existsSync('/proc/keys')) args.push('--ro-bind', '/dev/null', '/proc/keys');
  return args;
}
