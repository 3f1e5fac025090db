/** Finds sections of the documentation by words, their beginnings, and words with a slip. No page and no network is needed for that. */
import MiniSearch from 'minisearch';

/** A section of a page, as the index of the site has it. */
export interface SearchEntry {
  /** From the root of the site. */
  readonly href: string;
  readonly page: string;
  /** Empty: the beginning of the page. */
  readonly heading: string;
  readonly text: string;
  /** Words that readers type and the page does not use. */
  readonly also?: string;
  /** 1, or less for what fewer people look for. */
  readonly weight: number;
}

export interface Hit {
  readonly entry: SearchEntry;
  /** The words of the section that were found. */
  readonly words: readonly string[];
}

/** Words that are everywhere. */
const isSmall =
  /^(a|an|and|are|at|be|between|can|do|does|for|from|how|i|in|is|it|my|of|on|or|that|the|this|to|what|when|where|which|why|will|with|without)$/i;

export type Search = (query: string) => Hit[];

const noWord = /[^\p{L}\p{N}_]+/u;
const mostHits = 12;
/** With fewer sections than these that have all words, those that have most of them are shown, too. */
const enough = 4;
const excerptLength = 140;

/** Names such as `keep_jobs` and `E_CONFIG` are found as a whole and by their parts. */
function words(text: string): string[] {
  return text.split(noWord).flatMap((word) => {
    const parts = word.split('_').filter((part) => part !== '');
    return parts.length > 1 ? [word, ...parts] : parts;
  });
}

/** A word of the index, as it is found with and without the `s` of a plural or a verb; null: not at all. */
function termOf(word: string): string | null {
  return isSmall.test(word) ? null : word.toLowerCase().replace(/(?<=\w{3}[^s])s$/, '');
}

function termsOf(text: string): Set<string> {
  return new Set(text.split(noWord).flatMap((word) => (word === '' ? [] : (termOf(word) ?? []))));
}

/** By how much a section is better than its words say: it is called as the query, or the title of its page has all of the query. */
function closeness({ page, heading }: SearchEntry, query: ReadonlySet<string>): number {
  const [title = '', name] = heading === '' ? [page] : heading.split(' › ');
  // Of a name in a table, such as `A job › --priority N`, only the first word of the last part is typed.
  const terms = termsOf(name?.split(' ')[0] ?? title);
  if (query.size === 0 || ![...query].every((term) => terms.has(term))) return 1;
  if (terms.size === query.size) return name === undefined ? 4 : 1.5;
  return heading === '' ? 3 : 1;
}

export function createSearch(entries: readonly SearchEntry[]): Search {
  const index = new MiniSearch<SearchEntry & { id: number }>({
    fields: ['page', 'heading', 'also', 'text'],
    tokenize: words,
    processTerm: termOf,
    searchOptions: {
      boost: { heading: 4, also: 4, page: 2 },
      prefix: true,
      fuzzy: (word) => (word.length > 4 ? 0.2 : false),
    },
  });
  // The beginning of a page is what a search for its title should find.
  index.addAll(entries.map((entry, id) => ({ ...entry, id, heading: entry.heading === '' ? entry.page : entry.heading })));
  return (query) => {
    const asked = termsOf(query);
    const find = (combineWith: 'AND' | 'OR') =>
      index.search(query, {
        combineWith,
        // A whole name is enough: its parts would only find more.
        tokenize: (text) => text.split(noWord).filter((word) => word !== ''),
        boostDocument(id) {
          const entry = entries[id as number];
          return entry === undefined ? 1 : entry.weight * closeness(entry, asked);
        },
      });
    const all = find('AND');
    const some = all.length < enough ? find('OR').filter(({ queryTerms }) => queryTerms.length > asked.size / 2) : [];
    return [...all, ...some.filter(({ id }) => all.every((hit) => hit.id !== id))].slice(0, mostHits).flatMap(({ id, terms }) => {
      const entry = entries[id as number];
      return entry === undefined ? [] : [{ entry, words: terms }];
    });
  };
}

/** The text around the first word that was found, in pieces; each second one was found. */
export function excerptOf({ entry: { text }, words: found }: Hit): string[] {
  const pattern = new RegExp(`(${found.map((word) => word.replace(/[^\p{L}\p{N}_]/gu, '')).join('|')})`, 'iu');
  const at = Math.max(0, text.search(pattern));
  const begin = at < 50 ? 0 : text.lastIndexOf(' ', at - 40) + 1;
  const end = text.length - begin <= excerptLength ? text.length : text.lastIndexOf(' ', begin + excerptLength);
  const cut = `${begin > 0 ? '… ' : ''}${text.slice(begin, Math.max(end, begin))}${end < text.length ? ' …' : ''}`;
  return cut.split(new RegExp(pattern, 'giu'));
}
