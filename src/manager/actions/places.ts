/**
 * Where the volumes of sandboxes lead, right before each is made. A path of a pool's volume was checked when the config was read: who
 * may write to a folder above it could put a link in its place since, to any folder of the host.
 */
import { lstatSync, readFileSync, readlinkSync, type Stats } from 'node:fs';
import { dirname, join } from 'node:path';
import { type Guarded, hostPathProblem } from '../../config/check-mounts.ts';
import type { Config } from '../../config/config.ts';
import { realOf } from '../../config/host-places.ts';
import { slotNames } from '../../config/template.ts';
import { isNamed } from '../../config/volumes.ts';
import { attempt } from '../../errors.ts';
import { mountChanged } from '../../runtimes/mounts.ts';
import type { Mount } from '../../runtimes/runtime.ts';
import { mountTypeOf } from '../../store/directory.ts';

export type MountPlaces = ReturnType<typeof createMountPlaces>;

/** The mounts of this process, read without touching any of them. */
const ownMounts = (): string => attempt(() => readFileSync('/proc/self/mountinfo', 'utf8')) ?? '';

/** Types of file systems behind which a server may be. */
const served =
  /^(?:nfs|nfs4|cifs|smb\w*|ceph|lustre|gpfs|beegfs|glusterfs|afs|9p|autofs|fuse\.(?!(?:fuse-overlayfs|ext\d|ntfs(?:-3g)?|exfat|bindfs|mergerfs|gocryptfs|encfs|lxcfs)$).+)$/;

/** To be created when the config was checked. */
export function createMountPlaces(config: Guarded & Pick<Config, 'pools' | 'host'>, mountinfo = ownMounts) {
  const nameOf = slotNames(config);
  /** Host paths of volumes, and where each led at first. */
  const checked = new Map<string, string>();
  /** Paths of pools whose number of agents is not known yet. */
  const later: string[] = [];
  for (const { name, agents, recipe } of config.pools)
    for (const { host, cache } of recipe.mounts) {
      if (isNamed(cache)) continue;
      const count = host.includes('{name}') ? agents : 1;
      if (count === 'per-device') later.push(host);
      else
        for (let n = 1; n <= count; n += 1) {
          const path = host.replaceAll('{name}', nameOf(`${name}/${n}`));
          checked.set(path, realOf(path));
        }
    }

  const placeOf = ({ host, real }: Mount, mounts: string): string => {
    const before = checked.get(host);
    const isAway = (path: string): boolean => served.test(mountTypeOf(path, mounts) ?? '');
    // A look at a file server that is away takes for ever, and with it this whole process. What is mounted is compared, too.
    if (real === undefined && [host, before ?? host].some(isAway)) return before ?? host;
    const now = real ?? realOf(host);
    if (before === undefined && later.some((template) => isOf(template, host))) checked.set(host, now);
    if (before === undefined || before === now) return now;
    const why = hostPathProblem({ host: now }, config) ?? (isDecidedHere(host) ? null : 'other users can change that');
    if (why === null) return now;
    throw mountChanged(
      `Cannot mount ${host}: it leads to ${now} now, and led to ${before} when the config was read; ${why}.`,
      'Put it back. If it is right, restart the daemon: it checks all paths again.',
    );
  };

  return {
    /** The place of each mount, without links. @throws OnejobError E_MOUNT_CHANGED */
    of(mounts: readonly Mount[]): readonly string[] {
      const seen = mountinfo();
      return mounts.map((mount) => placeOf(mount, seen));
    },
  };
}

/** Whether a path comes from a template with `{name}`. */
function isOf(template: string, path: string): boolean {
  const [start = '', ...rest] = template.split('{name}');
  return path.startsWith(start) && path.endsWith(rest.at(-1) ?? '');
}

/** As many links as Linux follows. */
const mostLinks = 40;

/** Whether only root and this user decide where a path leads, as with a link to the newest version of a data set. */
function isDecidedHere(path: string): boolean {
  const isOurs = ({ uid }: Stats): boolean => uid === 0 || uid === process.getuid?.();
  const rest = path.split('/').filter((part) => part !== '');
  let at = '/';
  let links = 0;
  for (let part = rest.shift(); part !== undefined; part = rest.shift()) {
    if (part === '.') continue;
    if (part === '..') {
      at = dirname(at);
      continue;
    }
    const next = join(at, part);
    const [folder, entry] = [at, next].map((each) => attempt(() => lstatSync(each)));
    if (folder == null || entry == null || !isOurs(folder)) return false;
    // In a sticky folder others leave alone what is not theirs.
    if ((folder.mode & 0o022) !== 0 && !((folder.mode & 0o1000) !== 0 && isOurs(entry))) return false;
    const target = attempt(() => readlinkSync(next));
    if (target === null) at = next;
    else {
      links += 1;
      if (links > mostLinks) return false;
      if (target.startsWith('/')) at = '/';
      rest.unshift(...target.split('/').filter((each) => each !== ''));
    }
  }
  return true;
}
