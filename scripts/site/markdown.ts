/** One page of Markdown as HTML that a strict Content-Security-Policy takes, with its headings and the text that can be searched. */
import { Marked, type Token, type Tokens } from 'marked';

export interface Heading {
  readonly depth: number;
  readonly id: string;
  readonly text: string;
}

/** A heading with the text up to the next one. */
export interface Section {
  readonly heading: Heading;
  readonly text: string;
}

export interface Rendered {
  readonly html: string;
  readonly headings: readonly Heading[];
  readonly sections: readonly Section[];
}

/** Where a link or a picture leads from the page on the site; null: the site does not have it. */
export type Rewrite = (target: string) => string | null;

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
export function renderMarkdown(text: string, rewrite: Rewrite): Rendered {
  const marked = new Marked();
  const ids = new Map<Token, string>();
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
      table(token) {
        const cells = (row: readonly Tokens.TableCell[]) =>
          row.map((cell) => {
            const tag = cell.header ? 'th' : 'td';
            const align = cell.align === null ? '' : ` class="${cell.align}"`;
            return `<${tag}${align}>${this.parser.parseInline(cell.tokens)}</${tag}>`;
          });
        const rows = token.rows.map((row) => `<tr>${cells(row).join('')}</tr>`).join('\n');
        const head = `<thead><tr>${cells(token.header).join('')}</tr></thead>`;
        return `<div class="table" tabindex="0"><table>${head}\n<tbody>${rows}</tbody></table></div>\n`;
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
        return `<img src="${escapeHtml(source)}" alt="${escapeHtml(alt)}" loading="lazy">`;
      },
      html({ raw }) {
        if (/^\s*(<!--[\s\S]*?-->\s*)+$/.test(raw)) return '';
        if (/^<br\s*\/?>\s*$/.test(raw)) return '<br>';
        throw new Error(`HTML in Markdown is not passed on: ${raw.trim()}`);
      },
    },
  });
  const tokens = marked.lexer(text);
  const sections = sectionsOf(tokens, ids);
  return { html: marked.parser(tokens), headings: sections.map(({ heading }) => heading), sections };
}

function sectionsOf(tokens: readonly Token[], ids: Map<Token, string>): Section[] {
  const sections: { heading: Heading; text: string }[] = [];
  const used = new Map<string, number>();
  for (const token of tokens) {
    if (token.type !== 'heading') {
      const last = sections.at(-1);
      if (last !== undefined) last.text = `${last.text} ${plainText(token)}`.replace(/\s+/g, ' ').trim();
      continue;
    }
    const text = plainText(token).trim();
    const slug = slugOf(text);
    const before = used.get(slug) ?? 0;
    used.set(slug, before + 1);
    const id = before === 0 ? slug : `${slug}-${before}`;
    ids.set(token, id);
    sections.push({ heading: { depth: (token as Tokens.Heading).depth, id, text }, text: '' });
  }
  return sections;
}

/** The words of a token, as a reader sees them. */
function plainText(token: Token): string {
  if (token.type === 'html') return ' ';
  if (token.type === 'table') {
    const { header, rows } = token as Tokens.Table;
    return [header, ...rows].map((row) => row.map((cell) => cell.tokens.map(plainText).join('')).join(' ')).join(' ');
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
