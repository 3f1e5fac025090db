/** Phrases that read as translated stay out of the source and the pages; docs/style.md says what to write instead. */
import { globSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { expect, test } from 'vitest';

const root = resolve(import.meta.dirname, '..');

const avoided: Readonly<Record<string, RegExp>> = {
  '"is invalid" or "does not exist"': /(?<!\bthere )\b(?:is|are|was|were) none\b/i,
  '"is not a"': /(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more than\b|images')/i,
  fix: /\bmend(?:s|ed|ing)?\b/i,
  fail: /\b(?:come|comes|came|coming) to nothing\b/i,
  'anyone who': /\bwhoever\b/i,
  'as you like': /\bas (?:one|it|somebody) likes\b/i,
  'name the number': /\bof which there (?:is|are)\b/i,
  report: /\b(?:to|it) tells? of\b/i,
};

test.each(Object.entries(avoided))('write %s', (_, phrase) => {
  const files = globSync(['bin/*', 'src/**/*.ts', 'tools/**/*.ts', 'docs/**/*.md', '*.md'], { cwd: root }).filter(
    (file) => file !== 'docs/style.md',
  );
  expect(files.length).toBeGreaterThan(100);
  const found = files.flatMap((file) =>
    readFileSync(join(root, file), 'utf8')
      .split('\n')
      .flatMap((line, at) => (phrase.test(line) ? [`${file}:${at + 1}: ${line.trim()}`] : [])),
  );
  expect(found).toEqual([]);
});
