/**
 * The tool's entry, which src/cli/compose-import.ts loads: reads a folder of Compose files, and writes or prints one config per host.
 * Needs no daemon. Of onejob it may import types and pure functions, which the build copies; the rest of it is an argument.
 */

import { existsSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { messageOf } from '../../src/base/errors.ts';
import type { ComposeImport, ComposeOnejob } from '../../src/cli/compose-import.ts';
import { printable } from '../../src/cli/text.ts';
import type { Remark } from './agent.ts';
import { importCompose } from './import.ts';

export const importComposeFolder: ComposeImport['importComposeFolder'] = async (session, dir, flags, onejob) => {
  const { host: rules = [], out, force = false } = flags;
  const { context, output } = session;
  const root = resolve(context.cwd, dir);
  if (!existsSync(root) || !statSync(root).isDirectory()) {
    throw onejob.failure(`There is no folder ${root} to read Compose files from.`, {
      hint: 'Type "onejob import compose DIR", where DIR contains one folder for each agent.',
    });
  }
  const { files, unread, hosts: found, remarks } = await importCompose(root, rules, onejob.errorsIn);
  const target = out === undefined ? null : resolve(context.cwd, out);
  const hosts = found.map((host) => ({ ...host, written: target === null ? null : join(target, `${host.name}.yml`) }));
  const written = hosts.flatMap(({ written: path, config }) => (path === null ? [] : [{ path, config }]));
  write(written, force, onejob);

  if (output.json) await output.value({ files, unread, hosts, remarks });
  else {
    const lines = remarkLines(remarks).map((line) => `${printable(line)}\n`);
    await output.write('stderr', Buffer.from(lines.join('')));
    for (const { name, agents, because } of hosts) {
      const names = agents.map((agent) => agent.name);
      const shown = names.length > 4 ? `${names.slice(0, 2).join(', ')} … ${names.at(-1)}` : names.join(', ');
      output.say(`host ${name}: ${agents.length} ${agents.length === 1 ? 'agent' : 'agents'} (${because}): ${shown}`);
    }
    // Several configs are printed as several YAML documents.
    const texts = hosts.map(({ name, config }) => (hosts.length === 1 ? config : `--- # ${name}.yml\n${config}`));
    await output.print(...(target === null ? [texts.join('').trimEnd()] : written.map(({ path }) => path)));
    if (written.length > 0)
      output.say(`review them, then type on each host: "onejob config check FILE", "onejob doctor"; see docs/moving/compose.md`);
  }
  if (hosts.length > 0) {
    if (unread.length > 0) output.say(`could not read ${unread.map(printable).join(', ')}: agents may be missing`);
    return unread.length === 0;
  }
  const some = `there ${files === 1 ? 'is one Compose file' : `are ${files} Compose files`} and no agent`;
  const count = files === 0 ? 'there is no Compose file' : some;
  throw onejob.failure(`Cannot import anything from ${root}: ${count} in it that could be read.`, {
    hint: 'It reads docker-compose.yml, docker-compose.yaml, compose.yml and compose.yaml, in folders up to six deep.',
  });
};

/** Writes all files or, if one exists, none. */
function write(files: readonly { readonly path: string; readonly config: string }[], force: boolean, onejob: ComposeOnejob): void {
  const there = files.map(({ path }) => path).filter((path) => existsSync(path));
  if (there.length > 0 && !force) {
    const what = there.length === 1 ? 'the existing file' : 'existing files';
    throw onejob.failure(`Refusing to overwrite ${what}: ${there.join(', ')}.`, {
      hint: 'Write to another folder with --out DIR, or overwrite with --force.',
    });
  }
  for (const { path, config } of files) {
    try {
      mkdirSync(join(path, '..'), { recursive: true });
      writeFileSync(path, config, { flag: force ? 'w' : 'wx' });
    } catch (error) {
      throw onejob.failure(`Cannot write ${path}: ${messageOf(error)}.`, {
        hint: 'Choose a folder that you can write to with --out DIR.',
        cause: error,
      });
    }
  }
}

/** A message about several lines is shown once, with all of them. Warnings come last, where they are seen. */
function remarkLines(remarks: readonly Remark[]): string[] {
  const lines = (level: Remark['level']) => {
    const alike = Map.groupBy(remarks, (remark) => (remark.level === level ? remark.message : null));
    return [...alike].flatMap(([message, of]) => {
      if (message === null) return [];
      const [first, ...rest] = of.map(({ file, line }) => (line === null ? file : `${file}:${line}`));
      if (level === 'note') return [`${first}: note: ${message}${rest.length === 0 ? '' : ` (and ${rest.length} more)`}`];
      return [`${first}: ${message}`, ...(rest.length === 0 ? [] : [`    and so ${rest.join(', ')}`])];
    });
  };
  return [...lines('note'), ...lines('warning')];
}
