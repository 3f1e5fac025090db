/** How full a file system is: by its bytes or by its inodes, whichever it has less of. Many small files use up the latter first. */
import { type StatsFs, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import { attempt } from '../base/errors.ts';

export interface DiskRoom {
  readonly path: string;
  /** Share, 0 to 1. */
  readonly free: number;
  /** What `free` is a share of, if not of its space. */
  readonly of?: 'inodes';
}

type Seen = Pick<StatsFs, 'bavail' | 'blocks' | 'ffree' | 'files'>;

/** null if the file system does not say. */
export function roomOf(path: string, { bavail, blocks, ffree, files }: Seen): DiskRoom | null {
  if (blocks <= 0) return null;
  const space = bavail / blocks;
  // Some have no limit and say 0, such as btrfs.
  const inodes = files > 0 ? ffree / files : 1;
  return inodes < space ? { path, free: inodes, of: 'inodes' } : { path, free: space };
}

/** As "is 80 % free" or "has 3 % of its inodes free". */
export function roomText({ free, of }: DiskRoom): string {
  const percent = `${Math.round(free * 100)} %`;
  return of === 'inodes' ? `has ${percent} of its inodes free` : `is ${percent} free`;
}

/** Whether no file can be made below `path` for lack of inodes, although there may be space. */
export function lacksInodes(path: string, look: (path: string) => Seen = (at) => statfsSync(at)): boolean {
  const seen = attempt(() => look(path)) ?? attempt(() => look(dirname(path)));
  return seen !== null && seen.files > 0 && seen.ffree === 0;
}
