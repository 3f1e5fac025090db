/** What a page of the documentation does with JavaScript: search and the choice of colours. Without it, everything can be read. */
import { nextTheme, readTheme, setTheme, startTheme } from '../src/theme.ts';
import { createSearch, excerptOf, type Hit, type Search, type SearchEntry } from './search.ts';

// Before the first paint: the page waits for this script.
startTheme();
addEventListener('DOMContentLoaded', () => {
  offerThemes();
  offerSearch();
  showPlace();
  closeContents();
});

function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`The page has no ${id}.`);
  return found as T;
}

/** The page in the list of pages, which is longer than most windows. */
function showPlace(): void {
  const pages = byId('pages');
  const show = () => pages.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
  pages.addEventListener('toggle', show);
  show();
}

/** A chosen section may be below the list of sections. */
function closeContents(): void {
  const contents = document.getElementById('on-this-page');
  contents?.addEventListener('click', ({ target }) => {
    if (target instanceof Element && target.closest('a') !== null && contents.matches(':popover-open')) contents.hidePopover();
  });
}

function offerThemes(): void {
  const button = byId('theme');
  const names = { auto: 'Auto', light: 'Light', dark: 'Dark' };
  const show = () => {
    button.textContent = names[readTheme()];
    button.title = `Colours: ${names[readTheme()]}. Change to ${names[nextTheme(readTheme())]}`;
  };
  button.addEventListener('click', () => {
    setTheme(nextTheme(readTheme()));
    show();
  });
  show();
  button.hidden = false;
}

function offerSearch(): void {
  const input = byId<HTMLInputElement>('search');
  const list = byId('found');
  const { search: path = '', integrity = '' } = document.body.dataset;
  const index = new URL(path, location.href);
  const root = new URL('..', index);
  let reading: Promise<Search> | null = null;
  const load = () => {
    reading ??= fetch(index, { integrity }).then(async (response) => createSearch((await response.json()) as SearchEntry[]));
    return reading;
  };
  const show = async () => {
    const query = input.value.trim();
    const search = await load().catch(() => null);
    if (search === null) reading = null;
    // Somebody has typed on.
    if (query !== input.value.trim()) return;
    list.hidden = query === '';
    const hits = search?.(query) ?? [];
    const none = search === null ? 'The index for searching cannot be loaded.' : 'Nothing was found.';
    list.replaceChildren(...(hits.length === 0 ? [element('p', none)] : hits.map((hit) => resultOf(hit, root))));
  };
  input.addEventListener('focus', () => void load().catch(() => {}));
  input.addEventListener('input', () => void show());
  addEventListener('keydown', (event) => onKey(event, input, list));
  addEventListener('click', ({ target }) => {
    if (target instanceof Node && !input.parentElement?.contains(target)) list.hidden = true;
    // A hit on this page only moves it.
    if (target instanceof Element && target.closest('#found a') !== null) list.hidden = true;
  });
  input.hidden = false;
}

/** `/` searches, arrows choose, Enter opens the first, Escape ends. */
function onKey(event: KeyboardEvent, input: HTMLInputElement, list: HTMLElement): void {
  const { key, target } = event;
  const places: HTMLElement[] = [input, ...list.querySelectorAll('a')];
  const at = places.indexOf(target as HTMLElement);
  const isTyping = target instanceof Element && target.matches('input, textarea');
  if (key === '/' && !isTyping && !event.ctrlKey && !event.altKey && !event.metaKey) input.focus();
  else if (at < 0) return;
  else if (key === 'ArrowDown') places[at + 1]?.focus();
  else if (key === 'ArrowUp') places[at - 1]?.focus();
  else if (key === 'Enter' && at === 0) places[1]?.click();
  else if (key === 'Escape') {
    input.value = '';
    list.hidden = true;
    input.focus();
  } else return;
  event.preventDefault();
}

function resultOf(hit: Hit, root: URL): HTMLElement {
  const { page, heading, href } = hit.entry;
  const link = element('a');
  link.href = new URL(href, root).href;
  const excerpt = element('span');
  excerpt.append(...excerptOf(hit).map((piece, n) => (n % 2 === 1 ? element('mark', piece) : piece)));
  link.append(element('b', heading === '' ? page : `${page} › ${heading}`), excerpt);
  return link;
}

function element<K extends keyof HTMLElementTagNameMap>(name: K, text = ''): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}
