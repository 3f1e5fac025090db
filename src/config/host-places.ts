/**
 * Places of a host that no stranger may be shown, be it read-only: a socket is used by who can see it, a home holds keys. Looks at
 * the disk: links are followed, and a folder is judged by what lies in it now.
 */
import { lstatSync, opendirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { engineSocketIn } from './check-mounts.ts';

/** What runs now, and what stores of engines hold: images, other jobs' files, credentials. */
const folders = ['/run', '/var/run', '/proc', ...['docker', 'containerd', 'containers', 'kubelet', 'libvirt'].map(ofLib)];
/** Names under which programs keep the keys of whoever uses them. */
const keyNames = /(?:^|\/)\.(?:ssh|aws|azure|docker|gnupg|kube|netrc|git-credentials|password-store)(?:\/|$)/;
/** A home as a whole; what somebody keeps in a folder of it may well be data. */
const homes = /^\/(?:root|home(?:\/[^/]+)?)$/;
/** How many names of a folder, and how deep, are looked at: a folder of data may hold millions. */
const most = { names: 2_000, levels: 2 } as const;

/** Why a stranger may not be shown it, as the rest of a sentence; null when they may. */
export function whyNoStranger(host: string): string | null {
  const socket = engineSocketIn(host);
  if (socket !== null) return `it gives way to ${socket}`;
  for (const path of new Set([host, realOf(host)])) {
    const folder = folders.find((each) => path === each || path.startsWith(`${each}/`) || each.startsWith(`${path}/`));
    if (folder !== undefined) return `it ${path.startsWith(folder) ? 'lies in' : 'holds'} ${folder}`;
    if (homes.test(path)) return `it is a home`;
    if (keyNames.test(path)) return 'it is where programs keep keys';
  }
  const found = socketIn(realOf(host), most.levels, { left: most.names });
  return found === null ? null : `${found} is a socket of this host`;
}

/** What cannot be read is no way to anything that could be found here: whoever is root in a sandbox sees it, so root looks. */
function socketIn(path: string, levels: number, budget: { left: number }): string | null {
  const kind = lstatSync(path, { throwIfNoEntry: false });
  if (kind === undefined) return null;
  if (kind.isSocket()) return path;
  if (!kind.isDirectory() || levels === 0) return null;
  const deeper: string[] = [];
  using folder = opendirSync(path);
  for (let entry = folder.readSync(); entry !== null && budget.left > 0; entry = folder.readSync()) {
    budget.left -= 1;
    if (entry.isSocket()) return join(path, entry.name);
    if (entry.isDirectory()) deeper.push(join(path, entry.name));
  }
  for (const each of deeper) {
    const found = socketIn(each, levels - 1, budget);
    if (found !== null) return found;
  }
  return null;
}

function realOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

function ofLib(name: string): string {
  return `/var/lib/${name}`;
}
