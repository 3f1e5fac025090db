/** The hosts of a file, by name, for `--host NAME` and `onejob status --all`. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import type { Environment } from '../config/environment.ts';
import { word } from '../schema/kinds.ts';
import { formatPath, suggestAtEnd } from '../schema/problem.ts';
import { parseSshUrl, type SshHost } from './ssh.ts';

/** null: this host's own daemon. */
export type HostPlace = SshHost | null;

export interface Hosts {
  readonly path: string;
  readonly hosts: ReadonlyMap<string, HostPlace>;
}

const file = z.strictObject({ hosts: z.record(z.string(), z.string()) });
const example = 'Write for example:\n  hosts: { gpuci: ssh://gpuci, lab: ssh://ci@lab.example:2222, here: local }';

/** The file of this user, else of the host. @throws OnejobError E_CONFIG if neither exists, or the file is invalid */
export async function readHosts({ configHome }: Pick<Environment, 'configHome'>): Promise<Hosts> {
  const paths = [join(configHome, 'onejob', 'hosts.yml'), '/etc/onejob/hosts.yml'];
  for (const path of paths) {
    const text = await readFile(path, 'utf8').catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') return null;
      throw invalid(path, messageOf(error));
    });
    if (text !== null) return { path, hosts: await parseHosts(path, text) };
  }
  throw new OnejobError('E_CONFIG', `There is no file with hosts: neither ${paths.join(' nor ')} exists.`, { hint: example });
}

async function parseHosts(path: string, text: string): Promise<Map<string, HostPlace>> {
  const { parseDocument } = await import('yaml');
  const document = parseDocument(text);
  const [error] = document.errors;
  if (error !== undefined) throw invalid(path, error.message.split('\n', 1)[0] ?? '');
  const found = file.safeParse(document.toJS());
  const [issue] = found.error?.issues ?? [];
  if (!found.success) throw invalid(path, `${formatPath((issue?.path ?? []).map(String)) || 'the file'}: ${issue?.message}`);
  const hosts = Object.entries(found.data.hosts).map(([name, url]) => {
    if (!word.test(name) || name === 'local')
      throw invalid(path, `hosts.${name}: a name is 1 to 32 letters, digits, "-" or "_", and not "local"`);
    try {
      return [name, placeOf(url)] as const;
    } catch (error) {
      throw invalid(path, `hosts.${name}: ${messageOf(error).replace(/\.$/, '')}`);
    }
  });
  return new Map(hosts);
}

function placeOf(url: string): HostPlace {
  return url === 'local' ? null : parseSshUrl(url);
}

function invalid(path: string, why: string): OnejobError {
  return new OnejobError('E_CONFIG', `Cannot use the hosts in ${path}: ${why}.`, { hint: example });
}

/** What `--host` and `ONEJOB_HOST` name: `ssh://…`, `local`, or a name of the file. @throws OnejobError E_USAGE, E_CONFIG */
export async function findHost(text: string, env: Pick<Environment, 'configHome'>): Promise<HostPlace> {
  if (text === 'local' || text.includes('://') || !word.test(text)) return placeOf(text);
  const { path, hosts } = await readHosts(env);
  const found = hosts.get(text);
  if (found !== undefined) return found;
  const hint = `${suggestAtEnd(text, [...hosts.keys()])} A host that is not in the file is written ssh://HOST.`;
  throw new OnejobError('E_USAGE', `${path} has no host ${JSON.stringify(text)}.`, { hint });
}
