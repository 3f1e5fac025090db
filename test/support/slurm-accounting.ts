/** Accounting of a test's own Slurm: MariaDB and slurmdbd, processes of that cluster in its folder. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import type { Child } from './child.ts';
import { freePort } from './free-port.ts';

/** Why there can be none here, as a sentence's end; null when there can. */
export function lacksSlurmAccounting(): string | null {
  const folders = (process.env.PATH ?? '').split(delimiter);
  const needed = ['mariadb-install-db', 'mariadbd', 'slurmdbd', 'sacct'];
  const missing = needed.filter((name) => !folders.some((folder) => existsSync(join(folder, name))));
  return missing.length === 0 ? null : `not installed: ${missing.join(', ')}`;
}

/** `begin`: starts a process of the cluster. `socket`: of its munged. Lines of slurm.conf, once it does its work. */
export async function startSlurmAccounting(
  home: string,
  socket: string,
  begin: (words: readonly string[]) => Child,
): Promise<string[]> {
  const [data, port, database] = [join(home, 'database'), await freePort(), await freePort()];
  mkdirSync(data);
  execFileSync('mariadb-install-db', ['--no-defaults', '--user=root', `--datadir=${data}`, '--skip-test-db'], { stdio: 'pipe' });
  const mariadb = begin([
    ...['mariadbd', '--no-defaults', '--user=root', `--datadir=${data}`, `--socket=${join(data, 'socket')}`],
    // Nobody but this machine's processes reaches it, and there is nothing in it.
    ...['--bind-address=127.0.0.1', `--port=${database}`, '--skip-grant-tables', '--innodb-flush-log-at-trx-commit=0'],
  ]);
  await mariadb.says(/ready for connections/);
  const lines = [
    ...['AuthType=auth/munge', `AuthInfo=socket=${socket}`, 'DbdHost=localhost', 'DbdAddr=127.0.0.1', `DbdPort=${port}`],
    ...['SlurmUser=root', `PidFile=${join(data, 'slurmdbd.pid')}`],
    ...['StorageType=accounting_storage/mysql', 'StorageHost=127.0.0.1', `StoragePort=${database}`, 'StorageUser=root'],
  ];
  const conf = join(home, 'slurmdbd.conf');
  writeFileSync(conf, `${lines.join('\n')}\n`, { mode: 0o600 });
  await begin(['slurmdbd', '-D']).says(/started/);
  const of = { Type: 'accounting_storage/slurmdbd', Host: '127.0.0.1', Port: port, Pass: socket };
  return Object.entries(of).map(([key, value]) => `AccountingStorage${key}=${value}`);
}
