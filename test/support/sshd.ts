/** OpenSSH's server on a port of the loopback, with keys of its own, for tests of `--host`. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type Child, startChild } from './child.ts';

export interface Sshd extends AsyncDisposable {
  readonly port: number;
  /** A folder with an `ssh` that uses the test's own key and known hosts. */
  readonly path: string;
  /** Forgets the login's key. */
  revoke(): void;
  readonly child: Child;
}

/** `dir`: an empty folder. `onejob`: the program that logins find. */
export async function startSshd(dir: string, onejob: string): Promise<Sshd> {
  const key = (name: string): string => {
    const file = join(dir, name);
    const made = spawnSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', file], { encoding: 'utf8' });
    if (made.status !== 0) throw new Error(made.stderr);
    return file;
  };
  mkdirSync('/run/sshd', { recursive: true, mode: 0o755 });
  const [host, user] = [key('host'), key('user')];
  const authorized = join(dir, 'authorized');
  writeFileSync(authorized, spawnSync('cat', [`${user}.pub`]).stdout, { mode: 0o600 });
  const port = await freePort();
  const there = join(dir, 'there');
  mkdirSync(there);
  writeFileSync(join(there, 'onejob'), `#!/bin/sh\nexec "${onejob}" "$@"\n`, { mode: 0o755 });
  const config = join(dir, 'sshd_config');
  writeFileSync(
    config,
    [
      ...[`Port ${port}`, 'ListenAddress 127.0.0.1', `HostKey ${host}`, `AuthorizedKeysFile ${authorized}`, 'StrictModes no'],
      ...['PasswordAuthentication no', 'KbdInteractiveAuthentication no', 'UsePAM no', 'PermitRootLogin yes'],
      // As on a host that is locked down: no forwarding is needed.
      ...['DisableForwarding yes', `SetEnv PATH=${there}:/usr/bin:/bin`, `PidFile ${join(dir, 'pid')}`],
    ].join('\n'),
  );
  const child = startChild('/usr/sbin/sshd', ['-D', '-e', '-f', config], { cwd: dir, env: { PATH: process.env.PATH } });
  await child.says(/Server listening/);
  const path = join(dir, 'here');
  mkdirSync(path);
  const known = join(dir, 'known');
  writeFileSync(known, `[127.0.0.1]:${port} ${spawnSync('cat', [`${host}.pub`]).stdout}`);
  const options = `-F none -i ${user} -o IdentitiesOnly=yes -o UserKnownHostsFile=${known} -o GlobalKnownHostsFile=/dev/null`;
  writeFileSync(join(path, 'ssh'), `#!/bin/sh\nexec /usr/bin/ssh ${options} "$@"\n`, { mode: 0o755 });
  return {
    port,
    path,
    child,
    revoke: () => writeFileSync(authorized, ''),
    async [Symbol.asyncDispose]() {
      child.signal('SIGTERM');
      await child.ended;
    },
  };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}
