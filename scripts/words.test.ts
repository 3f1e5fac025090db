/**
 * What docs/style.md forbids stays out of the source and the pages, and each page can be read in one sitting: phrases that read as
 * translated, pages of more than 4,000 words, and paragraphs of more than 80.
 */
import { globSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { expect, test } from 'vitest';

const root = resolve(import.meta.dirname, '..');

/** What to write instead, and what is found. */
const avoided: Readonly<Record<string, RegExp>> = {
  '"is invalid" or "does not exist"': /(?<!\bthere )\b(?:is|are|was|were) none\b/i,
  '"is not a"': /(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more than\b|images')/i,
  fix: /\bmend(?:s|ed|ing)?\b/i,
  fail: /\b(?:come|comes|came|coming) to nothing\b/i,
  'next to, or in addition to': /\bbeside\b/i,
  'anyone who': /\bwhoever\b/i,
  'as you like': /\bas (?:one|it|somebody) likes\b/i,
  'name the number': /\bof which there (?:is|are|was|were)\b/i,
  report: /(?<!const )\btells? of\b/i,
  'nothing instead of "at that"': /\bat that(?:[.,;:!?)"']|$)/i,
  'continue, or keep running': /\b(?:go|goes|went|gone|going) on\b/i,
  interrupted: /\bbroken off\b/i,
  'needs no': /\b(?:does|do|did) without\b/i,
};

const pages = ['README.md', 'CONTRIBUTING.md', ...globSync('docs/**/*.md', { cwd: root }).sort()];

const everywhere = [
  'bin/*',
  'install.sh',
  '*.md',
  'docs/**/*.md',
  'src/**/*.{ts,sh,Dockerfile}',
  'tools/**/*.ts',
  'scripts/**/*.{ts,cjs}',
  'web/**/*.{ts,tsx,css,html}',
  'deploy/**/*.{json,yml,yaml,cjs}',
];

/** Two have the phrases to forbid them; the other two are being rewritten. */
const exempt = new Set(['docs/style.md', 'scripts/words.test.ts']);

const linesOf = (file: string) => readFileSync(join(root, file), 'utf8').split('\n');

function found(files: readonly string[], phrase: RegExp): string[] {
  return files.flatMap((file) =>
    linesOf(file).flatMap((line, at) => (phrase.test(line) ? [`${file}:${at + 1}: ${line.trim()}`] : [])),
  );
}

test.each(Object.entries(avoided))('write %s', (_, phrase) => {
  const files = globSync(everywhere, { cwd: root, exclude: ['**/node_modules/**'] }).filter((file) => !exempt.has(file));
  for (const folder of ['src', 'docs', 'web', 'deploy', 'tools', 'scripts', 'install.sh'])
    expect(files.some((file) => file.startsWith(folder))).toBe(true);
  expect(found(files, phrase)).toEqual([]);
});

test('no sentence of a page starts with its object: not "Of a lost job only the log is kept"', () => {
  const files = [...pages, 'CHANGELOG.md'].filter((page) => !exempt.has(page));
  expect(found(files, /(?:^|[.!?|] )Of (?!course\b)/)).toEqual([]);
});

/** References of which each entry is short: all errors, and a table that `npm run sim:mutants` prints. */
const references = new Set(['docs/errors.md', 'docs/testing/mutants.md']);

test('no page has more than 4,000 words, apart from references', () => {
  const long = pages.flatMap((page) => {
    const words = readFileSync(join(root, page), 'utf8').split(/\s+/).length;
    return words > 4000 && !references.has(page) ? [`${page}: ${words}`] : [];
  });
  expect(long).toEqual([]);
});

/** Without code, comments, headings, tables and lists of tests; an item of a list is a paragraph. */
function paragraphsOf(page: string): string[] {
  return readFileSync(join(root, page), 'utf8')
    .replaceAll(/^ *```.*?^ *```/gms, '')
    .replaceAll(/<!--.*?-->/gs, '')
    .replaceAll(/^#.*$/gm, '\n')
    .split(/\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\s*\|)/)
    .map((text) => text.trim())
    .filter((text) => !/^(?:\||Test: )/.test(text));
}

test.each(pages.filter((page) => !exempt.has(page)))('no paragraph of %s has more than 80 words', (page) => {
  const long = paragraphsOf(page).flatMap((text) => {
    const words = text.split(/\s+/).length;
    return words > 80 ? [`${words} words: ${text}`] : [];
  });
  expect(long).toEqual([]);
});
