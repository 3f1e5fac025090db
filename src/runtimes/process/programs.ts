/** Programs of this host that sandboxes and their supervisors use. */
import { access, constants } from 'node:fs/promises';

export const path = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Whether a program is in the path of sandboxes. */
export async function isInstalled(name: string, folders = path): Promise<boolean> {
  const found = folders.split(':').map((folder) => access(`${folder}/${name}`, constants.X_OK));
  return (await Promise.allSettled(found)).some(({ status }) => status === 'fulfilled');
}
