/** The house has one direction: no circles, no import that runs up. docs/architecture.md prints the floors. */
import { resolve } from 'node:path';
import { expect, test } from 'vitest';
import { floors } from './house/floors.ts';
import { parse, readSource, roomOf } from './house/graph.ts';
import { mutualPairs, violationsOf } from './house/rules.ts';

const root = resolve(import.meta.dirname, '..');
const files = readSource(root);
const imports = files.flatMap((file) => file.imports);

const importsIn = (path: string, text: string) => parse(path, text).imports;

test('imports of values, of types and later ones are found', () => {
  const text = [
    "import { a } from './a.ts';",
    "import type { B } from '../b.ts';",
    "import { type C } from './c.ts';",
    "export { d } from './d.ts';",
    "export type * from './e.ts';",
    "const f = await import('./f.ts');",
    "type G = import('./g.ts').G;",
    "import { readFileSync } from 'node:fs';",
  ].join('\n');
  expect(importsIn('room/file.ts', text).map(({ to, kind }) => [to, kind])).toEqual([
    ['room/a.ts', 'value'],
    ['b.ts', 'type'],
    ['room/c.ts', 'type'],
    ['room/d.ts', 'value'],
    ['room/e.ts', 'type'],
    ['room/f.ts', 'lazy'],
    ['room/g.ts', 'type'],
  ]);
});

test('circles of any kind, imports that run up and pairs of rooms are found', () => {
  const circle = [
    ...importsIn('low/a.ts', "import type { B } from '../high/b.ts'"),
    ...importsIn('high/b.ts', "const c = () => import('./c.ts')"),
    ...importsIn('high/c.ts', "import { a } from '../low/a.ts'"),
  ];
  expect(violationsOf(circle, ['low', 'high'])).toEqual({
    circles: [['high/b.ts', 'high/c.ts', 'low/a.ts']],
    up: ['low/a.ts → high/b.ts'],
  });
  expect(mutualPairs(circle)).toEqual(['high low']);
  expect(violationsOf(circle, ['low']).up, 'a room without a floor').toContain('low/a.ts → high/b.ts');
});

test('every room has its floor, once', () => {
  const rooms = new Set(files.map(({ path }) => roomOf(path)));
  expect([...floors].sort()).toEqual([...rooms].sort());
});

test('no file is in a circle, and no import runs up', () => {
  const { circles, up } = violationsOf(imports, floors);
  expect(circles).toEqual([]);
  expect(up).toEqual([]);
});
