import { expect, it } from 'vitest';
import { checkGlob, globMatcher } from './globs.ts';

const cases: [pattern: string, path: string, matches: boolean][] = [
  ['dist', 'dist/a/b.js', true],
  ['dist/', 'dist/.hidden/b', true],
  ['./dist', 'dist', true],
  ['dist', 'src/dist/a', false],
  ['**/*.log', 'a.log', true],
  ['**/*.log', 'x/.y/a.log', true],
  ['*.log', 'x/a.log', false],
  ['*', '.dot', false],
  ['*', '.dot/file', false],
  ['?dot', '.dot', false],
  ['[.]dot', '.dot', false],
  ['dist/*', 'dist/.dot', false],
  ['.*', '.dot', true],
  ['.d?t', '.dot', true],
  ['.dot', '.dot/file', true],
  ['*', 'folder/.dot', true],
  ['*', 'folder/file', true],
  ['.', 'any/thing', true],
  ['**', '.a/.b', true],
  ['report-{a,b}.xml', 'report-b.xml', true],
  ['report-{a,b}.xml', 'report-c.xml', false],
  ['odd[1].txt', 'odd[1].txt', true],
  ['odd[1].txt', 'odd1.txt', true],
  ['!a', 'b', false],
];
it.each(cases)('%s against %s: %s', (pattern, path, matches) => {
  expect(globMatcher([pattern])(path)).toBe(matches);
});

it.each(['', '/etc/passwd', '../up', 'a/../../b', 'a\0', '!(dist)', '{1..3}', '{a,b}'.repeat(30), 'a'.repeat(1_025)])(
  'refuses %j',
  (pattern) => {
    expect(() => checkGlob(pattern)).toThrow(/Cannot collect/);
  },
);
