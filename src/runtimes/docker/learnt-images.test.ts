/** What a pool learns from a list of images that a job has left, whatever that says. */
import { expect, it } from 'vitest';
import { type Learnt, matcher, mayRenew, mustAsk, noted, pulledNames } from './learnt-images.ts';

const id = (digit: string) => `sha256:${digit.repeat(64)}`;
const listOf = (Repositories: unknown) => JSON.stringify({ Repositories });
const any = () => true;

it('an image is learnt that has a digest, which neither a built one nor one that was there from the start has', () => {
  const text = listOf({
    node: { 'node:22': id('1'), [`node@${id('a')}`]: id('1') },
    mine: { 'mine:1': id('2') },
    postgres: { 'postgres:16': id('3'), 'postgres:17': id('4'), [`postgres@${id('b')}`]: id('4') },
    redis: { [`redis@${id('c')}`]: id('5') },
  });
  expect(pulledNames(text, any)).toEqual(['node:22', 'postgres:17']);
});

it.each([
  '',
  'null',
  '[]',
  '{"Repositories": null}',
  '{"Repositories": []}',
  '{"Repositories": {"node": "node:22"}}',
  listOf({ node: { 'node:22': 1, 'node@x': 1 } }),
  listOf({ node: { 'node:22': id('1'), 'node@x': id('1') } }).slice(0, -1),
  '['.repeat(200_000),
])('nothing is learnt from %.60s', (text) => {
  expect(pulledNames(text, any)).toEqual([]);
});

it('one job teaches 20 names at most, and of a long list the first 200 are looked at', () => {
  const many = (count: number) => Array.from({ length: count }, (_, at) => [`a:${at}`, id('1')] as const);
  const text = listOf({ a: Object.fromEntries([...many(1_000), [`a@${id('a')}`, id('1')]]) });
  expect(pulledNames(text, any)).toHaveLength(20);
  const seen: string[] = [];
  pulledNames(text, (name) => seen.push(name) < 0);
  expect(seen).toHaveLength(200);
});

const fits = matcher(['docker.io/library/*', 'ghcr.io/acme/ci', 'r.example:5000/**']);

it.each(['node:22', 'docker.io/node:22', 'index.docker.io/library/node:22', 'ghcr.io/acme/ci:3', 'r.example:5000/a/b/c:1'])(
  'a pattern matches %s',
  (name) => {
    expect(fits(name)).toBe(true);
  },
);

it.each([
  'acme/node:22',
  'ghcr.io/library/node:22',
  'ghcr.io/acme/ci/other:3',
  'ghcr.io/acme/cider:3',
  'r.example/a:1',
  'evil.example/docker.io/library/node:22',
  'docker.io.evil.example/library/node:22',
  'onejob/engine:1',
  'docker.io/library/onejob:1',
  'node:22; rm -rf /',
  '--root:1',
  '../library/node:22',
  'docker.io/library/../evil/node:22',
  'node:22\nevil',
  'Node:22',
  'nodе:22',
  `${'a'.repeat(300)}:1`,
  '__proto__',
  '',
])('no pattern matches %j', (name) => {
  expect(fits(name)).toBe(false);
});

const one = (name: string, last: number, more: Partial<Learnt> = {}): Learnt => ({
  name,
  first: 1,
  last,
  asked: 0,
  image: null,
  problem: null,
  ...more,
});

it('what was pulled last comes first, what was known stays known, and 100 names are remembered', () => {
  const image = { reference: `a@${id('a')}`, size: 5 };
  const images = noted([one('b:1', 3), one('a:1', 2, { image, asked: 2 })], ['a:1', 'c:1'], 9);
  expect(images).toEqual([one('a:1', 9, { image, asked: 2 }), one('c:1', 9, { first: 9 }), one('b:1', 3)]);
  const all = Array.from({ length: 120 }, (_, at) => `n:${at}`);
  expect(noted(images, all, 10).map(({ name }) => name)).toEqual(all.slice(0, 100));
});

const hour = 3_600_000;

it.each([
  [hour, true],
  [hour - 1, false],
  [-1, true],
])('%d ms after the last one a new set is thought about: %s', (after, may) => {
  const now = { at: 5, images: [one('a:1', 1)], set: [], pulled: [], problem: null };
  expect(mayRenew(now, 5 + after)).toBe(may);
  expect(mayRenew({ ...now, images: [] }, 5 + after)).toBe(false);
});

it('a registry is asked for what a job has pulled since, and for the rest once a day', () => {
  const asked = 100;
  expect(mustAsk(one('a:1', asked + 1, { asked }), asked + 2)).toBe(true);
  expect(mustAsk(one('a:1', asked - 1, { asked }), asked + 24 * hour - 1)).toBe(false);
  expect(mustAsk(one('a:1', asked - 1, { asked }), asked + 24 * hour)).toBe(true);
  expect(mustAsk(one('a:1', 0, { asked }), asked - 1)).toBe(true);
});

it('an image that jobs write in several ways is one', () => {
  const images = noted([one('a:1', 1)], ['docker.io/library/a:1', 'docker.io/a:1'], 2);
  expect(images.map(({ name, last }) => [name, last])).toEqual([['a:1', 2]]);
});
