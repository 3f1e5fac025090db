/** Profiles in the files of the AWS CLI, as its configuration guide describes them. */
import { readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { attempt, codeOf } from '../../base/errors.ts';
import type { Variables } from '../../base/variables.ts';
import { CloudError } from '../../ports/cloud.ts';
import { unreadable } from '../../schema/secret-reference.ts';

export type Profile = Readonly<Record<string, string>>;

/** Settings of a profile in both files, those of the credentials file first; null: neither has it. @throws CloudError E_CLOUD_CREDENTIAL */
export async function profileOf(name: string, variables: Variables): Promise<Profile | null> {
  const home = join(variables.HOME ?? attempt(homedir) ?? '/', '.aws');
  const shared = sectionsOf(await textOf(variables.AWS_SHARED_CREDENTIALS_FILE ?? join(home, 'credentials')));
  const config = sectionsOf(await textOf(variables.AWS_CONFIG_FILE ?? join(home, 'config')));
  const inConfig = config.get(`profile ${name}`) ?? (name === 'default' ? config.get(name) : undefined);
  const inShared = shared.get(name);
  return inShared === undefined && inConfig === undefined ? null : { ...inConfig, ...inShared };
}

async function textOf(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return '';
    throw new CloudError('E_CLOUD_CREDENTIAL', `Cannot sign in to AWS: ${path} ${unreadable(error)}.`, { retry: true });
  }
}

/** Sections of an INI file. An indented line belongs to the setting above it, which onejob needs none of. */
function sectionsOf(text: string): ReadonlyMap<string, Record<string, string>> {
  const sections = new Map<string, Record<string, string>>();
  let current: Record<string, string> | null = null;
  for (const line of text.split(/\r?\n/)) {
    if (/^\s*([#;]|$)/.test(line)) continue;
    const head = /^\[\s*(.+?)\s*\]/.exec(line)?.[1]?.replace(/\s+/g, ' ');
    if (head !== undefined) {
      current = sections.get(head) ?? {};
      sections.set(head, current);
      continue;
    }
    const pair = /^([^\s=]+)\s*=\s*(.*?)\s*$/.exec(line);
    if (pair?.[1] !== undefined && current !== null) current[pair[1].toLowerCase()] = pair[2] ?? '';
  }
  return sections;
}

/** Words of a `credential_process`: quotes keep spaces, and no shell reads it. */
export function wordsOf(command: string): string[] {
  return [...command.matchAll(/(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s"']+))+/g)].map(([whole]) =>
    whole.replace(/"((?:[^"\\]|\\.)*)"|'([^']*)'/g, (_, double?: string, single?: string) =>
      double === undefined ? (single ?? '') : double.replace(/\\(.)/g, '$1'),
    ),
  );
}
