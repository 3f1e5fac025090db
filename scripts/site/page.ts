/** The frame of a page: header with search, the sidebar, and what is on the page. No inline script or style, which the policy refuses. */
import { posix } from 'node:path';
import { escapeHtml, type Heading, type Rendered } from './markdown.ts';
import { type Group, type Part, startPage } from './parts.ts';

/** A file that pages load. A browser refuses one with other bytes, such as what another program left in its cache. */
export interface Asset {
  /** On the site. */
  readonly path: string;
  readonly integrity: string;
}

export interface Bundle {
  readonly script: Asset;
  readonly style: Asset;
}

export interface Page {
  /** From the root of the repository. */
  readonly source: string;
  /** On the site. */
  readonly path: string;
  readonly title: string;
  readonly rendered: Rendered;
}

interface Framed {
  readonly page: Page;
  readonly pages: ReadonlyMap<string, Page>;
  readonly parts: readonly Part[];
  readonly bundle: Bundle;
  /** The index of the search. */
  readonly search: Asset;
}

/** More headings than these on a page would be a second sidebar. */
const mostHeadings = 40;

export function htmlOf({ page, pages, parts, bundle, search }: Framed): string {
  const to = (path: string) => escapeHtml(posix.relative(posix.dirname(page.path), path));
  const { script, style } = bundle;
  const isStart = page.source === startPage;
  const title = isStart ? 'onejob: documentation' : `${page.title} · onejob`;
  const link = (source: string): string => {
    const one = pages.get(source);
    if (one === undefined) throw new Error(`There is no page ${source}.`);
    const current = one === page ? ' aria-current="page"' : '';
    return `<li><a href="${to(one.path)}"${current}>${escapeHtml(nameOf(one))}</a></li>`;
  };
  const contents = contentsOf(page.rendered.headings);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="same-origin">
<title>${escapeHtml(title)}</title>
<link rel="icon" href="${to('favicon.svg')}" type="image/svg+xml">
<link rel="stylesheet" href="${to(style.path)}" integrity="${style.integrity}">
<script type="module" blocking="render" src="${to(script.path)}" integrity="${script.integrity}"></script>
</head>
<body data-search="${to(search.path)}" data-integrity="${search.integrity}">
<a class="skip" href="#content">Skip to the content</a>
<header class="bar">
<button type="button" class="menu" popovertarget="pages">Menu</button>
<a class="brand" href="${to('index.html')}" aria-label="onejob docs"><img src="${to('favicon.svg')}" alt="" width="20" height="20"> <b>onejob</b> <span>docs</span></a>
<search><input id="search" type="search" placeholder="Search" aria-label="Search the documentation" autocomplete="off" hidden>
<div id="found" hidden></div></search>
${contents === '' ? '' : '<button type="button" class="to-contents" popovertarget="on-this-page">Contents</button>\n'}<button type="button" id="theme" hidden>Theme</button>
</header>
<nav id="pages" popover aria-label="Pages">
<ul>${link(startPage)}</ul>
${parts.map((part) => partOf(part, page, link)).join('\n')}
</nav>
<main id="content" tabindex="-1">
<article>
${page.rendered.html}${stepsOf(page, [...pages.values()], to)}
</article>
${contents}
</main>
</body>
</html>
`;
}

function nameOf({ source, title }: Page): string {
  return source === startPage ? 'Start' : title;
}

function partOf({ title, groups }: Part, page: Page, link: (source: string) => string): string {
  const isHere = groups.some(({ pages }) => pages.includes(page.source));
  const list = ({ title: name, pages }: Group) =>
    `${name === null ? '' : `<h3>${escapeHtml(name)}</h3>`}<ul>${pages.map(link).join('\n')}</ul>`;
  return `<details${isHere || page.source === startPage ? ' open' : ''}><summary>${escapeHtml(title)}</summary>
${groups.map(list).join('\n')}</details>`;
}

/** So that no page is a dead end: the pages before and after it, as the sidebar has them. */
function stepsOf(page: Page, pages: readonly Page[], to: (path: string) => string): string {
  const at = pages.indexOf(page);
  const step = (one: Page | undefined, rel: 'prev' | 'next', word: string) =>
    one === undefined ? '' : `<a rel="${rel}" href="${to(one.path)}"><small>${word}</small> ${escapeHtml(nameOf(one))}</a>`;
  const steps = [step(pages[at - 1], 'prev', 'Previous'), step(pages[at + 1], 'next', 'Next')];
  return `<nav class="steps" aria-label="Previous and next page">${steps.join('\n')}</nav>`;
}

/** A popover that a button of the header opens, on a wide screen a column: neither needs a script. */
function contentsOf(headings: readonly Heading[]): string {
  const both = headings.filter(({ depth }) => depth === 2 || depth === 3);
  const shown = both.length > mostHeadings ? both.filter(({ depth }) => depth === 2) : both;
  if (shown.length < 2) return '';
  const line = ({ depth, id, text }: Heading) =>
    `<li class="depth-${depth}"><a href="#${escapeHtml(id)}">${escapeHtml(text)}</a></li>`;
  return `<nav id="on-this-page" popover aria-label="On this page"><h2>On this page</h2><ul>${shown.map(line).join('\n')}</ul></nav>`;
}
