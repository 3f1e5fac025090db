/** What is mounted where, as the kernel says (proc_pid_mountinfo(5)): reading that touches no file system. */
import { readFileSync } from 'node:fs';

/** The mounts of this process. */
export const ownMounts = (): string => readFileSync('/proc/self/mountinfo', 'utf8');

/** Types of file systems behind which a server may be. */
const served =
  /^(?:nfs|nfs4|cifs|smb\w*|ceph|lustre|gpfs|beegfs|glusterfs|afs|wekafs|panfs|orangefs|ocfs2|gfs2|virtiofs|vboxsf|9p|autofs|fuse|fuse\.(?!(?:fuse-overlayfs|ext\d|ntfs(?:-3g)?|exfat|bindfs|mergerfs|gocryptfs|encfs|lxcfs)$).+)$/;

/** For an absolute path without links: where the file server is mounted that it lies on; null: it is on this host. */
export function serversIn(mountinfo: string): (path: string) => string | null {
  const isServed = (type: string): boolean => served.test(type);
  if (![...mountinfo.matchAll(/ - (\S+)/g)].some(([, type = '']) => isServed(type))) return () => null;
  return (path) => {
    const mount = mountOf(path, mountinfo);
    return mount !== null && isServed(mount.type) ? mount.point : null;
  };
}

interface MountSeen {
  readonly point: string;
  readonly type: string;
  readonly options: readonly string[];
}

/** Type of the mount of `path`. */
export function mountTypeOf(path: string, mountinfo: string): string | null {
  return mountOf(path, mountinfo)?.type ?? null;
}

/** The mount of `path` (absolute, real), from the text of /proc/self/mountinfo (proc_pid_mountinfo(5)). */
export function mountOf(path: string, mountinfo: string): MountSeen | null {
  let best: MountSeen | null = null;
  for (const line of mountinfo.split('\n')) {
    const [before, after] = line.split(' - ');
    const [escaped, options = ''] = before?.split(' ').slice(4, 6) ?? [];
    const type = after?.split(' ')[0];
    if (escaped === undefined || type === undefined) continue;
    const point = escaped.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
    const holds = path === point || path.startsWith(point === '/' ? '/' : `${point}/`);
    // The later of two mounts on one point hides the earlier.
    if (holds && (best === null || point.length >= best.point.length)) best = { point, type, options: options.split(',') };
  }
  return best;
}
