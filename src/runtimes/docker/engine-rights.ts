/**
 * What the engine of an agent may ask of the kernel: what the Engine lets every container do, and what rootless engines need besides.
 * Each call was left out once to see what fails then.
 */
import engines from './seccomp-default.json' with { type: 'json' };

/** moby's own profile (github.com/moby/profiles/seccomp v0.3.0), which the Engine gives to containers without one of their own. */
interface Profile {
  readonly syscalls: readonly { readonly names: readonly string[] }[];
}

/** System calls by what needs them. */
const added: readonly (readonly [why: string, calls: readonly string[]])[] = [
  ['namespaces of users, mounts and networks', ['clone', 'clone3', 'unshare', 'setns']],
  ['the root file system of a container', ['mount', 'umount', 'umount2', 'pivot_root', 'chroot']],
  ['the same with newer programs, which use no other way', ['open_tree', 'move_mount', 'mount_setattr']],
  ['overlay file systems', ['fsopen', 'fsconfig', 'fsmount', 'fspick']],
  ['the name of a container', ['sethostname', 'setdomainname']],
  ['a keyring for each container', ['keyctl']],
];

/** For `seccomp=` among the security options of the Engine's API. */
export function engineSeccomp(profile: Profile = engines): string {
  const names = added.flatMap(([, calls]) => calls);
  // Rules that allow a call on a condition, or refuse it, would compete with ours.
  const others = profile.syscalls.filter((rule) => !(rule.names.length === 1 && names.includes(rule.names[0] ?? '')));
  return JSON.stringify({ ...profile, syscalls: [{ names, action: 'SCMP_ACT_ALLOW' }, ...others] });
}
