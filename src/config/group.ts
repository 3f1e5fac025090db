/** The group whose members share a daemon of root. */
import { readFileSync } from 'node:fs';

/** Whose members may use a daemon of root. */
export const groupName = 'onejob';

export interface Group {
  readonly gid: number;
  readonly members: readonly string[];
}

/** The group `onejob`, from group(5): Node knows no group names. Null where there is none. Groups from elsewhere are not seen. */
export function readGroup(text: string = groupFile()): Group | null {
  const line = text.split('\n').find((each) => each.startsWith(`${groupName}:`));
  if (line === undefined) return null;
  const [, , id, members = ''] = line.split(':');
  const gid = Number(id);
  return Number.isInteger(gid) ? { gid, members: members.split(',').filter((name) => name !== '') } : null;
}

function groupFile(): string {
  try {
    return readFileSync('/etc/group', 'utf8');
  } catch {
    return '';
  }
}
