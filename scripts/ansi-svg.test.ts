import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ansiToSvg } from './ansi-svg.ts';

const draw = (text: string) => ansiToSvg(text, { columns: 10, title: 'a <b>' });

test('each run of letters stands in its own columns, in its colour', () => {
  const svg = draw('ab \u001b[32mok\u001b[39m\n  \u001b[1;31mno\u001b[0m yes');
  expect(svg).toContain('<tspan x="18.0" textLength="16.8">ab</tspan>');
  expect(svg).toContain('<tspan x="43.2" textLength="16.8" fill="#7ee787">ok</tspan>');
  expect(svg).toContain('<tspan x="34.8" textLength="16.8" fill="#ff7b72" font-weight="bold">no</tspan>');
  expect(svg).toContain('>yes</tspan>');
});

test('what XML would read otherwise is escaped, and a colour continues over the end of a line', () => {
  const svg = draw('\u001b[33ma & b\nc > d');
  expect(svg).toContain('a &amp; b');
  expect(svg).toContain('fill="#f2cc60">c &gt; d');
  expect(svg).toContain('<title>a &lt;b&gt;</title>');
});

test('what is not a colour is refused', () => {
  expect(() => draw('\u001b[2J')).toThrow(RangeError);
  expect(() => draw('\u001b[48m')).toThrow(RangeError);
});

test('the picture in README shows what it promises, and nothing of the host it was made on', () => {
  const readme = readFileSync(join(import.meta.dirname, '..', 'README.md'), 'utf8');
  const [, path = ''] = /!\[[^\]]+\]\((docs\/pictures\/[^)]+\.svg)\)/.exec(readme) ?? [];
  const svg = readFileSync(join(import.meta.dirname, '..', path), 'utf8');
  for (const words of ['hello from build-', 'onejob status', 'busy', 'free', '1 waiting', 'onejob doctor'])
    expect(svg).toContain(words);
  expect(svg).not.toContain(hostname());
  expect(svg).not.toContain(import.meta.dirname);
});
