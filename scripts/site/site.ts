/**
 * The documentation as a site of static files: each page of docs/ with the changelog and README as its start. All links are relative,
 * so it works below any address. Every link and anchor inside of it leads somewhere, or nothing is made.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import type { SearchEntry } from '../../web/docs/search.ts';
import { renderMarkdown } from './markdown.ts';
import { type Asset, type Bundle, htmlOf, type Page } from './page.ts';
import { inner, type Part, readParts, startPage } from './parts.ts';

/** Files by their path on the site. */
export type Files = ReadonlyMap<string, string | Buffer>;

interface Site {
  readonly root: string;
  readonly sources: ReadonlySet<string>;
  /** What pages show or link to, other than pages. */
  readonly extras: Set<string>;
}

/** @throws Error with every link that leads nowhere */
export function renderSite(root: string, bundle: Bundle): Files {
  const parts = readParts(root);
  const sources = [startPage, ...parts.flatMap(pagesIn)];
  const site: Site = { root, sources: new Set(sources), extras: new Set() };
  const pages = new Map(sources.map((source) => [source, readPage(site, source)]));
  const partOf = new Map(parts.flatMap((part) => pagesIn(part).map((source) => [source, part.title])));
  const index = JSON.stringify(
    [...pages.values()].flatMap((page) => searchEntries(page, weights[partOf.get(page.source) ?? ''] ?? 1)),
  );
  // A browser that has it does not read it again.
  const search = sealed(`assets/search-${createHash('sha256').update(index).digest('hex').slice(0, 8)}.json`, index);
  const files = new Map<string, string | Buffer>([[search.path, index]]);
  for (const page of pages.values()) {
    if (files.has(page.path)) throw new Error(`Two pages of the documentation would be ${page.path}.`);
    files.set(page.path, htmlOf({ page, pages, parts, bundle, search }));
  }
  for (const extra of site.extras) files.set(pathOf(extra), readFileSync(join(root, extra)));
  files.set('favicon.svg', readFileSync(join(root, 'web/public/favicon.svg')));
  const broken = brokenLinks(files);
  if (broken.length > 0) throw new Error(`Links of the documentation lead nowhere:\n${broken.join('\n')}`);
  return files;
}

/** A file as pages name it. */
export function sealed(path: string, bytes: string | Uint8Array): Asset {
  return { path, integrity: `sha384-${createHash('sha384').update(bytes).digest('base64')}` };
}

function pagesIn({ groups }: Part): string[] {
  return groups.flatMap(({ pages }) => pages);
}

/** Where a file of the repository is on the site. */
export function pathOf(source: string): string {
  if (source === startPage) return 'index.html';
  const path = source.startsWith('docs/') ? source.slice('docs/'.length) : source.toLowerCase();
  return path.replace(/\.md$/, '.html');
}

function readPage(site: Site, source: string): Page {
  const text = readFileSync(join(site.root, source), 'utf8');
  const path = pathOf(source);
  try {
    const rendered = renderMarkdown(text, {
      rewrite: (target) => rewrite(site, source, target),
      darkOf: (target) => darkOf(site, source, target),
    });
    const [title] = rendered.headings;
    if (title?.depth !== 1) throw new Error('it does not begin with its title');
    return { source, path, title: title.text, rendered };
  } catch (error) {
    throw new Error(`Cannot make a page of ${source}: ${error instanceof Error ? error.message : error}`, { cause: error });
  }
}

/** `NAME-dark.png` next to a picture. */
function darkOf(site: Site, source: string, target: string): string | null {
  const dark = target.replace(/\.png$/, '-dark.png');
  const isThere = dark !== target && existsSync(join(site.root, dirname(source), dark));
  return isThere ? rewrite(site, source, dark) : null;
}

/** Files outside of docs/ are not on the site: their name stays, without a link. `docs-links.test.ts` checks that they are there. */
function rewrite(site: Site, source: string, target: string): string | null {
  if (/^(https?|mailto):|^#/.test(target)) return target;
  const [path = '', anchor] = target.split('#');
  const to = posix.join(posix.dirname(source), path);
  if (!site.sources.has(to)) {
    if (!to.startsWith('docs/') || statSync(join(site.root, to), { throwIfNoEntry: false })?.isDirectory()) return null;
    site.extras.add(to);
  }
  const href = posix.relative(posix.dirname(pathOf(source)), pathOf(to));
  return anchor === undefined ? href : `${href}#${anchor}`;
}

/** What is found in guides comes first, and what only those need who change onejob comes last. Unnamed parts weigh 1. */
const weights: Readonly<Record<string, number>> = { Reference: 0.8, Explanation: 0.8, [inner]: 0.2 };
/** Names in tables are many, and short. The glossary's are what somebody asks who types one word. */
const nameWeight = 0.6;

function searchEntries({ source, path, title, rendered }: Page, ofPart: number): SearchEntry[] {
  const weight = source === 'CHANGELOG.md' ? 0.2 : ofPart;
  return rendered.sections.map(({ id, title: heading, text, also, isName }, at) => ({
    ...(at === 0 ? { href: path, heading: '' } : { href: `${path}#${id}`, heading }),
    page: title,
    text,
    ...(also !== '' && { also }),
    weight: weight * (isName && source !== 'docs/glossary.md' ? nameWeight : 1),
  }));
}

/** Links and sources of all pages that no file or anchor answers. */
export function brokenLinks(files: Files): string[] {
  const anchors = new Map<string, Set<string>>();
  for (const [path, text] of files)
    if (path.endsWith('.html')) anchors.set(path, new Set([...String(text).matchAll(/ id="([^"]+)"/g)].map(([, id = '']) => id)));
  return [...files].flatMap(([path, text]) => {
    if (!path.endsWith('.html')) return [];
    const targets = new Set([...String(text).matchAll(/ (?:href|src)="([^"]*)"/g)].map(([, target = '']) => target));
    return [...targets].flatMap((target) => {
      if (/^(https?|mailto):/.test(target)) return [];
      const [to = '', anchor] = decodeURIComponent(target).split('#');
      const file = to === '' ? path : posix.join(posix.dirname(path), to);
      // The bundle is made by Vite.
      const isThere = files.has(file) || file.startsWith('assets/');
      return isThere && (anchor === undefined || anchors.get(file)?.has(anchor)) ? [] : [`${path}: ${target}`];
    });
  });
}
