import { expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { expandName, expandRecipe, shortHost, templateProblem } from './template.ts';

const parts = { host: 'box', pool: 'lab', n: 3 };

it.each([
  ['{host}-{pool}-{n}', 'box-lab-3'],
  ['gpuci.{1..}', 'gpuci.3'],
  ['gpuci.{0..}', 'gpuci.2'],
  ['gpuci.{17..}', 'gpuci.19'],
  ['plain', 'plain'],
])('%s becomes %s', (template, name) => expect(expandName(template, parts)).toBe(name));

it('{1..} counts from 1', () => expect(expandName('{1..}', { ...parts, n: 1 })).toBe('1'));

it.each([
  ['{nn}', 'unknown placeholder {nn}'],
  ['{}', 'unknown placeholder {}'],
  ['{..}', 'unknown placeholder {..}'],
  ['a{n', 'an unmatched brace'],
  ['a b', 'must not contain " "'],
  ['a/b', 'must not contain "/"'],
  ['-a', 'must begin with a letter or a digit'],
])('%s cannot be used', (template, why) => expect(templateProblem(template)).toContain(why));

it('{name} stands in environment, volumes and caches; other braces stay', async () => {
  using folder = new Folder();
  const { config } = await folder.load(
    'pools:\n  lab: { env: { A: "{name}", B: "{\\"n\\": 1}" }, volumes: ["/v/{name}:/in/{name}"], caches: ["/c/{name}:/root"] }\n',
  );
  const [pool] = config.pools;
  expect(pool && expandRecipe(pool, 'lab-1')).toMatchObject({
    env: { A: 'lab-1', B: '{"n": 1}' },
    mounts: [
      { host: '/v/lab-1', container: '/in/lab-1', readOnly: true },
      { host: '/c/lab-1', container: '/root', readOnly: false },
    ],
  });
});

it('a host name becomes a part of a name', () => {
  expect(shortHost('gpu01.cluster.example.org')).toBe('gpu01');
  expect(shortHost('a-very-long-host-name-of-some-cloud')).toBe('a-very-long-host-name-of');
  expect(shortHost('_')).toBe('host');
});
