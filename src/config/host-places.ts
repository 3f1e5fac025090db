/**
 * Places of a host that no stranger may be shown, be it read-only: a socket is used by who can see it, a home holds keys. Looks at
 * the disk: links are followed, and a folder is judged by what lies in it now.
 */
import { lstatSync, opendirSync, realpathSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { toFailure } from '../errors.ts';

/** What runs now, and what stores of engines hold: images, other jobs' files, credentials. */
const folders = [
  '/run',
  '/var/run',
  '/proc',
  ...['docker', 'containerd', 'containers', 'kubelet', 'libvirt'].map((name) => `/var/lib/${name}`),
];
/** Names under which programs keep the keys of whoever uses them. */
const keyNames = /(?:^|\/)\.(?:ssh|aws|azure|docker|gnupg|kube|netrc|git-credentials|password-store)(?:\/|$)/;
/** A home as a whole; what somebody keeps in a folder of it may well be data. */
const homes = /^\/(?:root|home(?:\/[^/]+)?)$/;
/** How much of a folder is looked at, itself and the folders in it: one of data may hold millions, on a slow disk. */
const most = { names: 2_000, folders: 100 } as const;

/** Why a stranger may not be shown it, as the rest of a sentence; null when they may. */
export function whyNoStranger(host: string): string | null {
  const socket = engineSocketIn(host);
  if (socket !== null) return `it gives access to ${socket}`;
  for (const path of new Set([host, realOf(host)])) {
    const folder = folders.find((each) => path === each || path.startsWith(`${each}/`) || each.startsWith(`${path}/`));
    if (folder !== undefined) return `it ${path.startsWith(folder) ? 'lies in' : 'holds'} ${folder}`;
    if (homes.test(path)) return `it is a home directory`;
    if (keyNames.test(path)) return 'programs keep keys there';
  }
  return whySocket(realOf(host));
}

function whySocket(path: string): string | null {
  const say = (found: string) => `${found} is a socket of this host`;
  try {
    const kind = lstatSync(path, { throwIfNoEntry: false });
    if (kind?.isSocket()) return say(path);
    if (!kind?.isDirectory()) return null;
    const top = namesIn(path, most.names);
    if (top.socket !== null) return say(top.socket);
    for (const folder of top.folders.slice(0, most.folders)) {
      const { socket } = tryNamesIn(folder);
      if (socket !== null) return say(socket);
    }
    return null;
  } catch (error) {
    // Who is root in a sandbox could look where this process cannot.
    return `it cannot be checked (${toFailure(error).message})`;
  }
}

interface Names {
  readonly socket: string | null;
  readonly folders: readonly string[];
}

function namesIn(path: string, limit: number): Names {
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

/** One that may not be read, or is gone by now, says nothing about the folder that it is in. */
function tryNamesIn(path: string): Names {
  try {
    return namesIn(path, most.names / 10);
  } catch {
    return { socket: null, folders: [] };
  }
}

/** Sockets whose owner may do everything on this host. A pool may be given one by whoever writes the config, a job never. */
export const engineSockets = [
  '/run/docker.sock',
  '/var/run/docker.sock',
  '/run/containerd/containerd.sock',
  '/run/podman/podman.sock',
  '/run/crio/crio.sock',
];

/** Which of these sockets a folder or file of the host is, holds or leads to; null for none. */
export function engineSocketIn(host: string): string | null {
  return engineSockets.find((socket) => shows(host, socket)) ?? null;
}

/** Whether who is given `folder` finds `path` in it, as both are written or where both lead. */
export function shows(folder: string, path: string): boolean {
  return contains(folder, path) || contains(realOf(folder), realOf(path));
}

/** Where a path leads; of what is not there yet, where it would be. */
export function realOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const above = dirname(path);
    return above === path ? path : join(realOf(above), basename(path));
  }
}

export function contains(folder: string, path: string): boolean {
  return folder === '/' || path === folder || path.startsWith(`${folder}/`);
}
