/** Programs of this host that sandboxes and their supervisors use. */
import { access, constants } from 'node:fs/promises';

export const searchPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** `count` pipes to a program, and none of the descriptors that the manager `inherited`, which Node would pass on. */
export function pipes(count: number, inherited: readonly number[]): ('pipe' | 'ignore')[] {
  return Array.from({ length: Math.max(count - 1, ...inherited) + 1 }, (_, fd) => (fd < count ? 'pipe' : 'ignore'));
}

/** Whether a program is in the path of sandboxes. */
export async function isInstalled(name: string, folders = searchPath): Promise<boolean> {
  const looks = folders.split(':').map((folder) => access(`${folder}/${name}`, constants.X_OK));
  return (await Promise.allSettled(looks)).some(({ status }) => status === 'fulfilled');
}
