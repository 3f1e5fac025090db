/**
 * The AppArmor profile of agents' engines. Where AppArmor keeps users from making namespaces, as on Ubuntu 24.04, only programs under a
 * profile that says so may make them: a container without any profile may not. The profile restricts nothing, so where it is not needed
 * an engine has none.
 */
import { existsSync, readFileSync } from 'node:fs';
import { attempt } from '../../base/errors.ts';

/** `userns` is a rule since AppArmor 4, which is also the first that keeps users from making namespaces. */
export const engineProfile = {
  name: 'onejob-engine',
  path: '/etc/apparmor.d/onejob-engine',
  text: `abi <abi/4.0>,
include <tunables/global>

profile onejob-engine flags=(unconfined) {
  userns,
}
`,
} as const;

/** Where a kernel lists its profiles; only root may read it. */
const listed = '/sys/kernel/security/apparmor/profiles';

/** What a host says about its profiles. */
export interface ProfileLook {
  /** Text of the kernel's list; null: it has none, or this user may not read it. */
  readonly profiles: () => string | null;
  /** Whether the file of the profile is there, from which a boot loads it. */
  readonly hasFile: () => boolean;
}

const thisHost: ProfileLook = {
  profiles: () => attempt(() => readFileSync(listed, 'utf8')),
  hasFile: () => existsSync(listed) && existsSync(engineProfile.path),
};

/** Whether the kernel has the profile; where it may not be asked, whether a boot has loaded it. */
export function isProfileLoaded({ profiles, hasFile }: ProfileLook = thisHost): boolean {
  const list = profiles();
  return list === null ? hasFile() : list.split('\n').some((line) => line.startsWith(`${engineProfile.name} (`));
}

/** For a container's security options. */
export function engineAppArmor(look: ProfileLook = thisHost): string {
  // Docker's own profile lets no engine start.
  return `apparmor=${isProfileLoaded(look) ? engineProfile.name : 'unconfined'}`;
}
