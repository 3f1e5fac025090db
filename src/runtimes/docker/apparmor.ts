/**
 * The AppArmor profile of agents' engines. Where AppArmor keeps users from making namespaces, as on Ubuntu 24.04, only programs under a
 * profile that says so may make them: a container without any profile may not. The profile restricts nothing, so where it is not needed
 * an engine has none.
 */
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { attempt, messageOf } from '../../base/errors.ts';
import { writeWhole } from '../../system/files.ts';

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

/**
 * Writes the file of the profile and has it loaded; null, or what is in the way. What somebody else wrote stays as it is. `load` says
 * what the program that loads it says against it.
 */
export async function installProfile(
  load: (path: string) => Promise<string | null>,
  path: string = engineProfile.path,
): Promise<string | null> {
  try {
    if (!existsSync(path)) writeWhole(path, engineProfile.text, { over: false, mode: 0o644 });
    else if (!isOurs(path)) return `${path} differs from what onejob writes, and stays as it is`;
  } catch (error) {
    return messageOf(error);
  }
  const said = await load(path);
  // Who may not ask the kernel takes the file for a profile that is loaded.
  if (said !== null) rmSync(path, { force: true });
  return said;
}

/** Removes the file, unless somebody else wrote it. The kernel keeps the profile until the next boot: agents that continue are under it. */
export function removeProfile(path: string = engineProfile.path): void {
  if (isOurs(path)) rmSync(path, { force: true });
}

function isOurs(path: string): boolean {
  return attempt(() => readFileSync(path, 'utf8')) === engineProfile.text;
}
