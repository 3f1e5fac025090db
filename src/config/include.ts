/** The file and what it includes, as one: what stands in the including file wins, and a later include over an earlier one. */
import { dirname, resolve } from 'node:path';
import type { ReadFile } from './changed.ts';
import type { Path, Place, Problem } from './problem.ts';
import { formatPath } from './problem.ts';
import type { Source } from './source.ts';
import { readSource } from './source.ts';
import { isMap } from './values.ts';

export interface Combined {
  /** In the order of reading. */
  readonly files: readonly ReadFile[];
  readonly value: Readonly<Record<string, unknown>>;
  readonly problems: readonly Problem[];
  /** Included files of another user than the main file's: whoever wrote that may have no right to read them. */
  readonly foreign: ReadonlySet<string>;
  /** Nothing was written in the main file. */
  readonly empty: boolean;
  /** The place of the nearest part of `path` that is written somewhere. */
  locate(path: Path, at?: 'key' | 'value'): Place;
  /** Whether exactly this path is written. */
  has(path: Path): boolean;
}

export async function readWithIncludes(file: string): Promise<Combined> {
  const main = await readSource(file);
  const problems = [...main.problems];
  const sources: Source[] = [main];
  const report = (path: Path, message: string) => {
    const place = main.locate(path, 'value') ?? { source: file, line: null, column: null };
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
      const place = source.locate(['include'], 'key') ?? { source: target, line: null, column: null };
      const message = `this file is included by ${file}, so it cannot include others; list them there`;
      problems.push({ ...place, level: 'error', key: 'include', message });
    }
    sources.push(source);
  }
  const value: Record<string, unknown> = {};
  for (const source of sources.toReversed()) problems.push(...layOver(value, source, sources));
  const locateExactly = (path: Path, at: 'key' | 'value'): Place | null => {
    for (const source of [main, ...sources.slice(1).reverse()]) {
      const place = source.locate(path, at);
      if (place !== null) return place;
    }
    return null;
  };
  return {
    files: sources.map(({ file: path, digest }) => ({ path, digest })),
    value,
    problems,
    foreign: new Set(sources.filter(({ uid }) => uid !== main.uid).map(({ file }) => file)),
    empty: main.value === null && main.problems.length === 0,
    has: (path) => locateExactly(path, 'key') !== null,
    locate(path, at = 'value') {
      const exact = locateExactly(path, at);
      if (exact !== null) return exact;
      for (let end = path.length - 1; end > 0; end--) {
        const place = locateExactly(path.slice(0, end), 'key');
        if (place !== null) return place;
      }
      return { source: file, line: null, column: null };
    },
  };
}

function listOf(value: unknown): string[] {
  if (!isMap(value)) return [];
  const names = Array.isArray(value.include) ? value.include : [value.include];
  return names.filter((name) => typeof name === 'string');
}

/** Puts one source over what lies below it. A pool or service that two files write is a mistake, not a merge. */
function layOver(below: Record<string, unknown>, source: Source, all: readonly Source[]): Problem[] {
  const problems: Problem[] = [];
  if (source.value !== null && !isMap(source.value)) {
    const place = source.locate([], 'value') ?? { source: source.file, line: null, column: null };
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
        const place = source.locate([name, key], 'key') ?? { source: source.file, line: null, column: null };
        const other = all.find((one) => one !== source && one.locate([name, key], 'key') !== null)?.file ?? 'another file';
        problems.push({
          ...place,
          level: 'error',
          key: formatPath([name, key]),
          message: `is also written in ${other}; keep one of the two`,
        });
      }
    }
    below[name] = name === 'defaults' ? mergeMaps(old, value) : { ...old, ...value };
  }
  return problems;
}

/** Maps merge key by key, at every depth; all else is replaced. */
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
