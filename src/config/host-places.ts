/**
 * Places of a host that untrusted jobs must not see, even read-only: sockets can be used, and homes contain keys. Follows links,
 * and looks at what folders contain now.
 */
import { lstatSync, opendirSync } from 'node:fs';
import { join } from 'node:path';
import { attempt, toFailure } from '../base/errors.ts';
import { ownMounts, serversIn } from '../system/mountinfo.ts';
import { follow, realOf } from '../system/real-path.ts';
import type { Config } from './config.ts';

/** Folders of running programs, and stores of engines: images, files of other jobs, credentials. */
const folders = [
  '/run',
  '/var/run',
  '/proc',
  ...['docker', 'containerd', 'containers', 'kubelet', 'libvirt'].map((name) => `/var/lib/${name}`),
];
/** Names under which programs keep keys of their users. */
const keyNames = /(?:^|\/)\.(?:ssh|aws|azure|docker|gnupg|kube|netrc|git-credentials|password-store)(?:\/|$)/;
/** A whole home; a folder in it may well be data. */
const homes = /^\/(?:root|home(?:\/[^/]+)?)$/;
/** How many entries are checked, since a folder of data may have millions on a slow disk. */
const most = { names: 2_000, folders: 100 } as const;

/**
 * Why an untrusted job must not see it, as the rest of a sentence; null when it may. `places`: where the config's paths lead on file
 * servers, of which the whole way is mounted; null: as far as this host decides is enough.
 */
export function whyNoStranger(host: string, places: Config['places'] | null, mountinfo = ownMounts()): string | null {
  const { end, server } = follow(host, mountinfo);
  const real = places?.get(host)?.real ?? (server === null || places === null ? end : null);
  if (real === null) return 'its file server has not said where it leads';
  for (const path of new Set([host, end, real])) {
    const why = whyNamed(path);
    if (why !== null) return why;
  }
  for (const path of new Set([end, real])) {
    // A socket is used on its own host, and a server that is away would stop this process.
    const why = follow(path, mountinfo).server === null ? whySocket(path, mountinfo) : null;
    if (why !== null) return why;
  }
  return null;
}

function whyNamed(path: string): string | null {
  const socket = engineSocketIn(path);
  if (socket !== null) return `it gives access to ${socket}`;
  const folder = folders.find((each) => path === each || path.startsWith(`${each}/`) || each.startsWith(`${path}/`));
  if (folder !== undefined) return `it ${path.startsWith(folder) ? 'lies in' : 'holds'} ${folder}`;
  if (homes.test(path)) return `it is a home directory`;
  return keyNames.test(path) ? 'programs keep keys there' : null;
}

function whySocket(path: string, mountinfo: string): string | null {
  const serverOf = serversIn(mountinfo);
  const say = (found: string) => `${found} is a socket of this host`;
  try {
    const kind = lstatSync(path, { throwIfNoEntry: false });
    if (kind?.isSocket()) return say(path);
    if (!kind?.isDirectory()) return null;
    const top = namesIn(path, most.names);
    if (top.socket !== null) return say(top.socket);
    for (const folder of top.folders.slice(0, most.folders)) {
      // A server may be mounted below a folder of this host.
      if (serverOf(folder) !== null) continue;
      // A folder in it that cannot be read, or is gone by now, is skipped.
      const socket = attempt(() => namesIn(folder, most.names / 10).socket);
      if (socket !== null) return say(socket);
    }
    return null;
  } catch (error) {
    // Root in a sandbox could look where this process cannot.
    return `it cannot be checked (${toFailure(error).message})`;
  }
}

/** The first socket in a folder, and the folders before it. */
function namesIn(path: string, limit: number): { socket: string | null; folders: readonly string[] } {
  using folder = opendirSync(path);
  const folders: string[] = [];
  for (let left = limit; left > 0; left--) {
    const entry = folder.readSync();
    if (entry === null) break;
    if (entry.isSocket()) return { socket: join(path, entry.name), folders };
    if (entry.isDirectory()) folders.push(join(path, entry.name));
  }
  return { socket: null, folders };
}

/** Sockets that give all rights over this host. The config may mount one into a pool; a job may not. */
export const engineSockets = [
  '/run/docker.sock',
  '/var/run/docker.sock',
  '/run/containerd/containerd.sock',
  '/run/podman/podman.sock',
  '/run/crio/crio.sock',
];

/** Which of these sockets a path of the host is, contains or leads to; null for none. */
export function engineSocketIn(host: string): string | null {
  return engineSockets.find((socket) => shows(host, socket)) ?? null;
}

/** Whether `folder` contains `path`, as written or with links resolved. */
export function shows(folder: string, path: string): boolean {
  return contains(folder, path) || contains(realOf(folder), realOf(path));
}

export function contains(folder: string, path: string): boolean {
  return folder === '/' || path === folder || path.startsWith(`${folder}/`);
}
