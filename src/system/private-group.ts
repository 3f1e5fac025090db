/** Groups with one member: what such a group may do, only its user may. Kubernetes gives a pod's volumes to one (`fsGroup`). */
import { readOr } from './process-identity.ts';

/**
 * Whether nobody but this user is in a group, by `/etc/passwd` and `/etc/group`, as Debian's sshd decides it for files that a group may
 * write. A group that is not this user's own counts as shared.
 */
export function isPrivateGroup(
  gid: number,
  uid: number | undefined = process.geteuid?.(),
  { passwd = readOr('/etc/passwd', ''), group = readOr('/etc/group', '') } = {},
): boolean {
  const rows = (text: string): string[][] => text.split('\n').map((line) => line.split(':'));
  const users = rows(passwd).filter(([, , , own]) => own === String(gid));
  const members = rows(group)
    .filter(([, , id]) => id === String(gid))
    .flatMap(([, , , list = '']) => list.split(',').filter((name) => name !== ''));
  const [[name, , id] = [], ...others] = users;
  return others.length === 0 && id === String(uid) && members.every((member) => member === name);
}
