/**
 * Whether a sandbox has the folders of this host that were checked. A path is checked first and mounted by another program, and in
 * between somebody may put a link in its place: so the mounts of its first process are compared before any script is released.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, OnejobError } from '../base/errors.ts';
import { contains } from '../config/host-places.ts';
import type { SandboxSpec } from '../ports/runtime.ts';
import { realOf } from '../system/real-path.ts';

/** A folder of the host in a sandbox. `host`: as it was checked, without links. */
export interface Placed {
  readonly host: string;
  readonly container: string;
}

/** What each mount of a sandbox must show. */
export function placedOf({ recipe, places }: Pick<SandboxSpec, 'recipe' | 'places'>): Placed[] {
  return recipe.mounts.map(({ host, container }, at) => ({ host: places?.[at] ?? realOf(host), container }));
}

/** A line of mountinfo: the file system, the folder in it, and where that is. */
export interface MountLine {
  readonly device: string;
  readonly root: string;
  readonly point: string;
}

export function parseMounts(text: string): MountLine[] {
  const plain = (word: string) =>
    word.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
  return text.split('\n').flatMap((line) => {
    const [, , device, root, point] = line.split(' ');
    return device === undefined || root === undefined || point === undefined
      ? []
      : [{ device, root: plain(root), point: plain(point) }];
  });
}

/** What is mounted instead of one of them, as a clause; null if all are right. `own`: the mounts of this process. */
export function foreignMount(placed: readonly Placed[], own: readonly MountLine[], sandbox: readonly MountLine[]): string | null {
  for (const { host, container } of placed) {
    const above = own.filter(({ point }) => contains(point, host));
    const holder = above.filter(({ point }) => above.every((other) => other.point.length <= point.length)).at(-1);
    if (holder === undefined) continue;
    const root = join(holder.root, host.slice(holder.point === '/' ? 0 : holder.point.length));
    const isIt = (line: MountLine) => line.device === holder.device && line.root === root;
    const there = sandbox.findLast(({ point }) => point === container);
    // A link of its image may lead elsewhere in the sandbox.
    if (there === undefined ? sandbox.some(isIt) : isIt(there)) continue;
    return `${container} is not ${host}, which was checked, but ${there?.root ?? 'something else'}`;
  }
  return null;
}

/**
 * Compares the mounts of process `pid`. `isIts`: whether these are the sandbox's at all. What cannot be read here passes, as where
 * the Engine's processes are not of this host. @throws OnejobError E_MOUNT_CHANGED
 */
export async function verifyMounts(
  name: string,
  pid: number,
  placed: readonly Placed[],
  isIts: (mounts: string) => boolean,
): Promise<void> {
  if (placed.length === 0) return;
  const [own, text] = await Promise.all([read('/proc/self/mountinfo'), read(`/proc/${pid}/mountinfo`)]);
  if (own === null || text === null || !isIts(text)) return;
  const why = foreignMount(placed, parseMounts(own), parseMounts(text));
  if (why === null) return;
  throw mountChanged(`Cannot start agent ${name}: ${why}. Nothing ran.`, 'Somebody changed a path of its volumes meanwhile.');
}

export function mountChanged(message: string, hint: string): OnejobError {
  return new OnejobError('E_MOUNT_CHANGED', message, { hint });
}

/** null for a process that is gone, or another user's. */
async function read(path: string): Promise<string | null> {
  return readFile(path, 'utf8').catch((error: unknown) => {
    if (['ENOENT', 'ESRCH', 'EACCES', 'EPERM', 'EINVAL'].includes(codeOf(error))) return null;
    throw error;
  });
}
