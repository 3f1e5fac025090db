/**
 * Where paths of this host lead, as far as only this host decides. A look at a file server that is away takes for ever, and this whole
 * process would stand still for as long: so it stops in front of one. `file-server.ts` asks what lies behind.
 */
import { existsSync, lstatSync, readlinkSync, type Stats } from 'node:fs';
import { dirname, join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { ownMounts, serversIn } from './mountinfo.ts';
import { isPrivateGroup } from './private-group.ts';

export interface Way {
  /** Without links, also if its last parts do not exist. Of what lies on a server, as it is written. */
  readonly end: string;
  /** Where the file server is mounted that decides about the rest; null: only this host does. */
  readonly server: string | null;
  /** Whether it exists, and only root and this user decide where it leads. */
  readonly isOurs: boolean;
}

/** As many links as Linux follows. */
const mostLinks = 40;

/** Follows an absolute path up to the first file server. */
export function follow(path: string, mountinfo = ownMounts()): Way {
  const serverOf = serversIn(mountinfo);
  const rest = path.split('/').filter((part) => part !== '' && part !== '.');
  let isOurs = true;
  let at = '/';
  let links = 0;
  let server = serverOf(at);
  while (server === null) {
    const part = rest.shift();
    if (part === undefined) break;
    const next = part === '..' ? dirname(at) : join(at, part);
    server = serverOf(next);
    const entry = server === null ? attempt(() => lstatSync(next)) : null;
    isOurs &&= isDecidedIn(at, entry);
    const target = entry?.isSymbolicLink() ? attempt(() => readlinkSync(next)) : null;
    if (target !== null) links += 1;
    if (target === null || links > mostLinks) at = next;
    else {
      if (target.startsWith('/')) at = '/';
      rest.unshift(...target.split('/').filter((each) => each !== '' && each !== '.'));
    }
  }
  return { end: join(at, ...rest), server, isOurs: isOurs && server === null && links <= mostLinks };
}

/** Whether only root and this user decide what a folder has under the name of this entry. */
function isDecidedIn(folder: string, entry: Stats | null): boolean {
  const isOurs = ({ uid }: Stats): boolean => uid === 0 || uid === process.getuid?.();
  const above = attempt(() => lstatSync(folder));
  if (above === null || entry === null || !isOurs(above)) return false;
  const mayOthers = (above.mode & 0o002) !== 0 || ((above.mode & 0o020) !== 0 && !isPrivateGroup(above.gid));
  // In a sticky folder others leave alone what is not theirs.
  return !mayOthers || ((above.mode & 0o1000) !== 0 && isOurs(entry));
}

/** A path with links resolved, as far as this host decides about them. */
export function realOf(path: string): string {
  return follow(path).end;
}

/** Whether this process finds a path; null: it lies on a file server, which may be away. */
export function isFound(path: string): boolean | null {
  const { end, server } = follow(path);
  return server === null ? existsSync(end) : null;
}
