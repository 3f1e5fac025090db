/** One page of Markdown as HTML that a strict Content-Security-Policy takes, with its headings and the text that can be searched. */
import { Marked, type Token, type Tokens } from 'marked';

export interface Heading {
  readonly depth: number;
  readonly id: string;
  readonly text: string;
}

/** What can be found: a heading with the text up to the next one, or a name with its row of a table. */
export interface Section {
  readonly id: string;
  readonly title: string;
  readonly text: string;
  /** Words of a comment `<!-- search: … -->`, which readers may type. */
  readonly also: string;
  readonly isName: boolean;
}

export interface Rendered {
  readonly html: string;
  readonly headings: readonly Heading[];
  readonly sections: readonly Section[];
}

/** Where a link or a picture leads from the page on the site; null: the site does not have it. */
export type Rewrite = (target: string) => string | null;

interface Targets {
  readonly rewrite: Rewrite;
  /** The picture in place of another where the page is dark; null: the same. */
  readonly darkOf?: Rewrite;
}

const escapes: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (sign) => escapes[sign] ?? sign);
}

/** The anchor of a heading, as GitHub has it, so that one link works in both places. */
export function slugOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');
}

/** @throws Error for HTML that is neither a comment nor a line break */
export function renderMarkdown(text: string, { rewrite, darkOf }: Targets): Rendered {
  const marked = new Marked();
  const tokens = marked.lexer(text);
  const { headings, sections, ids } = outlineOf(tokens);
  marked.use({
    renderer: {
      heading(token) {
        const id = escapeHtml(ids.get(token) ?? '');
        const words = this.parser.parseInline(token.tokens);
        // The title of the page is its top.
        if (token.depth === 1) return `<h1 id="${id}">${words}</h1>\n`;
        return `<h${token.depth} id="${id}">${words} <a class="anchor" href="#${id}" aria-label="Link to this section">#</a></h${token.depth}>\n`;
      },
      code({ text: code }) {
        // By keyboard one can only scroll what has the focus.
        return `<pre tabindex="0"><code>${escapeHtml(code)}\n</code></pre>\n`;
      },
      codespan(token) {
        const id = ids.get(token);
        return `<code${id === undefined ? '' : ` id="${escapeHtml(id)}"`}>${escapeHtml(token.text).replace(/(?<![^\s(])--?[\w-]+/g, '<span>$&</span>')}</code>`;
      },
      strong(token) {
        const id = ids.get(token);
        return `<strong${id === undefined ? '' : ` id="${escapeHtml(id)}"`}>${this.parser.parseInline(token.tokens)}</strong>`;
      },
      table(token) {
        const titles = token.header.map(cellText);
        const isCards = titles.length >= 3 && titles.length <= 5;
        const cells = (row: readonly Tokens.TableCell[]) =>
          row.map((cell, at) => {
            const tag = cell.header ? 'th' : 'td';
            const align = cell.align === null ? '' : ` class="${cell.align}"`;
            const title = isCards && !cell.header && at > 0 ? titles[at] : '';
            const label = title === undefined || title === '' ? '' : ` data-label="${escapeHtml(title)}"`;
            return `<${tag}${align}${label}>${this.parser.parseInline(cell.tokens)}</${tag}>`;
          });
        const rows = token.rows.map((row) => `<tr>${cells(row).join('')}</tr>`).join('\n');
        const head = titles.every((title) => title === '') ? '' : `<thead><tr>${cells(token.header).join('')}</tr></thead>\n`;
        // On a phone, each row of such a table is a card of its own.
        return `<div class="table${isCards ? ' cards' : ''}" tabindex="0"><table>${head}<tbody>${rows}</tbody></table></div>\n`;
      },
      link({ href, tokens }) {
        const words = this.parser.parseInline(tokens);
        const target = rewrite(href);
        return target === null
          ? `<span title="${escapeHtml(href)}">${words}</span>`
          : `<a href="${escapeHtml(target)}">${words}</a>`;
      },
      image({ href, text: alt }) {
        const source = rewrite(href);
        if (source === null) throw new Error(`The site has no picture ${href}.`);
        const img = (from: string, name = '') => `<img${name} src="${escapeHtml(from)}" alt="${escapeHtml(alt)}" loading="lazy">`;
        const dark = darkOf?.(href) ?? null;
        // A browser loads only the one that is shown.
        return dark === null ? img(source) : `${img(source, ' class="day"')}${img(dark, ' class="night"')}`;
      },
      html({ raw }) {
        if (/^\s*(<!--[\s\S]*?-->\s*)+$/.test(raw)) return '';
        if (/^<br\s*\/?>\s*$/.test(raw)) return '<br>';
        throw new Error(`HTML in Markdown is not passed on: ${raw.trim()}`);
      },
    },
  });
  return { html: marked.parser(tokens), headings, sections };
}

/** What the tokens of a page say, and the anchors of headings and names among them. */
function outlineOf(tokens: readonly Token[]) {
  const headings: Heading[] = [];
  const sections: { -readonly [K in keyof Section]: Section[K] }[] = [];
  const ids = new Map<Token, string>();
  const used = new Map<string, number>();
  const idFor = (token: Token, slug: string): string => {
    const before = used.get(slug) ?? 0;
    used.set(slug, before + 1);
    const id = before === 0 ? slug : `${slug}-${before}`;
    ids.set(token, id);
    return id;
  };
  let current: (typeof sections)[number] | undefined;
  for (const token of tokens) {
    if (token.type === 'heading') {
      const title = plainText(token).trim();
      const id = idFor(token, slugOf(title));
      headings.push({ depth: (token as Tokens.Heading).depth, id, text: title });
      current = { id, title, text: '', also: '', isName: false };
      sections.push(current);
      continue;
    }
    if (current === undefined) continue;
    current.also ||= /^<!-- search: (.*?) -->/.exec(token.raw)?.[1] ?? '';
    current.text = oneLine(`${current.text} ${plainText(token)}`);
    if (token.type !== 'table') continue;
    const { header, rows } = token as Tokens.Table;
    const kind = header[0]?.text === 'Word' ? 'strong' : 'codespan';
    for (const row of rows)
      for (const name of namesIn(row, kind)) {
        const id = idFor(name, `${current.id}-${slugOf(name.text)}`);
        const text = oneLine(row.slice(1).map(cellText).join(' '));
        sections.push({ id, title: `${current.title} › ${name.text}`, text, also: '', isName: true });
      }
  }
  return { headings, sections, ids };
}

/**
 * The names that a row explains, such as a key of the config or codes of findings: its first cell has nothing else. In a glossary
 * (`kind`: strong) they are its words.
 */
function namesIn([first]: readonly Tokens.TableCell[], kind: 'codespan' | 'strong'): (Tokens.Codespan | Tokens.Strong)[] {
  const isName = (token: Token): token is Tokens.Codespan | Tokens.Strong => token.type === kind;
  const tokens = first?.tokens ?? [];
  return tokens.every((token) => isName(token) || token.raw.trim() === ',') ? tokens.filter(isName) : [];
}

function cellText({ tokens }: Tokens.TableCell): string {
  return tokens.map(plainText).join('');
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim();
}

/** The words of a token, as a reader sees them. */
function plainText(token: Token): string {
  if (token.type === 'html') return ' ';
  if (token.type === 'table') {
    const { header, rows } = token as Tokens.Table;
    return [header, ...rows].map((row) => row.map(cellText).join(' ')).join(' ');
  }
  if (token.type === 'list') return (token as Tokens.List).items.map(plainText).join(' ');
  const inner = (token as Tokens.Generic).tokens;
  // Blocks of a list item or a quote stand apart, words of a line do not.
  if (inner !== undefined) return inner.map(plainText).join(token.type === 'list_item' || token.type === 'blockquote' ? ' ' : '');
  return unescapeHtml((token as Tokens.Text).text ?? ' ');
}

/** Entities that an author wrote. */
function unescapeHtml(text: string): string {
  return text.replace(
    /&(amp|lt|gt|quot|#39);/g,
    (entity) => Object.entries(escapes).find(([, one]) => one === entity)?.[0] ?? entity,
  );
}
