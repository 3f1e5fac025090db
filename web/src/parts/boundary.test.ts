import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test } from 'vitest';
import { Boundary } from './boundary.tsx';

test('a page that cannot be drawn says so, and offers to load it again', () => {
  const boundary = new Boundary({ children: null });
  boundary.state = Boundary.getDerivedStateFromError(new Error('words[state] is <undefined>'));
  const shown = renderToStaticMarkup(boundary.render());
  expect(shown).toContain('cannot be shown: words[state] is &lt;undefined&gt;');
  expect(shown).toMatch(/<button[^>]*>Load it again<\/button>/);
});
