/** Problems of a config: one line each, with the place to fix. */

/** Where a key is in the config: `['pools', 'lab', 'volumes', 0]`. */
export type Path = readonly (string | number)[];

/** A place in a file, or an environment variable or flag. Line and column count from 1; null if there is none. */
export type Place = { readonly source: string; readonly line: number | null; readonly column: number | null };

export interface Problem extends Place {
  readonly level: 'error' | 'warning';
  /** `pools.lab.volumes[0]`; empty for the whole file. */
  readonly key: string;
  readonly message: string;
}

/** A place without a line. */
export function place(source: string): Place {
  return { source, line: null, column: null };
}

/** `config.yml:3:5: pools.lab.agnets: unknown key; did you mean "agents"?` */
export function formatProblem(problem: Problem): string {
  const key = problem.key === '' ? '' : `${problem.key}: `;
  const warning = problem.level === 'warning' ? 'warning: ' : '';
  const place = problem.line === null ? problem.source : `${problem.source}:${problem.line}:${problem.column ?? 1}`;
  return `${place}: ${warning}${key}${problem.message}`;
}

export function formatPath(path: Path): string {
  let text = '';
  for (const part of path) {
    if (typeof part === 'number') text += `[${part}]`;
    else text += (text === '' ? '' : '.') + (/^[^\s.:[\]"]+$/.test(part) ? part : JSON.stringify(part));
  }
  return text;
}

/** Problems in the order of the file, each once. */
export function inOrder(problems: readonly Problem[]): Problem[] {
  const seen = new Map(problems.map((problem) => [formatProblem(problem), problem]));
  const at = (problem: Problem) => (problem.line ?? 0) * 100_000 + (problem.column ?? 0);
  return [...seen.values()].sort((a, b) => a.source.localeCompare(b.source) || at(a) - at(b));
}

/** The known word nearest to `word`: a third of it may be mistyped, or it is a beginning of three letters or more; else null. */
export function nearest(word: string, known: Iterable<string>): string | null {
  const plain = (text: string) => text.toLowerCase().replaceAll(/[-_ ]/g, '');
  if (word.length > 64) return null;
  const most = Math.max(1, Math.floor(plain(word).length / 3));
  const [best] = [...known]
    .map((candidate) => ({ candidate, distance: mistakes(plain(word), plain(candidate)) }))
    .filter(({ distance }) => distance <= most)
    .sort((a, b) => a.distance - b.distance);
  if (best !== undefined || plain(word).length < 3) return best?.candidate ?? null;
  const begun = [...known].filter((candidate) => plain(candidate).startsWith(plain(word)));
  return begun.sort((a, b) => a.length - b.length)[0] ?? null;
}

/** Typing mistakes between two words: a letter added, missing or wrong, or two swapped. */
function mistakes(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let cost = Math.min((row[j - 1] ?? 0) + 1, (last[j] ?? 0) + 1, (last[j - 1] ?? 0) + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) cost = Math.min(cost, (before[j - 2] ?? 0) + 1);
      row.push(cost);
    }
    before = last;
    last = row;
  }
  return last[b.length] ?? 0;
}

/** `a, b and c` */
export function listed(words: readonly string[], last = 'and'): string {
  return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} ${last} ${words.at(-1)}`;
}

/** `did you mean "agents"?`, or all known words if none is near. */
export function suggest(word: string, known: readonly string[]): string {
  const near = nearest(word, known);
  if (near !== null) return `did you mean "${near}"?`;
  return known.length === 0 ? 'none is written' : `expected one of: ${known.join(', ')}`;
}

/** The same as the end of a sentence. */
export function suggestAtEnd(word: string, known: readonly string[]): string {
  return suggest(word, known).replace(/[^?]$/, '$&.');
}
