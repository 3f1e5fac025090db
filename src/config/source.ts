/**
 * Reads YAML 1.2 files as plain values with the place of every key, and merges a file with its includes. Aliases have a budget, so
 * that a small file cannot become a large config. Messages never quote the text of a file, which may contain a secret.
 */
import { readFile, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { isAlias, isNode, isScalar, isSeq, isMap as isYamlMap, LineCounter, type Node, type Pair, parseDocument } from 'yaml';
import { isMap } from '../schema/kinds.ts';
import { formatPath, type Path, type Place, type Problem, place as placeIn } from '../schema/problem.ts';
import { unreadable } from '../schema/secret-reference.ts';
import { digestOf, type ReadFile } from './changed.ts';
import type { Writing } from './checking.ts';

/** Bytes of the largest file. */
const largestFile = 1024 * 1024;
/** Values that aliases may add to a file. */
const aliasBudget = 10_000;
const deepest = 64;

export interface Source {
  readonly file: string;
  /** SHA-256 of its bytes; null when they could not be read. */
  readonly digest: string | null;
  /** Its owner; null if unknown. */
  readonly uid: number | null;
  /** null for an empty or invalid file. */
  readonly value: unknown;
  /** Empty if it could not be read as text. */
  readonly text: string;
  readonly problems: readonly Problem[];
  /** The place of a key or its value; null if this file does not have it. */
  locate(path: Path, at: 'key' | 'value'): Place | null;
}

/** Reads one file. Never throws: see `problems`. */
export async function readSource(file: string): Promise<Source> {
  let uid: number | null = null;
  const failed = (message: string, digest: string | null = null): Source => ({
    file,
    digest,
    uid,
    value: null,
    text: '',
    problems: [{ ...placeIn(file), level: 'error', key: '', message }],
    locate: () => null,
  });
  let bytes: Uint8Array;
  try {
    const found = await stat(file);
    uid = found.uid;
    if (!found.isFile()) return failed('is not a file');
    if (found.size > largestFile) return failed(`is larger than 1 MiB (${found.size} bytes); a config is a few pages of text`);
    bytes = await readFile(file);
  } catch (error) {
    return failed(unreadable(error));
  }
  const digest = digestOf(bytes);
  try {
    return { ...parseSource(file, new TextDecoder('utf-8', { fatal: true }).decode(bytes)), digest, uid };
  } catch (error) {
    if (error instanceof TypeError) return failed('is not UTF-8 text', digest);
    // The parser recurses, so that a million brackets exceed its stack.
    if (error instanceof RangeError) return failed('is nested too deeply', digest);
    throw error;
  }
}

/** @throws RangeError when the text is nested too deeply for the parser */
export function parseSource(file: string, text: string): Source {
  const lines = new LineCounter();
  const document = parseDocument(text, {
    version: '1.2',
    prettyErrors: false,
    lineCounter: lines,
    logLevel: 'error',
    // Reported below, so that the rest of the file is checked, too.
    uniqueKeys: false,
  });
  const places = new Map<string, { key: number | null; value: number | null }>();
  const problems: Problem[] = [];
  const placeAt = (offset: number | null): Place => {
    const position = offset === null ? null : lines.linePos(offset);
    return { source: file, line: position?.line ?? null, column: position?.col ?? null };
  };
  const report = (offset: number | null, path: Path, message: string) => {
    problems.push({ ...placeAt(offset), level: 'error', key: formatPath(path), message });
  };
  for (const error of [...document.errors, ...document.warnings]) report(error.pos[0], [], explainYaml(error.code, error.message));

  const anchors = new Map<string, Node>();
  let budget = aliasBudget;
  /** `alias`: position of the outermost alias that is being expanded; null outside of one. */
  const convert = (node: unknown, path: Path, alias: number | null): unknown => {
    if (isAlias(node)) {
      const target = anchors.get(node.source);
      if (target !== undefined) return convert(target, path, alias ?? start(node));
      report(start(node), path, `*${node.source} refers to an anchor that is not defined above it`);
      return undefined;
    }
    if (path.length > deepest && alias === null) throw new RangeError('nested too deeply');
    if (alias !== null) {
      if (budget > 0 && path.length <= deepest) budget--;
      else {
        if (budget >= 0) report(alias, path.slice(0, 3), `aliases add more than ${aliasBudget} values, or contain themselves`);
        budget = -1;
        return undefined;
      }
    }
    if (isNode(node) && node.anchor !== undefined) anchors.set(node.anchor, node);
    if (isYamlMap(node)) return mapOf(node.items, path, alias);
    if (isSeq(node)) {
      return node.items.map((item, index) => {
        const at = [...path, index];
        places.set(JSON.stringify(at), { key: start(item), value: start(item) });
        return convert(item, at, alias);
      });
    }
    if (!isScalar(node)) return null;
    // 1.10 and 007 are numbers in YAML, but people who set a variable mean text.
    return isText(path) && node.value !== null && node.source !== undefined ? node.source : node.value;
  };
  const mapOf = (items: readonly Pair[], path: Path, alias: number | null): Record<string, unknown> => {
    const map: Record<string, unknown> = Object.create(null);
    const given = new Map<string, number | null>();
    for (const { key, value } of items) {
      if (!isScalar(key)) {
        report(start(key), path, 'a key must be a plain word');
        continue;
      }
      const name = key.source ?? String(key.value);
      const at = [...path, name];
      // Setting it would change the prototype of the object.
      if (name === '__proto__') {
        report(start(key), at, 'unknown key; this name is not possible');
        continue;
      }
      if (given.has(name)) {
        const line = placeAt(given.get(name) ?? null).line;
        if (alias === null) report(start(key), at, `is already given in line ${line}; keep one of the two`);
        continue;
      }
      given.set(name, start(key));
      places.set(JSON.stringify(at), { key: start(key), value: start(value) ?? start(key) });
      const converted = convert(value, at, alias);
      if (converted !== undefined) map[name] = converted;
    }
    return map;
  };
  const value = document.errors.length > 0 ? null : convert(document.contents, [], null);
  places.set('[]', { key: 0, value: start(document.contents) ?? 0 });
  return {
    file,
    digest: null,
    uid: null,
    value,
    text,
    problems,
    locate(path, at) {
      const found = places.get(JSON.stringify(path));
      return found === undefined ? null : placeAt(found[at]);
    },
  };
}

function start(node: unknown): number | null {
  return isNode(node) ? (node.range?.[0] ?? null) : null;
}

/** Whether the value is always text, as in `env` and `tags`. */
function isText(path: Path): boolean {
  const inPool = path[0] === 'defaults' ? path.slice(1) : path[0] === 'pools' ? path.slice(2) : [];
  return (inPool[0] === 'env' && inPool.length === 2) || (inPool[0] === 'tags' && inPool.length >= 2);
}

/** The parser's message, unless it is unclear or quotes the file. */
function explainYaml(code: string, message: string): string {
  const known: Partial<Record<string, string>> = {
    TAB_AS_INDENT: 'YAML is not indented with tabs; use spaces',
    MULTIPLE_DOCS: 'a config is one document; remove the "---" that begins the second',
    TAG_RESOLVE_FAILED: 'tags such as !name are not used in a config; quote the value if it begins with "!"',
  };
  return known[code] ?? `not valid YAML: ${message.split('\n')[0]?.replace(/:? *["'].*$/, '') ?? code}`;
}

/** A file with what it includes. */
export interface Combined extends Writing {
  /** In the order of reading. */
  readonly files: readonly ReadFile[];
  readonly value: Readonly<Record<string, unknown>>;
  readonly problems: readonly Problem[];
  /** Included files of another owner, which the owner of the main file may not be allowed to read. */
  readonly foreign: ReadonlySet<string>;
  /** Texts of the files that have no keys, as those with a syntax error. */
  readonly keyless: readonly string[];
  /** Whether the main file is empty. */
  readonly empty: boolean;
}

/** A file merged with its includes: the file overrides them, and a later include an earlier one. */
export async function readWithIncludes(file: string): Promise<Combined> {
  const main = await readSource(file);
  const problems = [...main.problems];
  const sources: Source[] = [main];
  const report = (path: Path, message: string) => {
    const place = main.locate(path, 'value') ?? placeIn(file);
    problems.push({ ...place, level: 'error', key: formatPath(path), message });
  };
  for (const [index, name] of listOf(main.value).entries()) {
    const path = isMap(main.value) && Array.isArray(main.value.include) ? ['include', index] : ['include'];
    const target = resolve(dirname(file), name);
    if (sources.some((source) => source.file === target)) {
      report(path, target === file ? `${name} is this file itself` : `${name} is included twice`);
      continue;
    }
    const source = await readSource(target);
    if (source.problems.some((problem) => problem.line === null)) {
      for (const problem of source.problems) report(path, `${target} ${problem.message}`);
      continue;
    }
    problems.push(...source.problems);
    if (isMap(source.value) && 'include' in source.value) {
      const place = source.locate(['include'], 'key') ?? placeIn(target);
      const message = `this file is included by ${file}, so it cannot include others; list them there`;
      problems.push({ ...place, level: 'error', key: 'include', message });
    }
    sources.push(source);
  }
  const value: Record<string, unknown> = {};
  for (const source of sources.toReversed()) problems.push(...layOver(value, source, sources));
  const inOrder = [main, ...sources.slice(1).reverse()];
  const locateExactly = (path: Path, at: 'key' | 'value'): Place | null => {
    const holder = inOrder.find((source) => source.locate(path, at) !== null);
    return holder?.locate(path, at) ?? null;
  };
  return {
    files: sources.map(({ file: path, digest }): ReadFile => ({ path, digest })),
    value,
    problems,
    foreign: new Set(sources.filter(({ uid }) => uid !== main.uid).map(({ file }) => file)),
    keyless: sources.filter((source) => !isMap(source.value)).map(({ text }) => text),
    empty: main.value === null && main.problems.length === 0,
    has: (path) => locateExactly(path, 'key') !== null,
    locate(path, at = 'value') {
      const exact = locateExactly(path, at);
      if (exact !== null) return exact;
      for (let end = path.length - 1; end > 0; end--) {
        const place = locateExactly(path.slice(0, end), 'key');
        if (place !== null) return place;
      }
      return placeIn(file);
    },
  };
}

function listOf(value: unknown): string[] {
  if (!isMap(value)) return [];
  const names = Array.isArray(value.include) ? value.include : [value.include];
  return names.filter((name) => typeof name === 'string');
}

/** Merges one source over those below it. A pool or service in two files is a mistake. */
function layOver(below: Record<string, unknown>, source: Source, all: readonly Source[]): Problem[] {
  const problems: Problem[] = [];
  if (source.value !== null && !isMap(source.value)) {
    const place = source.locate([], 'value') ?? placeIn(source.file);
    const found = Array.isArray(source.value) ? 'a list' : 'a single value';
    return [{ ...place, level: 'error', key: '', message: `expected keys such as "pools:", found ${found}` }];
  }
  for (const [name, value] of Object.entries(source.value ?? {})) {
    const old = below[name];
    if (!isMap(value) || !isMap(old)) {
      below[name] = value;
      continue;
    }
    if (name === 'pools' || name === 'services') {
      for (const key of Object.keys(value).filter((key) => key in old)) {
        const place = source.locate([name, key], 'key') ?? placeIn(source.file);
        const other = all.find((one) => one !== source && one.locate([name, key], 'key') !== null)?.file ?? 'another file';
        const message = `is also written in ${other}; keep one of the two`;
        problems.push({ ...place, level: 'error', key: formatPath([name, key]), message });
      }
    }
    below[name] = name === 'defaults' ? mergeMaps(old, value) : { ...old, ...value };
  }
  return problems;
}

/** Merges maps key by key, at every depth; other values are replaced. */
export function mergeMaps(
  below: Readonly<Record<string, unknown>>,
  above: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const merged: Record<string, unknown> = { ...below };
  for (const [name, value] of Object.entries(above)) {
    const old = merged[name];
    merged[name] = isMap(value) && isMap(old) ? mergeMaps(old, value) : value;
  }
  return merged;
}
