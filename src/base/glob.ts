/**
 * Patterns for paths and names, matched without backtracking: a text costs at most its length times the pattern's, no matter who chose
 * them. A regular expression for `*-*-*-*` takes minutes for some names of 250 letters.
 *
 * `*` and `?` do not match a slash. `**` as a whole part of a path does, and at its end stands for at least one part. `[a-z]`,
 * `[!a-z]`, `{a,b}` and a backslash have their meaning in shells. Names that begin with a dot match like others, unless `dots` is
 * false: then `*`, `?` and `[` do not match that dot, as in a shell; `**` still does. Case matters.
 */

/** Maximum letters of a pattern, and of the pattern with its braces expanded. */
const longestPattern = 1_024;
const longestWrittenOut = 4_096;
/** Maximum opening braces: the end of each is searched for again after every expansion. */
const mostBraces = 64;
/** A longer text matches nothing: no path on Linux is longer. */
const longestText = 4_096;

type One = (letter: string) => boolean;
type Many = '*';
/** `hidesDots`: it does not match names that begin with a dot. */
type Part = '**' | { readonly pieces: readonly (One | Many)[]; readonly hidesDots: boolean };

/** Why a pattern is invalid, as a clause; null if it is valid. */
export function globProblem(pattern: string): string | null {
  if (pattern.length > longestPattern) return `it has more than ${longestPattern} letters`;
  if (/(^|[^\\])[!@?*+]\(/.test(pattern)) return 'patterns such as !(a) or +(a) are not known';
  if (/(^|[^\\])\{[^{},/]*\.\.[^{},/]*\}/.test(pattern)) return 'ranges such as {1..3} are not known; write {1,2,3}';
  if (opened(pattern) > mostBraces) return `it has more than ${mostBraces} opening braces`;
  return alternatives(pattern) === null ? `its braces stand for more than ${longestWrittenOut} letters` : null;
}

export interface GlobOptions {
  /** Default true; otherwise braces are letters. */
  readonly braces?: boolean;
  /** Whether wildcards match a dot at the beginning of a name. Default true. */
  readonly dots?: boolean;
}

/** Returns whether a text matches the pattern. An invalid pattern matches nothing. */
export function glob(pattern: string, { braces = true, dots = true }: GlobOptions = {}): (text: string) => boolean {
  const written = pattern.length > longestPattern ? null : braces ? alternatives(pattern) : [pattern];
  const all = (written ?? []).map((one) => one.split('/').map((part) => parsePart(part, dots))).map(endOpen);
  return (text) => {
    if (text === '' || text.length > longestText) return false;
    const parts = text.split('/').map((part) => [...part]);
    return all.some((pattern) => fits(pattern, parts, '**', fitsPart));
  };
}

/**
 * Whether `items` match `pattern`, where `many` stands for any number of them. The rest after a `many` is searched for from there
 * on, then one further each time; an earlier `many` need not be tried again.
 */
function fits<P, T>(pattern: readonly P[], items: readonly T[], many: P, one: (pattern: P, item: T) => boolean): boolean {
  let [at, next, after, from] = [0, 0, -1, 0];
  while (next < items.length) {
    const wanted = pattern[at];
    if (at < pattern.length && wanted === many) {
      after = ++at;
      from = next;
    } else if (wanted !== undefined && one(wanted, items[next] as T)) {
      at += 1;
      next += 1;
    } else if (after === -1) return false;
    else {
      at = after;
      next = ++from;
    }
  }
  while (at < pattern.length && pattern[at] === many) at += 1;
  return at === pattern.length;
}

function fitsPart(part: Part, letters: readonly string[]): boolean {
  if (part === '**') return false;
  // A wildcard does not match an empty name, as in `a//b`.
  if (letters.length === 0) return part.pieces.length === 0;
  if (part.hidesDots && letters[0] === '.') return false;
  return fits<One | Many, string>(part.pieces, letters, '*', (wanted, letter) => wanted !== '*' && wanted(letter));
}

/** `a/**` matches everything in a, but not a itself. */
function endOpen(parts: readonly Part[]): readonly Part[] {
  return parts.at(-1) === '**' ? [...parts, { pieces: ['*'], hidesDots: false }] : parts;
}

function parsePart(written: string, dots: boolean): Part {
  if (written === '**') return '**';
  const letters = [...written];
  const part: (One | Many)[] = [];
  for (let at = 0; at < letters.length; at += 1) {
    const letter = letters[at] ?? '';
    if (letter === '*') {
      if (part.at(-1) !== '*') part.push('*');
    } else if (letter === '?') part.push(() => true);
    else if (letter === '[') {
      const set = parseSet(letters, at);
      part.push(set?.one ?? is(letter));
      at = set?.end ?? at;
    } else if (letter === '\\' && at + 1 < letters.length) part.push(is(letters[++at] ?? ''));
    else part.push(is(letter));
  }
  return { pieces: part, hidesDots: !dots && /^[*?[]/.test(written) };
}

function is(letter: string): One {
  return (other) => other === letter;
}

/** The set that begins at a bracket, and its end; null if it has no end, so that it is only a bracket. */
function parseSet(letters: readonly string[], start: number): { one: One; end: number } | null {
  let at = start + 1;
  const negated = letters[at] === '!' || letters[at] === '^';
  if (negated) at += 1;
  const ranges: [string, string][] = [];
  for (let first = true; ; first = false) {
    const letter = letters[at];
    if (letter === undefined) return null;
    if (letter === ']' && !first) break;
    const from = letter === '\\' ? letters[++at] : letter;
    if (from === undefined) return null;
    at += 1;
    const isRange = letters[at] === '-' && letters[at + 1] !== undefined && letters[at + 1] !== ']';
    const to = isRange ? (letters[at + 1] ?? from) : from;
    if (isRange) at += 2;
    ranges.push([from, to]);
  }
  const code = (letter: string) => letter.codePointAt(0) ?? 0;
  const has = (letter: string) => ranges.some(([from, to]) => code(from) <= code(letter) && code(letter) <= code(to));
  return { one: (letter) => has(letter) !== negated, end: at };
}

/** A pattern with its braces expanded; null if that is too long. Braces without a comma are letters. */
function alternatives(pattern: string): string[] | null {
  if (opened(pattern) > mostBraces) return null;
  const done: string[] = [];
  let size = 0;
  for (const open = [pattern]; open.length > 0; ) {
    const one = open.pop() ?? '';
    const found = firstBraces(one);
    if (found === null) {
      done.push(one);
      size += one.length + 1;
    } else for (const each of found.toReversed()) open.push(each);
    if (size > longestWrittenOut) return null;
  }
  return done;
}

/** Number of opening braces without a backslash before them. */
function opened(pattern: string): number {
  let found = 0;
  for (let at = 0; at < pattern.length; at += 1) {
    if (pattern[at] === '\\') at += 1;
    else if (pattern[at] === '{') found += 1;
  }
  return found;
}

/** The pattern once for each alternative of its first braces with a comma; null if there are none. */
function firstBraces(pattern: string): string[] | null {
  for (let start = 0; start < pattern.length; start += 1) {
    if (pattern[start] === '\\') start += 1;
    else if (pattern[start] === '{') {
      const commas: number[] = [];
      let depth = 0;
      for (let at = start; at < pattern.length; at += 1) {
        const letter = pattern[at];
        if (letter === '\\') at += 1;
        else if (letter === '{') depth += 1;
        else if (letter === ',' && depth === 1) commas.push(at);
        else if (letter === '}' && --depth === 0) {
          if (commas.length === 0) break;
          const [head, tail] = [pattern.slice(0, start), pattern.slice(at + 1)];
          const bounds = [start, ...commas, at];
          return bounds.slice(1).map((end, index) => head + pattern.slice((bounds[index] ?? start) + 1, end) + tail);
        }
      }
    }
  }
  return null;
}
