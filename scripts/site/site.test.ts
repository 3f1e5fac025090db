/** The site of this repository's own pages: what the policy of the dashboard would refuse is not in it, and everything is found. */
import { globSync } from 'node:fs';
import { join, posix } from 'node:path';
import { expect, test } from 'vitest';
import { errorCodes } from '../../src/base/errors.ts';
import { createSearch, excerptOf, type SearchEntry } from '../../web/docs/search.ts';
import { readParts, startPage } from './parts.ts';
import { brokenLinks, pathOf, renderSite } from './site.ts';

const root = join(import.meta.dirname, '..', '..');
const asset = (path: string) => ({ path, integrity: 'sha384-x' });
const files = renderSite(root, { script: asset('assets/site.js'), style: asset('assets/site.css') });
const pages = [...files].flatMap(([path, text]): [string, string][] => (path.endsWith('.html') ? [[path, String(text)]] : []));
const index = [...files].find(([path]) => /^assets\/search-[0-9a-f]{8}\.json$/.test(path))?.[1];
const search = createSearch(JSON.parse(String(index)) as SearchEntry[]);
const hrefsOf = (query: string) => search(query).map(({ entry }) => entry.href);

test('every page of docs/ is a page of the site, once, in one of five parts', () => {
  const parts = readParts(root);
  expect(parts.map(({ title }) => title)).toEqual(['Tutorials', 'How-to guides', 'Reference', 'Explanation', 'How onejob is made']);
  const placed = parts.flatMap(({ groups }) => groups.flatMap((group) => group.pages));
  expect([...placed].sort()).toEqual(['CHANGELOG.md', 'CONTRIBUTING.md', ...globSync('docs/**/*.md', { cwd: root })].sort());
  expect(pages.map(([path]) => path).sort()).toEqual([startPage, ...placed].map(pathOf).sort());
  for (const [path, text] of pages) {
    expect(text.match(/ aria-current="page"/g), path).toHaveLength(1);
    expect(text.match(/<summary>/g), path).toHaveLength(5);
  }
});

test('no two pages have the same title, and each but the last leads to the next one of the sidebar', () => {
  const titles = pages.map(([, text]) => /<title>(.*)<\/title>/.exec(text)?.[1]);
  expect(titles.filter((title, at) => titles.indexOf(title) !== at)).toEqual([]);
  const order = [startPage, ...readParts(root).flatMap(({ groups }) => groups.flatMap((group) => group.pages))].map(pathOf);
  for (const [at, path] of order.entries()) {
    const next = /<a rel="next" href="([^"]+)"/.exec(String(files.get(path)))?.[1];
    expect(next && posix.join(posix.dirname(path), next)).toBe(order[at + 1]);
  }
});

test('a page with sections has a list of them, and a button that opens it where the window is narrow', () => {
  const text = String(files.get('operating.html'));
  expect(text).toContain('popovertarget="on-this-page"');
  expect(/<nav id="on-this-page" popover.*?<\/nav>/s.exec(text)?.[0]).toContain('href="#uninstall"');
});

test.each(pages)('%s has nothing that the policy refuses, and loads nothing from elsewhere', (_, text) => {
  const tags = [...text.matchAll(/<[a-z][^>]*>/gi)].map(([tag]) => tag);
  expect(tags.filter((tag) => /\s(style|on\w+|srcdoc)\s*=/i.test(tag.replaceAll(/"[^"]*"/g, '""')))).toEqual([]);
  expect(tags.filter((tag) => /^<(style|iframe|object|embed|base|form|meta http)/i.test(tag))).toEqual([]);
  expect(text.match(/<script[^>]*>[^<]*<\/script>/g)).toEqual([
    expect.stringMatching(/ src="[^"]+" integrity="[^"]+"><\/script>$/),
  ]);
  expect(text.match(/<script/g)).toHaveLength(1);
  const loaded = tags.filter((tag) => /^<(script|link|img|source|video|audio)/i.test(tag));
  expect(loaded.filter((tag) => /\s(src|href)="([a-z]+:|\/)/i.test(tag))).toEqual([]);
  expect(tags.filter((tag) => /="\s*(javascript|data):/i.test(tag))).toEqual([]);
});

test('a link or an anchor that leads nowhere is found', () => {
  const site = new Map([
    ['a.html', '<h1 id="a"><a href="b/c.html#c"></a><a href="b/c.html#d"></a><a href="#a"></a><a href="https://x.example"></a>'],
    ['b/c.html', '<h1 id="c"><a href="../a.html"></a><img src="d.png"></a>'],
  ]);
  expect(brokenLinks(site)).toEqual(['a.html: b/c.html#d', 'b/c.html: d.png']);
});

test('every error code and every finding of a GPU has its anchor', () => {
  const text = String(files.get('errors.html'));
  const missing = Object.keys(errorCodes).filter((code) => !text.includes(` id="${code.toLowerCase()}"`));
  expect(missing).toEqual([]);
  expect(String(files.get('gpus.html'))).toContain('<code id="findings-gpu-lost">gpu-lost</code>');
});

test('search finds names, words, their beginnings, and words with a slip', () => {
  expect(hrefsOf('E_SECRET_KEY')[0]).toBe('errors.html#e_secret_key');
  expect(hrefsOf('keep_jobs')[0]).toBe('configuration.html#the-file-keep_jobs');
  expect(hrefsOf('how to upgrade')[0]).toBe('operating.html#upgrade-and-roll-back');
  expect(hrefsOf('quarant').length).toBeGreaterThan(3);
  expect(hrefsOf('dashbord')).toContain('dashboard.html');
  expect(hrefsOf('buildkite')[0]).toBe('ci/buildkite.html');
  // Pages for those who use onejob come first.
  expect(hrefsOf('gate').findIndex((href) => /^(adr|architecture|testing)/.test(href))).not.toBe(0);
  expect(hrefsOf('xyzzyq')).toEqual([]);
  expect(hrefsOf('  ')).toEqual([]);
});

/** What a user types, and the pages of which one has to be among the first three results. */
const asked: Readonly<Record<string, readonly string[]>> = {
  slot: ['glossary'],
  pool: ['glossary', 'configuration'],
  'logs of a job': ['ci/own-queue'],
  'job fails': ['troubleshooting'],
  'job failed': ['troubleshooting', 'verdict'],
  'job waits': ['troubleshooting'],
  'job is slow': ['troubleshooting'],
  'exit code 137': ['troubleshooting'],
  'out of memory': ['what-happens-if/job'],
  'cancel a job': ['tutorials/users', 'ci/own-queue'],
  'card busy': ['gpus'],
  'gpu is busy': ['gpus'],
  'gpu lost': ['gpus'],
  'disk full': ['troubleshooting'],
  'change the config': ['changing-the-config'],
  'stop the daemon': ['operating'],
  'stop the daemon without losing jobs': ['operating'],
  'share cards between two CI services': ['gpus'],
  'buildkite job waits for ever': ['ci/buildkite', 'troubleshooting'],
  'docker gpus': ['job-containers', 'gpus'],
  'leave jobs running': ['operating'],
  install: ['operating'],
  'how to upgrade': ['operating'],
  'getting started': ['tutorials/first-hour'],
  'docker in docker': ['job-containers'],
  kubernetes: ['runtimes/kubernetes'],
  slurm: ['runtimes/slurm'],
  secrets: ['secrets'],
  timeout: ['configuration'],
  artifacts: ['ci/own-queue'],
  priority: ['ci/own-queue'],
  dashboard: ['dashboard'],
  proxy: ['operating'],
  prometheus: ['metrics'],
  slack: ['operating'],
  verdict: ['verdict'],
};

test.each(Object.entries(asked))('who searches "%s" finds a page that helps among the first three', (query, wanted) => {
  const found = hrefsOf(query).slice(0, 3);
  const isWanted = (href: string) => wanted.some((page) => href.replace(/#.*/, '') === `${page}.html`);
  expect(found.filter(isWanted).length, `${query}: ${found.join(' ')}`).toBeGreaterThan(0);
});

test('the excerpt of a hit shows the word, and is short', () => {
  const entry = {
    href: 'a.html',
    page: 'A',
    heading: '',
    weight: 1,
    text: `${'before '.repeat(40)}the Word itself ${'after '.repeat(40)}`,
  };
  const pieces = excerptOf({ entry, words: ['word'] });
  expect(pieces).toEqual([expect.stringMatching(/^… before .*the $/), 'Word', expect.stringMatching(/^ itself after .* …$/)]);
  expect(pieces.join('').length).toBeLessThan(160);
  expect(excerptOf({ entry: { ...entry, text: 'Elsewhere.' }, words: ['word'] }).join('')).toBe('Elsewhere.');
});
