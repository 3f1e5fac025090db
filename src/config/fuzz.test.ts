import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { configCheck, configShow } from './explain.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const example = readFileSync(new URL('../../docs/examples/eighteen-agents.yml', import.meta.url), 'utf8');
const pieces = [
  '',
  ' ',
  '\n',
  '\t',
  '{',
  '}',
  '[',
  ']',
  ':',
  '"',
  "'",
  '*a',
  '&a ',
  '- ',
  '!x ',
  '|',
  '>',
  '#',
  '-1',
  'null',
  '~',
  '\0',
  '\uFEFF',
  '?',
  '<<: ',
];

it('a damaged file is answered with problems or a config, never with a crash, and each problem has a line', async () => {
  const damage = fc.array(fc.tuple(fc.nat(example.length), fc.nat(12), fc.constantFrom(...pieces)), { minLength: 1, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(damage, async (edits) => {
      let text = example;
      for (const [at, length, piece] of edits) text = text.slice(0, at) + piece + text.slice(at + length);
      const checked = await folder.load(text);
      for (const problem of checked.errors) expect(problem.line).not.toBeNull();
      expect(configCheck(checked).ok).toBe(checked.errors.length === 0);
      expect(configShow(checked).length).toBeGreaterThan(10);
    }),
    { numRuns: 200 },
  );
});

it('any value at any key is answered so too', async () => {
  const keys = ['pools', 'defaults', 'services', 'secrets', 'include', 'disk', 'state_dir', 'log_limit', 'on_stop'];
  const inner = [
    'a',
    'type',
    'token',
    'key',
    'file',
    'env',
    'image',
    'devices',
    'tags',
    'volumes',
    'ulimits',
    'agents',
    'name',
    'tmpfs',
    'service',
  ];
  const { any } = fc.letrec((tie) => ({
    any: fc.oneof({ maxDepth: 4 }, tie('leaf'), tie('list'), tie('map')),
    leaf: fc.oneof(fc.string(), fc.integer(), fc.double(), fc.boolean(), fc.constant(null)),
    list: fc.array(tie('any'), { maxLength: 3 }),
    map: fc.dictionary(fc.constantFrom(...inner), tie('any'), { maxKeys: 4 }),
  }));
  await fc.assert(
    fc.asyncProperty(fc.dictionary(fc.constantFrom(...keys), any, { minKeys: 1 }), async (content) => {
      const checked = await folder.load(JSON.stringify(content));
      for (const problem of checked.errors) expect(problem.line).not.toBeNull();
      configShow(checked);
    }),
    { numRuns: 200 },
  );
});
