/** A folder of agents' Compose files as agents, with all that could not be understood. Reads files; writes none, and opens no token. */
import { posix } from 'node:path';
import { type Agent, byNumber, type Remark } from './agent.ts';
import { type ComposeFile, readCompose } from './compose-file.ts';
import { overlay } from './extend.ts';
import { interpolate, readDotEnv, soundsSecret } from './interpolate.ts';
import { isMap, textOf } from './plain.ts';
import { readService } from './service.ts';
import { type Folder, foldersOf, readText } from './sources.ts';

export interface Fleet {
  readonly agents: readonly Agent[];
  /** How many Compose files there were, whatever was in them. */
  readonly files: number;
  readonly remarks: readonly Remark[];
}

/** Never throws, whatever is in the folder. `root`: absolute. */
export function readFleet(root: string): Fleet {
  const folders = foldersOf(root);
  const remarks: Remark[] = [];
  const remark = (one: Remark) => remarks.push(one);
  const read = (path: string) => readText(root, path);
  const agents: Agent[] = [];
  const contexts = new Set<string>();
  for (const folder of folders) {
    for (const file of folder.unread)
      remark({ file, line: null, level: 'warning', message: 'was not read: Compose takes another file of its folder' });
    if (folder.compose === null) continue;
    const compose = open(folder.compose, read, remark);
    if (compose === null) continue;
    const override = folder.override === null ? null : open(folder.override, read, remark);
    const known = readDotEnv(read(posix.join(folder.path, '.env')) ?? '');
    const names = [...new Set([...Object.keys(compose.services), ...Object.keys(override?.services ?? {})])];
    const isPart = (name: string) =>
      names.some(
        (other) => extendsOf(compose.services[other])?.service === name && extendsOf(compose.services[other])?.file == null,
      );
    const whole = names.filter((name) => !isPart(name) || isAgentLike(compose.services[name]));
    const wanted = whole.length > 0 ? whole : names;
    if (compose.value.include !== undefined) {
      const message = '"include" is not followed: give the folders of those files';
      remark({ file: compose.file, line: compose.line(['include']), level: 'warning', message });
    }
    if (names.length === 0)
      remark({ file: compose.file, line: compose.line(['services']), level: 'warning', message: 'has no service' });
    for (const key of wanted) {
      const own = serviceOf(compose, key, read, remark, 0);
      const upper = override?.services[key];
      const merged = isMap(upper) ? overlay(own ?? {}, upper) : own;
      if (merged === null) continue;
      const { value, missing } = interpolate(merged, known);
      for (const { variable, path } of missing) {
        if (soundsSecret(variable)) continue;
        const line = compose.line(['services', key, ...path]);
        const message = `$${variable} has no value: it comes from the shell that starts Compose`;
        remark({ file: compose.file, line, level: 'warning', message });
      }
      const service = isMap(value) ? value : {};
      const found = readService({ compose, key, service, isOnly: names.length === 1, root, read, remark });
      if (found === null) continue;
      agents.push(found.agent);
      if (found.context !== null) contexts.add(found.context);
    }
  }
  remarks.push(...withoutCompose(folders, agents, contexts));
  return {
    agents: agents.toSorted((one, other) => byNumber(one.file, other.file) || one.line - other.line),
    files: folders.filter(({ compose }) => compose !== null).length,
    remarks: inOrder(remarks),
  };
}

function open(file: string, read: (path: string) => string | null, remark: (remark: Remark) => void): ComposeFile | null {
  const text = read(file);
  const found = text === null ? null : readCompose(file, text);
  if (found?.ok === true) return found.file;
  const { line, message } = found?.problem ?? { line: null, message: 'cannot be read' };
  remark({ file, line, level: 'warning', message: `${message}: nothing of it was carried over` });
  return null;
}

interface Extends {
  readonly service: string;
  readonly file: string | null;
}

function extendsOf(service: unknown): Extends | null {
  const written = isMap(service) ? service.extends : undefined;
  if (typeof written === 'string') return { service: written, file: null };
  if (!isMap(written)) return null;
  const name = textOf(written.service);
  return name === null ? null : { service: name, file: textOf(written.file) };
}

/** A service that others extend may be one of them, or only what they have in common. */
function isAgentLike(service: unknown): boolean {
  const { command, environment } = isMap(service) ? service : {};
  return /--name|AGENT_NAME/.test(JSON.stringify([command, environment]) ?? '');
}

/** With what it extends under it; null when it is none. Ten deep is deep enough for a file that extends itself. */
function serviceOf(
  compose: ComposeFile,
  key: string,
  read: (path: string) => string | null,
  remark: (remark: Remark) => void,
  depth: number,
): Record<string, unknown> | null {
  const say = (path: readonly string[], message: string) =>
    remark({ file: compose.file, line: compose.line(['services', key, ...path]), level: 'warning', message });
  const service = compose.services[key];
  if (!isMap(service)) {
    say([], `the service "${key}" is no map: it was not carried over`);
    return null;
  }
  const base = extendsOf(service);
  const { extends: _, ...own } = service;
  if (base === null) return own;
  const file = base.file === null ? compose.file : posix.normalize(posix.join(posix.dirname(compose.file), base.file));
  const other = file === compose.file ? compose : depth < 10 ? open(file, read, remark) : null;
  const lower =
    other === null || depth >= 10
      ? null
      : other.services[base.service] === undefined
        ? null
        : serviceOf(other, base.service, read, remark, depth + 1);
  if (lower === null) {
    say(
      ['extends'],
      `"${base.service}"${base.file === null ? '' : ` of ${base.file}`}, which it extends, was not found: what stands there is missing`,
    );
    return own;
  }
  return overlay(file === compose.file ? lower : moved(lower, posix.dirname(file), posix.dirname(compose.file)), own);
}

/** Relative paths of another file's service are meant from that file. */
function moved(service: Record<string, unknown>, from: string, to: string): Record<string, unknown> {
  const shift = (path: unknown): unknown =>
    typeof path === 'string' && /^\.\.?(\/|$)/.test(path) ? `./${posix.join(posix.relative(to, from), path)}` : path;
  const bare = (path: unknown): unknown =>
    typeof path === 'string' && !path.startsWith('/') ? posix.join(posix.relative(to, from), path) : path;
  const { build, volumes, env_file: envFile } = service;
  const result = { ...service };
  if (typeof build === 'string') result.build = bare(build);
  else if (isMap(build)) result.build = { ...build, context: bare(build.context ?? '.') };
  if (Array.isArray(volumes)) {
    result.volumes = volumes.map((volume: unknown) => {
      if (isMap(volume)) return { ...volume, source: shift(volume.source) };
      if (typeof volume !== 'string' || !volume.startsWith('.')) return volume;
      const [host = '', ...rest] = volume.split(':');
      return [shift(host), ...rest].join(':');
    });
  }
  if (envFile !== undefined) result.env_file = Array.isArray(envFile) ? envFile.map(bare) : bare(envFile);
  return result;
}

/** Folders beside those of agents that have no Compose file: what runs there nobody can see here. */
function withoutCompose(folders: readonly Folder[], agents: readonly Agent[], contexts: ReadonlySet<string>): Remark[] {
  const parents = new Set(
    agents.map(({ folder }) => posix.dirname(folder)).filter((parent, _, all) => parent !== '.' || all.length > 0),
  );
  const own = new Set(agents.map(({ folder }) => folder));
  const inside = (path: string) => folders.filter((folder) => folder.path === path || folder.path.startsWith(`${path}/`));
  return folders.flatMap(({ path, names }): Remark[] => {
    if (path === '.' || own.has(path) || !parents.has(posix.dirname(path)) || contexts.has(path)) return [];
    if ([...contexts].some((context) => context.startsWith(`${path}/`))) return [];
    if (inside(path).some(({ compose }) => compose !== null)) return [];
    const shown = names.slice(0, 4).join(', ');
    const what = names.length === 0 ? 'is empty' : `has no Compose file (but ${shown}${names.length > 4 ? ', …' : ''})`;
    return [{ file: path, line: null, level: 'warning', message: `${what}: if an agent runs from there, it was not carried over` }];
  });
}

export function inOrder(remarks: readonly Remark[]): Remark[] {
  const unique = new Map(remarks.map((one) => [JSON.stringify(one), one]));
  return [...unique.values()].sort((one, other) => byNumber(one.file, other.file) || (one.line ?? 0) - (other.line ?? 0));
}
