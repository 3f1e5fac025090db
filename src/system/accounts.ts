/**
 * Users and groups of this host as its databases have them (`getent`: files, LDAP and so on), because Node has no API for it. A group
 * that is not there has no members.
 */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { codeOf } from '../base/errors.ts';

export interface Accounts {
  /** By name. */
  readonly groups: ReadonlyMap<string, { readonly gid: number; readonly members: readonly string[] }>;
  readonly users: readonly { readonly name: string; readonly uid: number; readonly gid: number }[];
}

/** ms for one question, and bytes of an answer. */
const [patience, mostAnswer] = [20_000, 16 << 20];

/** These groups with all users that may be in them. @throws Error if a database does not answer */
export async function readAccounts(names: readonly string[]): Promise<Accounts> {
  const groups = parseGroups(await entries('group', names)).filter(([name]) => names.includes(name));
  const members = new Set(groups.flatMap(([, { members }]) => members));
  // Some databases list no users, and only answer about one by name.
  const users = parseUsers(
    [await entries('passwd', []), members.size === 0 ? '' : await entries('passwd', [...members])].join('\n'),
  );
  return { groups: new Map(groups), users };
}

export function parseGroups(text: string) {
  return text.split('\n').flatMap((line) => {
    const [name = '', , id = '', members = ''] = line.split(':');
    const isGroup = name !== '' && /^\d+$/.test(id);
    return isGroup ? [[name, { gid: Number(id), members: members.split(',').filter((each) => each !== '') }] as const] : [];
  });
}

export function parseUsers(text: string): Accounts['users'] {
  return text.split('\n').flatMap((line) => {
    const [name = '', , uid = '', gid = ''] = line.split(':');
    return /^[^\p{Cc}]{1,64}$/u.test(name) && /^\d+$/.test(uid) && /^\d+$/.test(gid)
      ? [{ name, uid: Number(uid), gid: Number(gid) }]
      : [];
  });
}

function entries(database: 'group' | 'passwd', keys: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const args = [database, '--', ...keys];
    execFile('getent', args, { timeout: patience, maxBuffer: mostAnswer, encoding: 'utf8' }, (error, stdout) => {
      // 2: it has not all of them.
      if (error === null || error.code === 2) resolve(stdout);
      else if (codeOf(error) === 'ENOENT') readFile(`/etc/${database}`, 'utf8').then(resolve, reject);
      else reject(error);
    });
  });
}
