/**
 * `.onejobignore`, with the syntax of gitignore(5): the last pattern that matches decides, `!` takes back, a trailing
 * slash means directories only, a slash elsewhere ties the pattern to the top. What is below an ignored directory stays
 * ignored, as it is never looked at.
 */
import { glob } from '../glob.ts';

/** Whether a path relative to the top, without a leading slash, is left out. */
export type Ignores = (path: string, isDirectory: boolean) => boolean;

interface Rule {
  readonly matches: (path: string) => boolean;
  readonly directoriesOnly: boolean;
  readonly ignores: boolean;
}

export function parseIgnore(lines: readonly string[]): Ignores {
  const rules = lines.map(parseLine).filter((rule) => rule !== null);
  return (path, isDirectory) => {
    const last = rules.findLast((rule) => (isDirectory || !rule.directoriesOnly) && rule.matches(path));
    return last?.ignores ?? false;
  };
}

function parseLine(line: string): Rule | null {
  // Trailing spaces are dropped unless a backslash keeps them.
  let pattern = line.replace(/\r$/, '').replace(/(?<!\\)\s+$/, '');
  if (pattern === '' || pattern.startsWith('#')) return null;
  const ignores = !pattern.startsWith('!');
  if (!ignores) pattern = pattern.slice(1);
  const directoriesOnly = pattern.endsWith('/');
  if (directoriesOnly) pattern = pattern.slice(0, -1);
  const tied = pattern.includes('/');
  pattern = pattern.replace(/^\//, '');
  if (pattern === '') return null;
  return { matches: glob(tied ? pattern : `**/${pattern}`, { braces: false }), directoriesOnly, ignores };
}
