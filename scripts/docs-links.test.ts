import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { slugOf } from './site/markdown.ts';

const root = join(import.meta.dirname, '..');
const pages = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...globSync('docs/**/*.md', { cwd: root })];
const sitePages = new Set(pages);

test.each(pages)('every link in %s leads somewhere', (page) => {
  const text = readFileSync(join(root, page), 'utf8');
  const targets = [...text.matchAll(/\]\(([^)\s]+)\)/g)].map((found) => found[1] ?? '');
  const inside = targets.filter((target) => !/^[a-z]+:|^#/.test(target));
  const broken = inside.filter((target) => !existsSync(join(root, dirname(page), target.split('#')[0] ?? '')));
  expect(broken).toEqual([]);
});

test('a link says what is on the page, not the name of its file', () => {
  const named = pages.flatMap((page) =>
    [...readFileSync(join(root, page), 'utf8').matchAll(/\[([^\]]*\.md`?)\]\(([^)#\s]+)[^)]*\)/g)]
      // Files that the site of the docs does not have are meant as files.
      .filter(([, , target = '']) => sitePages.has(join(dirname(page), target)))
      .map(([, text]) => `${page}: ${text}`),
  );
  expect(named).toEqual([]);
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
  expect(table.map((line) => /S\d+/.exec(line)?.[0])).toEqual(Array.from({ length: 13 }, (_, n) => `S${n + 1}`));
  const named = table.flatMap((line) => [...line.matchAll(/`((?:src|test|scripts)\/[^`]+)`/g)].map((found) => found[1] ?? ''));
  expect(named.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

test('each way to die in docs/what-happens-if/ is in its index, and names a test that is there', () => {
  const index = readFileSync(join(root, 'docs', 'what-happens-if.md'), 'utf8');
  const ways = globSync('docs/what-happens-if/*.md', { cwd: root }).flatMap((page) => {
    const ofPage = readFileSync(join(root, page), 'utf8').split(/^### /m).slice(1);
    for (const way of ofPage) expect(index).toContain(`](${page.slice('docs/'.length)}#${slugOf(way.split('\n')[0] ?? '')})`);
    return ofPage;
  });
  expect(ways.length).toBeGreaterThan(60);
  for (const way of ways) {
    const title = way.split('\n')[0];
    const [, line = ''] = /^Test: (.+)$/m.exec(way) ?? [];
    expect(line, title).not.toBe('');
    // `file` (words of a title), and further (words) of the same file.
    for (const [, path = '', titles = ''] of line.matchAll(/`([^`]+\.ts)`((?:(?!`).)*)/g)) {
      const text = readFileSync(join(root, path), 'utf8');
      for (const [, words = ''] of titles.matchAll(/\(((?:[^()]|\([^()]*\))+)\)/g)) expect(text, title).toContain(words);
    }
  }
});

test('links to a heading lead to one', () => {
  const headings = (page: string) => [...readFileSync(page, 'utf8').matchAll(/^#+ (.+)$/gm)].map((found) => slugOf(found[1] ?? ''));
  const broken = pages.flatMap((page) =>
    [...readFileSync(join(root, page), 'utf8').matchAll(/\]\(([^)\s:]*)#([^)\s]+)\)/g)].flatMap(([, path = '', heading = '']) => {
      const to = path === '' ? join(root, page) : join(root, dirname(page), path);
      return to.endsWith('.md') && headings(to).includes(heading) ? [] : [`${page}: ${path}#${heading}`];
    }),
  );
  expect(broken).toEqual([]);
});

test('the pages on security name tests that exist, by file and title', () => {
  const pages = ['docs/security.md', ...globSync('docs/security/*.md', { cwd: root })];
  const page = pages.map((each) => readFileSync(join(root, each), 'utf8')).join('\n');
  // `file` (words of a title), and further (words) of the same file.
  const named = [...page.matchAll(/`((?:src|test|scripts|web)\/[^`]+\.test\.ts)`((?: \((?:[^()]|\([^()]*\))+\))*)/g)];
  expect(named.length).toBeGreaterThan(40);
  const missing = named.flatMap(([, path = '', titles = '']) => {
    if (!existsSync(join(root, path))) return [path];
    const text = readFileSync(join(root, path), 'utf8');
    const words = [...titles.matchAll(/ \(((?:[^()]|\([^()]*\))+)\)/g)].map(([, each = '']) => each);
    return words.filter((each) => !text.includes(each)).map((each) => `${path}: ${each}`);
  });
  expect(missing).toEqual([]);
  for (const section of [
    'A hostile job',
    'A hostile fork',
    'A curious user of the host',
    'A stolen token',
    'A compromised service',
  ])
    expect(page.split(`\n## ${section}\n`)[1]?.split('\n## ')[0]).toContain('**Not promised.**');
});
