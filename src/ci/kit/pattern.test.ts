import { expect, it } from 'vitest';
import { matches, matchesPipeline } from './repository.ts';

it.each([
  [['main'], 'main', true],
  [['main'], 'main2', false],
  [['main'], 'Main', false],
  [['*'], 'main', true],
  [['*'], 'feature/x', false],
  [['**'], 'feature/.x/y', true],
  [['release/*'], 'release/1', true],
  [['release/*'], 'release/1/rc', false],
  [['release/**'], 'release/1/rc', true],
  [['release/**'], 'release', false],
  [['v[0-9]*'], 'v1.2', true],
  [['{main,dev}'], 'dev', true],
  [['a.b'], 'axb', false],
  [['dev', 'main'], 'main', true],
  [['!main'], 'dev', false],
  [[], 'main', false],
  [[''], 'main', false],
  [['**'], '', false],
])('%j and the branch %s: %s', (patterns, branch, expected) => {
  expect(matches(patterns, branch)).toBe(expected);
});

it.each([
  [['app'], true],
  [['app-*', 'a*'], true],
  [['acme/app'], true],
  [['acme/*'], true],
  [['*/app'], true],
  [['other/app'], false],
  [['ap'], false],
  [['acme'], false],
  [['**'], true],
])('%j and the pipeline acme/app: %s', (patterns, expected) => {
  expect(matchesPipeline(patterns, 'acme', 'app')).toBe(expected);
});
