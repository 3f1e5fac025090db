/** Which files of a workspace a job wants back. A pattern that names a directory means everything below it. */
import { OnejobError } from '../../base/errors.ts';
import { glob, globProblem } from '../../base/glob.ts';

/** Why a pattern is invalid, as a clause, or null. */
export function artifactProblem(pattern: string): string | null {
  if (pattern === '') return 'it is empty';
  if (pattern.startsWith('/')) return 'it is absolute';
  if (pattern.split('/').includes('..')) return 'it points outside the workspace';
  return pattern.includes('\0') ? 'it contains a NUL byte' : globProblem(pattern);
}

/** A job's patterns: the manager compares each file with all of them. */
const mostPatterns = 100;

/** Why these are too many, as a clause, or null. */
export function artifactsProblem({ length }: readonly string[]): string | null {
  return length > mostPatterns ? `${length} patterns: a job may have at most ${mostPatterns}` : null;
}

export function checkGlobs(patterns: readonly string[]): void {
  const why = artifactsProblem(patterns);
  if (why !== null)
    throw new OnejobError('E_JOB_REQUEST', `Cannot collect the artifacts of ${why}.`, {
      hint: 'Name a folder to collect everything in it, or combine several patterns into one, such as "dist/{a,b}".',
    });
  for (const pattern of patterns) checkGlob(pattern);
}

export function checkGlob(pattern: string): void {
  const why = artifactProblem(pattern);
  if (why === null) return;
  const shown = JSON.stringify(pattern.length > 200 ? `${pattern.slice(0, 200)}…` : pattern);
  const hint = 'Give a path or pattern relative to the workspace, such as "dist/**".';
  throw new OnejobError('E_JOB_REQUEST', `Cannot collect the artifact ${shown}: ${why}.`, { hint });
}

/** The top-level name of all that a pattern can match, or null. Links are not followed there. */
export function topName(pattern: string): string | null {
  const name = tidy(pattern).split('/')[0] ?? '';
  return /^[^*?[\](){}!@+|\\]+$/.test(name) ? name : null;
}

/** Whether a relative path without a leading `./` is wanted. `*` matches no dot files, as in a shell; `**` and a folder do. */
export function globMatcher(patterns: readonly string[]): (path: string) => boolean {
  const wanted = patterns.map(tidy);
  const matchers = wanted.flatMap((pattern) => [glob(pattern, { dots: false }), glob(`${pattern}/**`, { dots: false })]);
  // A file's name may look like a pattern.
  const literal = new Set(wanted);
  return (path) => literal.has(path) || matchers.some((matches) => matches(path));
}

function tidy(pattern: string): string {
  const plain = pattern.replace(/^(\.\/+)+/, '').replace(/\/+$/, '');
  return plain === '.' || plain === '' ? '**' : plain;
}
