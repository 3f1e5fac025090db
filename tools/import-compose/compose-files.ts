/**
 * Reads a folder of Compose files as agents, with remarks about what could not be read. Writes no files, and opens no token.
 * https://docs.docker.com/reference/compose-file/
 */
import { readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { join, posix, resolve } from 'node:path';
import { isAlias, isNode, isScalar, isSeq, isMap as isYamlMap, LineCounter, parseDocument, type Scalar, visit } from 'yaml';
import { attempt, codeOf, messageOf } from '../../src/base/errors.ts';
import type { Path } from '../../src/schema/problem.ts';
import {
  byNumber,
  insideContainer,
  isMap,
  looksSecret,
  pairsOf,
  type Remark,
  type Service,
  soundsSecret,
  textOf,
} from './agent.ts';
import { type Agent, readService } from './service.ts';

type ComposeFile = Readonly<NonNullable<ReturnType<typeof readCompose>>>;
type Written = Service['written'];
type Warn = (file: string, line: number | null, message: string) => void;
type Open = (file: string) => ComposeFile | null;

/** In the order in which Compose looks for them. */
const composeNames = ['compose.yaml', 'compose.yml', 'docker-compose.yaml', 'docker-compose.yml'];
const largest = 2 ** 20;
const deepest = 6;
const most = 20_000;

/** `files`: number of Compose files. `unread`: those from which nothing could be read, and such folders. Never throws, whatever is in the folder. `root`: absolute. */
export function readComposeFiles(root: string) {
  const remarks: Remark[] = [];
  const warn: Warn = (file, line, message) => remarks.push({ file, line, level: 'warning', message });
  const read = (path: string) => attempt(() => textIn(resolve(root, path)));
  const unread = new Set<string>();
  const open: Open = (file) => {
    const compose = readCompose(file, read(file), warn);
    if (compose === null) unread.add(file);
    return compose;
  };
  const agents: Agent[] = [];
  const folders = foldersOf(root, (folder, why) => {
    unread.add(folder);
    warn(folder, null, `cannot be read: nothing in it was carried over (${why})`);
  });
  const withFile = folders.filter(({ names }) => composeNames.some((name) => names.includes(name)));
  for (const { path: folder, names: present } of folders) {
    const [main, ...others] = composeNames.filter((name) => present.includes(name));
    const upper = present.find((name) => /^(docker-)?compose\.override\.ya?ml$/.test(name));
    others.push(...present.filter((name) => /^(docker-)?compose\..+\.ya?ml$/.test(name) && name !== upper));
    for (const name of others) warn(posix.join(folder, name), null, 'was not read: Compose uses another file of its folder');
    const compose = main === undefined ? null : open(posix.join(folder, main));
    if (compose === null) continue;
    const { file, value, heading, line } = compose;
    const override = upper === undefined ? null : open(posix.join(folder, upper));
    const known = readDotEnv(read(posix.join(folder, '.env')) ?? '');
    if (value.include !== undefined)
      warn(file, line(['include']), '"include" is not followed: import the folders of those files too');
    const keys = new Set([...Object.keys(compose.services), ...Object.keys(override?.services ?? {})]);
    if (keys.size === 0) warn(file, line(['services']), 'has no service');
    for (const key of agentsIn(compose, [...keys])) {
      const lower = serviceOf(compose, key, open, warn, 0);
      const over = override?.services[key];
      const merged = isMap(over) ? overlay(lower ?? {}, over) : lower;
      if (merged === null) continue;
      const lineOf = (path: Path) => line(['services', key, ...path]);
      const unset = new Map<string, string>();
      const written = interpolate(merged, known, [], (variable, path, text) => {
        const [top, at] = path;
        if (top === 'environment' && (soundsSecret(variable) || variable === 'PATH'))
          unset.set(typeof at === 'number' ? (text.split('=')[0] ?? '').trim() : String(at), variable);
        else if (!soundsSecret(variable))
          warn(file, lineOf(path), `$${variable} has no value: it comes from the shell that starts Compose`);
      });
      const said: Remark[] = [];
      const service: Service = {
        file,
        key,
        isOnly: keys.size === 1,
        written: isMap(written) ? written : {},
        unset,
        volumes: value.volumes,
        root,
        read,
        line: lineOf,
        remark: (remark) => said.push(remark),
        warn: (path, message) => said.push({ file, line: lineOf(path), level: 'warning', message }),
        note: (path, message) => said.push({ file, line: lineOf(path), level: 'note', message }),
      };
      const agent = readService(service, heading);
      if (agent === null)
        warn(file, lineOf([]), `the service "${key}" is not carried over: nothing shows that it starts a Buildkite agent`);
      else {
        agents.push(agent);
        remarks.push(...said);
      }
    }
  }
  // Folders next to those of agents, without a Compose file, may belong to agents too.
  const parents = new Set(agents.map(({ file }) => posix.dirname(posix.dirname(file))));
  const explained = [...withFile.map(({ path }) => path), ...agents.flatMap(({ context }) => context ?? [])];
  for (const { path, names } of folders) {
    if (path === '.' || !parents.has(posix.dirname(path))) continue;
    if (explained.some((one) => one === path || one.startsWith(`${path}/`))) continue;
    const shown = `${names.slice(0, 4).join(', ')}${names.length > 4 ? ', …' : ''}`;
    const what = names.length === 0 ? 'is empty' : `has no Compose file (but ${shown})`;
    warn(path, null, `${what}: an agent that runs from there was not carried over`);
  }
  return {
    agents: agents.toSorted((one, other) => byNumber(one.file, other.file) || one.line - other.line),
    files: withFile.length,
    unread: [...unread],
    remarks,
  };
}

/** Services that may be agents, without those that others only extend. */
function agentsIn({ services }: ComposeFile, keys: readonly string[]): readonly string[] {
  const bases = keys.map((key) => extendsOf(services[key])).flatMap((base) => (base?.file === null ? base.service : []));
  // A service that others extend may be one of them, or only what they have in common.
  const isAgentLike = (key: string) =>
    /--name|AGENT_NAME/.test(
      JSON.stringify([insideContainer(services[key], 'command'), insideContainer(services[key], 'environment')]),
    );
  const whole = keys.filter((key) => !bases.includes(key) || isAgentLike(key));
  return whole.length > 0 ? whole : keys;
}

/** All folders below the root, by relative path, with the names in them. Follows links, and visits each folder once. */
function foldersOf(root: string, tellUnread: (path: string, why: string) => void) {
  const found: { path: string; names: readonly string[] }[] = [];
  const seen = new Set<string>();
  const look = (path: string, depth: number): void => {
    const full = join(root, path);
    const real = attempt(() => realpathSync(full));
    if (real === null || seen.has(real) || found.length >= most) return;
    seen.add(real);
    let names: string[];
    try {
      names = readdirSync(full).sort();
    } catch (error) {
      tellUnread(path, codeOf(error));
      return;
    }
    found.push({ path, names });
    if (depth >= deepest) return;
    for (const name of names) {
      if (name.startsWith('.') || name === 'node_modules') continue;
      if (attempt(() => statSync(join(full, name)).isDirectory())) look(posix.join(path, name), depth + 1);
    }
  };
  look('.', 0);
  return found;
}

/** null for anything but a file of at most 1 MiB. @throws when it cannot be read */
function textIn(path: string): string | null {
  const found = statSync(path);
  return found.isFile() && found.size <= largest ? readFileSync(path, 'utf8') : null;
}

/** A Compose file as values with their lines; null, with a remark, if it is not one. Resolves anchors and merge keys. */
function readCompose(file: string, text: string | null, warn: Warn) {
  const no = (line: number | null, why: string): null => {
    warn(file, line, `${why}: nothing from it was carried over`);
    return null;
  };
  if (text === null) return no(null, 'cannot be read');
  const lines = new LineCounter();
  try {
    const document = parseDocument(text.replace(/^\ufeff/, ''), { merge: true, lineCounter: lines, logLevel: 'silent' });
    const { errors, contents, commentBefore } = document;
    if (errors[0] !== undefined) {
      const why = (errors[0].message.split('\n')[0] ?? '').replace(/ at line \d+, column \d+:?$/, '');
      return no(lines.linePos(errors[0].pos[0]).line, `is not YAML: ${why}`);
    }
    visit(document, { Scalar: (_, node) => void asCompose(node) });
    const value: unknown = document.toJS({ maxAliasCount: 1000 });
    if (value === null || value === undefined) return no(null, 'is empty');
    if (!isMap(value)) return no(1, 'is not a Compose file: it contains no map');
    if (attempt(() => JSON.stringify(value)) === null) return no(1, 'contains itself');
    const { services } = value;
    if (services === undefined) return no(1, 'is not a known Compose format: it has no "services"');
    if (!isMap(services)) return no(1, '"services" is not a map');
    const first = isYamlMap(contents) ? contents.items[0]?.key : null;
    /** Comment at the top, without its marks. */
    const heading = (commentBefore ?? (isScalar(first) ? first.commentBefore : null) ?? '')
      .replaceAll(/^[^\S\n]+|[^\S\n]+$/gm, '')
      .trim();
    const follow = (node: unknown) => (isAlias(node) ? node.resolve(document) : node);
    /** Line of a path, or of the last part of it that exists, from 1. */
    const line = (path: Path): number => {
      let [at, node]: Place = [contents?.range?.[0] ?? 0, contents];
      for (const step of path) [at, node] = stepInto(node, String(step), follow) ?? [at, null];
      return lines.linePos(at).line;
    };
    return { file, services, value, heading, line };
  } catch (error) {
    return no(null, `cannot be read as YAML: ${messageOf(error).split('\n')[0]}`);
  }
}

/** Compose reads whole numbers of 64 bits exactly, and those with a leading zero as octal. */
function asCompose(node: Scalar): void {
  const { value, source = '', type } = node;
  if (type !== 'PLAIN' || typeof value !== 'number' || !/^[-+]?\d+$/.test(source)) return;
  if (/^[-+]?0[0-7]+$/.test(source)) node.value = String(Number.parseInt(source, 8));
  else if (!Number.isSafeInteger(value)) node.value = source.replace('+', '');
}

/** The position of a node or its key in the text, and the node. */
type Place = readonly [number, unknown];

/** The value of a key, also through an alias or a merge key, or an item of a list. */
function stepInto(from: unknown, step: string, follow: (node: unknown) => unknown): Place | null {
  const node = follow(from);
  if (isSeq(node)) {
    const item = node.items[Number(step)];
    return isNode(item) ? [item.range?.[0] ?? 0, item] : null;
  }
  if (!isYamlMap(node)) return null;
  for (const { key, value } of node.items) if (isScalar(key) && String(key.value) === step) return [key.range?.[0] ?? 0, value];
  for (const { key, value } of node.items) {
    const inner = isScalar(key) && key.source === '<<' ? follow(value) : null;
    for (const one of isSeq(inner) ? inner.items : [inner]) {
      const found = stepInto(one, step, follow);
      if (found !== null) return found;
    }
  }
  return null;
}

function extendsOf(service: unknown): { readonly service: string; readonly file: string | null } | null {
  const written = insideContainer(service, 'extends');
  const name = isMap(written) ? textOf(written.service) : typeof written === 'string' ? written : null;
  return name === null ? null : { service: name, file: textOf(insideContainer(written, 'file')) };
}

/** A service merged over what it extends, up to ten levels deep; null if it is not a map. */
function serviceOf(compose: ComposeFile, key: string, open: Open, warn: Warn, depth: number): Written | null {
  const { file: here, services, line } = compose;
  const service = services[key];
  if (!isMap(service)) {
    warn(here, line(['services', key]), `the service "${key}" is not a map: it was not carried over`);
    return null;
  }
  const { extends: _, ...own } = service;
  const base = extendsOf(service);
  if (base === null) return own;
  const file = base.file === null ? here : posix.normalize(posix.join(posix.dirname(here), base.file));
  const other = file === here ? compose : depth < 10 ? open(file) : null;
  const isThere = depth < 10 && other?.services[base.service] !== undefined;
  const lower = isThere ? serviceOf(other, base.service, open, warn, depth + 1) : null;
  if (lower !== null)
    return overlay(file === here ? lower : moved(lower, posix.relative(posix.dirname(here), posix.dirname(file))), own);
  const what = `"${base.service}"${base.file === null ? '' : ` of ${base.file}`}`;
  warn(here, line(['services', key, 'extends']), `${what}, which it extends, was not found: its settings are missing`);
  return own;
}

/** Relative paths in a service of another file are relative to that file. `away`: its folder, relative to this file's. */
function moved({ build, volumes, env_file: files, ...rest }: Written, away: string): Written {
  const from = (path: unknown) => (typeof path === 'string' && !path.startsWith('/') ? posix.join(away, path) : path);
  const shift = (host: string) => (/^\.\.?(\/|$)/.test(host) ? `./${posix.join(away, host)}` : host);
  const shiftVolume = (volume: unknown) => {
    if (isMap(volume)) return { ...volume, source: typeof volume.source === 'string' ? shift(volume.source) : volume.source };
    return typeof volume === 'string' ? volume.replace(/^[^:]*/, shift) : volume;
  };
  return {
    ...rest,
    build: isMap(build) ? { ...build, context: from(build.context ?? '.') } : from(build),
    volumes: Array.isArray(volumes) ? volumes.map(shiftVolume) : volumes,
    env_file: Array.isArray(files) ? files.map(from) : from(files),
  };
}

/** Keys whose later value replaces the earlier one. */
const whole = new Set(['command', 'entrypoint', 'healthcheck', 'env_file', 'tags']);

/**
 * Merges one service over another: lists are joined, except those of a command, and variables are merged by name.
 * https://docs.docker.com/reference/compose-file/merge/
 */
function overlay(lower: Written, upper: Written): Written {
  const asBuild = (build: unknown) => (isMap(build) ? build : { context: build });
  const targetOf = (volume: unknown) =>
    isMap(volume) ? volume.target : typeof volume === 'string' ? volume.split(':')[1] : volume;
  const merged: Record<string, unknown> = { ...lower };
  for (const [key, value] of Object.entries(upper)) {
    const before = merged[key] ?? null;
    if (value === null || value === undefined) continue;
    merged[key] = value;
    if (before === null || whole.has(key)) continue;
    if (key === 'environment' || key === 'args')
      merged[key] = Object.fromEntries([...pairsOf(before), ...pairsOf(value)].map((pair) => [pair.key, pair.value]));
    else if (key === 'build') merged[key] = overlay(asBuild(before), asBuild(value));
    else if (Array.isArray(before) && Array.isArray(value)) {
      const targets = new Set(key === 'volumes' ? value.map(targetOf) : []);
      merged[key] = [...before.filter((item) => key !== 'volumes' || !targets.has(targetOf(item))), ...value];
    } else if (isMap(before) && isMap(value)) merged[key] = overlay(before, value);
  }
  return merged;
}

const name = '[A-Za-z_][A-Za-z0-9_]*';
const variable = new RegExp(String.raw`\$(?:(\$)|(${name})|\{(${name})(?:(:?[-?+])((?:[^{}]|\$\{[^{}]*\})*))?\})`, 'g');

/**
 * Fills in `${NAME}` in all texts of a value, as Compose does. `known`: from a file `.env`. `missing`: gets variables that the
 * shell would set. https://docs.docker.com/reference/compose-file/interpolation/
 */
function interpolate(
  value: unknown,
  known: ReadonlyMap<string, string>,
  path: Path,
  missing: (variable: string, path: Path, text: string) => void,
): unknown {
  const fill = (text: string): string =>
    text.replaceAll(variable, (_, dollar?: string, plain?: string, braced?: string, how?: string, other = '') => {
      if (dollar !== undefined) return '$';
      const wanted = plain ?? braced ?? '';
      const found = known.get(wanted);
      const isThere = found !== undefined && (found !== '' || !how?.startsWith(':'));
      if (how?.endsWith('+')) return isThere ? fill(other) : '';
      if (isThere) return found;
      if (how?.endsWith('-')) return fill(other);
      missing(wanted, path, text);
      return '';
    });
  if (typeof value === 'string') return fill(value);
  if (Array.isArray(value)) return value.map((item, at) => interpolate(item, known, [...path, at], missing));
  if (!isMap(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, interpolate(item, known, [...path, key], missing)]));
}

/** Variables of a file `.env`, without those whose name or value looks like a secret. */
function readDotEnv(text: string): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  for (const line of text.split(/\r?\n/)) {
    const [, key, value] = new RegExp(`^\\s*(?:export\\s+)?(${name})\\s*=\\s*(.*?)\\s*$`).exec(line) ?? [];
    if (key === undefined || value === undefined || soundsSecret(key) || looksSecret(value)) continue;
    found.set(key, /^(["'])(.*)\1/.exec(value)?.[2] ?? value.replace(/\s+#.*$/, ''));
  }
  return found;
}
