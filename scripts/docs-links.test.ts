import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';

const root = join(import.meta.dirname, '..');
const pages = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...globSync('docs/**/*.md', { cwd: root })];

test.each(pages)('every link in %s leads somewhere', (page) => {
  const text = readFileSync(join(root, page), 'utf8');
  const targets = [...text.matchAll(/\]\(([^)\s]+)\)/g)].map((found) => found[1] ?? '');
  const inside = targets.filter((target) => !/^[a-z]+:|^#/.test(target));
  const broken = inside.filter((target) => !existsSync(join(root, dirname(page), target.split('#')[0] ?? '')));
  expect(broken).toEqual([]);
});

test('README stays under two screens and says the two commands that CI runs', () => {
  const text = readFileSync(join(root, 'README.md'), 'utf8');
  expect(text.split('\n').length).toBeLessThan(100);
  expect(text).toContain("\nnpm ci && npx onejob run -- sh -c 'echo hello from $(hostname)'\n");
  expect(text).toContain('\nnpm ci && npm test\n');
});

test('the promises in docs/slot-lifecycle.md name tests that exist', () => {
  const table = readFileSync(join(root, 'docs', 'slot-lifecycle.md'), 'utf8')
    .split('\n')
    .filter((line) => /^\| S\d+ /.test(line));
  expect(table.map((line) => /S\d+/.exec(line)?.[0])).toEqual(Array.from({ length: 11 }, (_, n) => `S${n + 1}`));
  const named = table.flatMap((line) => [...line.matchAll(/`((?:src|test|scripts)\/[^`]+)`/g)].map((found) => found[1] ?? ''));
  expect(named.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});
