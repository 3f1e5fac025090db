/**
 * The state directory: created with mode 0700, on a local disk, for onejob alone. A directory with other contents is refused, so
 * `--state-dir /tmp` never changes `/tmp`.
 */
import { chmodSync, mkdirSync, readdirSync, realpathSync, type Stats, statfsSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { codeOf, OnejobError } from '../base/errors.ts';
import { makeFolder } from '../system/files.ts';
import { mountTypeOf, ownMounts } from '../system/mountinfo.ts';
import { storeFault, translated } from './fault.ts';

/** Name of the database in the state directory. It marks the directory as onejob's. */
export const databaseName = 'onejob.db';

// statfs(2) magic numbers, include/uapi/linux/magic.h and the file systems' own sources.
const network: ReadonlyMap<number, string> = new Map([
  [0x6969, 'nfs'],
  [0x517b, 'smb'],
  [0xff534d42, 'cifs'],
  [0xfe534d42, 'smb2'],
  [0x01021997, '9p'],
  [0x00c36400, 'ceph'],
  [0x5346414f, 'afs'],
  [0x6b414653, 'afs'],
  [0x73757245, 'coda'],
  [0x564c, 'ncp'],
  [0x0bd00bd3, 'lustre'],
  [0x47504653, 'gpfs'],
  [0x19830326, 'beegfs'],
  [0x786f4256, 'vboxsf'],
]);
const fuse = 0x65735546;
const localFuse = /^(fuseblk|fuse|fuse\.(fuse-overlayfs|ext4|ext2|ntfs|ntfs-3g|exfat|bindfs|mergerfs|gocryptfs|encfs|lxcfs))$/;

/**
 * Name of the network file system of a directory; null if it is local.
 * @param magic `f_type` of statfs(2)
 * @param mountType the mount's type in /proc/self/mountinfo; only asked for FUSE
 */
export function networkFileSystem(magic: number, mountType: () => string | null): string | null {
  const known = network.get(magic >>> 0);
  if (known !== undefined) return known;
  if (magic >>> 0 !== fuse) return null;
  const type = mountType();
  return type === null || localFuse.test(type) ? null : type;
}

/**
 * Creates or checks the state directory and returns its real path.
 * @param close as chmod(2)
 * @throws OnejobError E_STATE_DIR, E_STATE_NETWORK_FS, E_STATE_FULL
 */
export function prepareDirectory(dir: string, close: (path: string, mode: number) => void = chmodSync): string {
  try {
    makeFolder(dirname(dir), 0o777);
    mkdirSync(dir, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw cannotMake(dir, error);
  }
  const found = look(dir);
  if (!found.isDirectory()) throw notOurs(dir, 'it is not a directory');
  const me = process.geteuid?.() ?? 0;
  if (found.uid !== me) throw notOurs(dir, `it belongs to user ${found.uid}, but onejob runs as user ${me}`);
  const real = realpathSync(dir);
  const mountType = () => mountTypeOf(real, ownMounts());
  const filesystem = networkFileSystem(statfsSync(real).type, mountType);
  if (filesystem !== null) {
    throw new OnejobError('E_STATE_NETWORK_FS', `Cannot keep state in ${dir}: it is on a network file system (${filesystem}).`, {
      hint: 'Locks and SQLite are not safe there. Give a directory on a local disk with "state_dir" in the config, --state-dir or ONEJOB_STATE_DIR.',
    });
  }
  if ((found.mode & 0o777) !== 0o700) {
    const entries = readdirSync(real);
    if (entries.length > 0 && !entries.includes(databaseName)) throw notOurs(dir, "it contains files that are not onejob's");
    try {
      close(real, 0o700);
    } catch (error) {
      throw cannotMake(dir, error);
    }
  }
  return real;
}

function look(dir: string): Stats {
  try {
    return statSync(dir);
  } catch (error) {
    throw cannotMake(dir, error);
  }
}

/** Creates a folder inside the state directory, on disk once this returns: what is synced in it is lost without its name. */
export function subdirectory(dir: string, name: string): string {
  const path = join(dir, name);
  translated('make', path, () => makeFolder(path));
  return path;
}

function cannotMake(dir: string, error: unknown): unknown {
  if (codeOf(error) === 'EROFS') return notOurs(dir, 'its file system is read-only');
  const fault = storeFault('make the state directory', dir, error);
  if (fault instanceof OnejobError || !(error instanceof Error)) return fault;
  return notOurs(dir, error.message);
}

function notOurs(dir: string, why: string): OnejobError {
  const hint = 'Give an empty directory of your own with --state-dir or ONEJOB_STATE_DIR.';
  return new OnejobError('E_STATE_DIR', `Cannot use ${dir} as the state directory: ${why}.`, { hint });
}
