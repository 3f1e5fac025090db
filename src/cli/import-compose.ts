/** `onejob import compose`: reads a folder of Compose files, and writes or prints one config per host. Needs no daemon. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { OnejobError } from '../errors.ts';
import type { Remark } from '../import/agent.ts';
import type { HostRule } from '../import/hosts.ts';
import { type Imported, importCompose } from '../import/import.ts';
import { isFolder, isThere } from '../import/sources.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { printable } from './text.ts';

export interface ImportArguments {
  readonly dir: string;
  readonly rules: readonly HostRule[];
  /** null: configs are printed. */
  readonly out: string | null;
  readonly force: boolean;
}

/** @throws OnejobError E_IMPORT when there is nothing to read, or a file must not be written */
export async function importComposeFolder(session: Session, { dir, rules, out, force }: ImportArguments): Promise<number> {
  const { context, output } = session;
  const root = resolve(context.cwd, dir);
  if (!isFolder(root)) {
    throw new OnejobError('E_IMPORT', `There is no folder ${root} to read Compose files from.`, {
      hint: 'Type onejob import compose DIR with the folder that has one folder for each agent.',
    });
  }
  const found = await importCompose(root, rules, context.environment);
  const target = out === null ? null : resolve(context.cwd, out);
  const paths = found.hosts.map(({ name }) => (target === null ? null : join(target, `${name}.yml`)));
  if (found.hosts.length > 0) write(found, paths, force);

  if (output.json) {
    const hosts = found.hosts.map((host, at) => ({ ...host, written: paths[at] ?? null }));
    await output.value({ files: found.files, hosts, remarks: found.remarks });
  } else {
    await output.write(
      'stderr',
      Buffer.from(
        remarkLines(found.remarks)
          .map((line) => `${printable(line)}\n`)
          .join(''),
      ),
    );
    for (const line of groupLines(found)) output.say(line);
    if (target === null) await output.print(configsOf(found));
    else await output.print(...paths.flatMap((path) => path ?? []));
    const next = target === null ? null : (paths[0] ?? null);
    if (next !== null)
      output.say(`look at them, then on each host: "onejob config check FILE", "onejob doctor"; see docs/moving/compose.md`);
  }
  if (found.hosts.length > 0) return exitCodes.ok;
  const count =
    found.files === 0
      ? 'there is no Compose file'
      : `there ${found.files === 1 ? 'is one Compose file' : `are ${found.files} Compose files`} and no agent`;
  throw new OnejobError('E_IMPORT', `Nothing could be imported from ${root}: ${count} in it that could be read.`, {
    hint: 'It reads docker-compose.yml, docker-compose.yaml, compose.yml and compose.yaml, in folders up to six deep.',
  });
}

/** All or none: a file that is there stops them all. */
function write(found: Imported, paths: readonly (string | null)[], force: boolean): void {
  const there = paths.filter((path) => path !== null && isThere(path));
  if (there.length > 0 && !force) {
    throw new OnejobError('E_IMPORT', `There ${there.length === 1 ? 'is a file' : 'are files'} already: ${there.join(', ')}.`, {
      hint: 'Write to another folder with --out DIR, or overwrite with --force.',
    });
  }
  for (const [at, path] of paths.entries()) {
    if (path === null) continue;
    try {
      mkdirSync(join(path, '..'), { recursive: true });
      writeFileSync(path, found.hosts[at]?.config ?? '', { flag: force ? 'w' : 'wx' });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new OnejobError('E_IMPORT', `Cannot write ${path}: ${why}.`, {
        hint: 'Write to a folder of your own with --out DIR.',
        cause: error,
      });
    }
  }
}

/** Several configs one after the other are several YAML documents; one alone can go into a file as it is. */
function configsOf({ hosts }: Imported): string {
  if (hosts.length === 1) return (hosts[0]?.config ?? '').trimEnd();
  return hosts
    .map(({ name, config }) => `--- # ${name}.yml\n${config}`)
    .join('')
    .trimEnd();
}

function groupLines({ hosts }: Imported): string[] {
  return hosts.map(({ name, agents, because }) => {
    const names = agents.map((agent) => agent.name);
    const shown = names.length > 4 ? `${names.slice(0, 2).join(', ')} … ${names.at(-1)}` : names.join(', ');
    return `host ${name}: ${agents.length} ${agents.length === 1 ? 'agent' : 'agents'} (${because}): ${shown}`;
  });
}

/** The same said of many lines is said once, with all of them. Warnings come last, where they are seen. */
function remarkLines(remarks: readonly Remark[]): string[] {
  const grouped = new Map<string, Remark[]>();
  for (const remark of remarks) {
    const key = `${remark.level}\0${remark.message}`;
    grouped.set(key, [...(grouped.get(key) ?? []), remark]);
  }
  const place = ({ file, line }: Remark) => (line === null ? file : `${file}:${line}`);
  const lines = (level: Remark['level']) =>
    [...grouped.values()].flatMap((alike) => {
      const [first, ...rest] = alike;
      if (first === undefined || first.level !== level) return [];
      if (level === 'note')
        return [`${place(first)}: note: ${first.message}${rest.length === 0 ? '' : ` (and ${rest.length} more)`}`];
      return [`${place(first)}: ${first.message}`, ...(rest.length === 0 ? [] : [`    and so ${rest.map(place).join(', ')}`])];
    });
  return [...lines('note'), ...lines('warning')];
}
