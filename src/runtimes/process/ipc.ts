/**
 * What a user has made of System V: shared memory, semaphores and message queues. No process and no control group has them, and
 * they outlive both. Its creator may always remove it and cannot deny having made it; its owner is what a job says, even
 * another job's user.
 */
import { readOr } from '../../system/process-identity.ts';
import { run } from '../../system/run.ts';
import { path } from './programs.ts';

/** Options of `ipcrm` in one call: at the kernel's default limits all ids of a user do not fit into the arguments of one. */
const mostOptions = 1_000;
/** In `perms` of shared memory that is removed as soon as no process has it attached (SHM_DEST). */
const doomed = 0o1000;

/**
 * Removes everything that a user has made of System V; false if something is left that the kernel does not free by itself.
 * `read`: a file of /proc/sysvipc; `remove`: runs `ipcrm` as this user.
 */
export async function removeIpc(
  uid: number,
  read = (kind: string): string => readOr(`/proc/sysvipc/${kind}`, ''),
  remove = async (options: readonly string[]): Promise<unknown> => run('ipcrm', options, { uid, gid: uid, env: { PATH: path } }),
): Promise<boolean> {
  const found = ipcOf(uid, read);
  for (let at = 0; at < found.length; at += mostOptions) await remove(found.slice(at, at + mostOptions));
  return found.length === 0 || ipcOf(uid, read).length === 0;
}

/** Options of `ipcrm`. */
function ipcOf(uid: number, read: (kind: string) => string): string[] {
  return [
    ['shm', '-m'],
    ['sem', '-s'],
    ['msg', '-q'],
  ].flatMap(([kind = '', option = '']) => {
    const [head = [], ...rows] = read(kind)
      .split('\n')
      .map((line) => line.trim().split(/ +/));
    const [made, perms] = [head.indexOf('cuid'), head.indexOf('perms')];
    const isDoomed = (row: readonly string[]): boolean => (Number.parseInt(row[perms] ?? '', 8) & doomed) !== 0;
    return rows.flatMap((row) => {
      const isLeft = row[made] === String(uid) && !(kind === 'shm' && isDoomed(row));
      return isLeft ? [option, row[1] ?? ''] : [];
    });
  });
}
