/**
 * One YAML 1.2 file as plain values, with the place of every key. Aliases are expanded under a budget, so that a small
 * file cannot become a large config; nothing of a file's text is ever quoted in a message, for it may hold a secret.
 */
import { readFile, stat } from 'node:fs/promises';
import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, type Pair, parseDocument } from 'yaml';
import { digestOf } from './changed.ts';
import type { Path, Place, Problem } from './problem.ts';
import { formatPath } from './problem.ts';

/** Largest file that is read, in bytes. */
const largestFile = 1024 * 1024;
/** Most values that aliases may add to a file. */
const aliasBudget = 10_000;
const deepest = 64;

export interface Source {
  readonly file: string;
  /** SHA-256 of its bytes; null when they could not be read. */
  readonly digest: string | null;
  /** Who owns it; null when that could not be seen. */
  readonly uid: number | null;
  /** null when the file holds nothing, or could not be understood. */
  readonly value: unknown;
  readonly problems: readonly Problem[];
  /** Where the key stands, or its value; null when this file does not have it. */
  locate(path: Path, at: 'key' | 'value'): Place | null;
}

/** Reads and understands one file. Never throws: what is wrong stands in `problems`. */
export async function readSource(file: string): Promise<Source> {
  let uid: number | null = null;
  const failed = (message: string, digest: string | null = null): Source => ({
    file,
    digest,
    uid,
    value: null,
    problems: [{ source: file, line: null, column: null, level: 'error', key: '', message }],
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
    // The parser recurses: a file of a million brackets ends its stack.
    if (error instanceof RangeError) return failed('is nested too deeply', digest);
    throw error;
  }
}

/** Understands the text of one file. @throws RangeError when it is nested too deeply for the parser. */
export function parseSource(file: string, text: string): Source {
  const lines = new LineCounter();
  const document = parseDocument(text, { version: '1.2', prettyErrors: false, lineCounter: lines, logLevel: 'error' });
  const places = new Map<string, { key: number | null; value: number | null }>();
  const problems: Problem[] = [];
  const placeOf = (offset: number | null): Place => {
    const position = offset === null ? null : lines.linePos(offset);
    return { source: file, line: position?.line ?? null, column: position?.col ?? null };
  };
  const report = (offset: number | null, path: Path, message: string) => {
    problems.push({ ...placeOf(offset), level: 'error', key: formatPath(path), message });
  };
  for (const error of [...document.errors, ...document.warnings]) report(error.pos[0], [], explainYaml(error.code, error.message));

  const anchors = new Map<string, Node>();
  let budget = aliasBudget;
  /** `alias`: where the outermost alias that is being expanded stands; null outside of one. */
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
    if ((isMap(node) || isSeq(node) || isScalar(node)) && node.anchor !== undefined) anchors.set(node.anchor, node);
    if (isMap(node)) return mapOf(node.items, path, alias);
    if (isSeq(node)) {
      return node.items.map((item, index) => {
        const at = [...path, index];
        places.set(JSON.stringify(at), { key: start(item), value: start(item) });
        return convert(item, at, alias);
      });
    }
    if (!isScalar(node)) return null;
    // 1.10 and 007 are numbers to YAML, but text to whoever sets a variable.
    return isText(path) && node.value !== null && node.source !== undefined ? node.source : node.value;
  };
  const mapOf = (items: readonly Pair[], path: Path, alias: number | null): Record<string, unknown> => {
    const map: Record<string, unknown> = Object.create(null);
    for (const { key, value } of items) {
      if (!isScalar(key)) {
        report(start(key), path, 'a key must be a plain word');
        continue;
      }
      const name = key.source ?? String(key.value);
      const at = [...path, name];
      // Setting it on any JavaScript object would change what that object is.
      if (name === '__proto__') {
        report(start(key), at, 'unknown key; nothing can be called so');
        continue;
      }
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
    problems,
    locate(path, at) {
      const found = places.get(JSON.stringify(path));
      return found === undefined ? null : placeOf(found[at]);
    },
  };
}

function start(node: unknown): number | null {
  return isMap(node) || isSeq(node) || isScalar(node) || isAlias(node) ? (node.range?.[0] ?? null) : null;
}

/** Values that are text however they look: those of `env` and `tags`. */
function isText(path: Path): boolean {
  const inPool = path[0] === 'defaults' ? path.slice(1) : path[0] === 'pools' ? path.slice(2) : [];
  return (inPool[0] === 'env' && inPool.length === 2) || (inPool[0] === 'tags' && inPool.length >= 2);
}

/** The parser's own words, except where they would leave a person puzzled, or quote the file. */
function explainYaml(code: string, message: string): string {
  switch (code) {
    case 'DUPLICATE_KEY':
      return 'this key stands here twice; keep one of the two';
    case 'TAB_AS_INDENT':
      return 'YAML is not indented with tabs; use spaces';
    case 'MULTIPLE_DOCS':
      return 'a config is one document; remove the "---" that begins the second';
    case 'TAG_RESOLVE_FAILED':
      return 'tags such as !name are not used in a config; quote the value if it begins with "!"';
    default:
      return `not valid YAML: ${message.split('\n')[0]?.replace(/:? *["'].*$/, '') ?? code}`;
  }
}

function unreadable(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (code === 'ENOENT' || code === 'ENOTDIR') return 'does not exist';
  if (code === 'EACCES' || code === 'EPERM') return 'cannot be read by this user';
  return `cannot be read (${error instanceof Error ? error.message : String(error)})`;
}
