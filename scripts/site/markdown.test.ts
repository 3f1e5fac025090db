import { expect, test } from 'vitest';
import { renderMarkdown } from './markdown.ts';

const htmlOf = (text: string) =>
  renderMarkdown(text, { rewrite: (target) => (target.startsWith('src/') ? null : `to-${target}`) }).html;

test('headings have the anchors that GitHub gives them, also where two are the same', () => {
  const { html, headings } = renderMarkdown('# A `b` & c\n\n## E_CONFIG\n\n## Same\n\n## Same\n', { rewrite: () => null });
  expect(headings.map(({ id, text }) => [id, text])).toEqual([
    ['a-b--c', 'A b & c'],
    ['e_config', 'E_CONFIG'],
    ['same', 'Same'],
    ['same-1', 'Same'],
  ]);
  for (const { id } of headings) expect(html).toContain(` id="${id}"`);
});

test('links are rewritten, and what the site does not have keeps its name only', () => {
  expect(htmlOf('[a](b.md)')).toBe('<p><a href="to-b.md">a</a></p>\n');
  expect(htmlOf('[`a`](src/a.ts)')).toBe('<p><span title="src/a.ts"><code>a</code></span></p>\n');
  expect(htmlOf('![a "b"](c.png)')).toBe('<p><img src="to-c.png" alt="a &quot;b&quot;" loading="lazy"></p>\n');
});

test('a picture that has a dark one comes with it', () => {
  const darkOf = (target: string) => (target === 'a.png' ? 'b.png' : null);
  const { html } = renderMarkdown('![x](a.png) ![y](c.png)', { rewrite: (target) => target, darkOf });
  expect(html.match(/<img[^>]*>/g)?.map((img) => img.replace(' loading="lazy"', ''))).toEqual([
    '<img class="day" src="a.png" alt="x">',
    '<img class="night" src="b.png" alt="x">',
    '<img src="c.png" alt="y">',
  ]);
});

test('tables say how they are aligned by class, since the policy refuses styles', () => {
  expect(htmlOf('| a | b |\n|---|--:|\n| `x|y` <br> z | 1 |\n')).toContain('<th class="right">b</th>');
  expect(htmlOf('| a |\n|---|\n| b<br>c |\n')).toContain('<td>b<br>c</td>');
});

test('cells of tables that a phone shows as cards say what they are', () => {
  expect(htmlOf('| a | b | | d |\n|---|---|---|---|\n| 1 | 2 | 3 | 4 |\n')).toContain(
    '<tr><td>1</td><td data-label="b">2</td><td>3</td><td data-label="d">4</td></tr>',
  );
  expect(htmlOf('| a | b |\n|---|---|\n| 1 | 2 |\n')).toContain('<tr><td>1</td><td>2</td></tr>');
});

test('options in code are not broken into lines, and a table without titles has no row for them', () => {
  expect(htmlOf('`onejob down --leave`')).toBe('<p><code>onejob down <span>--leave</span></code></p>\n');
  expect(htmlOf('`own-queue`')).toBe('<p><code>own-queue</code></p>\n');
  expect(htmlOf('| | |\n|---|---|\n| a | b |\n')).not.toContain('<thead>');
});

test('code is text; comments are left out; other HTML is refused', () => {
  expect(htmlOf('```sh\necho <b> & "c"\n```')).toContain('<code>echo &lt;b&gt; &amp; &quot;c&quot;\n</code>');
  expect(htmlOf('a\n\n<!-- generated -->\n\nb')).toBe('<p>a</p>\n<p>b</p>\n');
  expect(() => htmlOf('a <img src=x onerror=alert(1)>')).toThrow('HTML in Markdown is not passed on: <img');
  expect(() => htmlOf('<script>alert(1)</script>')).toThrow('not passed on');
});

test('the text of a section is what a reader sees', () => {
  const text =
    '# Page\n\nOne **two** [three](x.md) `four_five` &amp; <br> six.\n\n- a\n- b\n\n| c | d |\n|---|---|\n| e | f |\n\n```\ng <h>\n```\n';
  expect(renderMarkdown(text, { rewrite: () => null }).sections).toEqual([
    { id: 'page', title: 'Page', also: '', text: 'One two three four_five & six. a b c d e f g <h>', isName: false },
  ]);
});

test('names that rows of a table explain have anchors, and are found by themselves', () => {
  const text = '# P\n\n## Keys\n\n| Key | Means |\n|---|---|\n| `a_b`, `c` | one |\n| `d` or so | two |\n| e | `f` |\n';
  const { html, headings, sections } = renderMarkdown(text, { rewrite: () => null });
  expect(html).toContain('<td><code id="keys-a_b">a_b</code>, <code id="keys-c">c</code></td><td>one</td>');
  expect(html).toContain('<td><code>d</code> or so</td>');
  expect(sections.slice(2)).toEqual([
    { id: 'keys-a_b', title: 'Keys › a_b', also: '', text: 'one', isName: true },
    { id: 'keys-c', title: 'Keys › c', also: '', text: 'one', isName: true },
  ]);
  expect(headings).toHaveLength(2);
});

test('the words of a glossary have anchors, and a comment names what readers may type', () => {
  const text = '# P\n\n<!-- search: place, box -->\n\n| Word | Means |\n|---|---|\n| **slot** | one |\n';
  const { html, sections } = renderMarkdown(text, { rewrite: () => null });
  expect(html).toContain('<td><strong id="p-slot">slot</strong></td>');
  expect(html).not.toContain('box');
  expect(sections).toEqual([
    { id: 'p', title: 'P', also: 'place, box', text: 'Word Means slot one', isName: false },
    { id: 'p-slot', title: 'P › slot', also: '', text: 'one', isName: true },
  ]);
  expect(renderMarkdown(text.replace('Word', 'Event'), { rewrite: () => null }).sections).toHaveLength(1);
});
