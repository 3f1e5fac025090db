/** What is built for a recipe, and what makes it another image. */

import { describe, expect, test } from 'vitest';
import { serviceTypes } from '../ci/types.ts';
import { basesOf, buildPlan, type Ground, type ImageOrder, imageLabels, readTemplates, recipeOf, withOwner } from './plan.ts';

const templates = readTemplates();
const agent = { type: 'azure-pipelines', version: '5.278.0', from: 'https://example.org/agent.tar.gz', sha256: 'ab'.repeat(32) };
const wish: ImageOrder = { type: 'azure-pipelines', base: 'ubuntu:24.04', packages: ['jq', 'git'], dockerfile: null };
const ground: Ground = { bases: ['sha256:1'], agent, owner: 'o1' };
const planOf = (more: Partial<ImageOrder> = {}, on: Partial<Ground> = {}) =>
  buildPlan({ ...wish, ...more }, { ...ground, ...on }, templates);

describe('layers', () => {
  test('come in the order of what changes least: Dockerfile, packages, agent', () => {
    const plan = planOf({ base: null, dockerfile: 'FROM debian:12\n' });
    expect(plan?.layers.map(({ what }) => what)).toEqual(['your Dockerfile', 'packages', 'agent']);
    expect(plan?.layers.map(({ args }) => args)).toEqual([
      {},
      { OWNER: 'o1', PACKAGES: 'git jq' },
      { OWNER: 'o1', AGENT_VERSION: '5.278.0', AGENT_TYPE: 'azure-pipelines' },
    ]);
  });

  test('are left out where nothing asks for them; without any the base is the image', () => {
    expect(planOf({ packages: [] })?.layers.map(({ what }) => what)).toEqual(['agent']);
    expect(planOf({}, { agent: null })?.layers.map(({ what }) => what)).toEqual(['packages']);
    expect(planOf({ packages: [] }, { agent: null })).toBeNull();
  });
});

test('what a mounted agent needs is looked after on every base that config names', () => {
  const plan = planOf({ type: 'buildkite' }, { agent: null });
  expect(plan?.layers.map(({ what }) => what)).toEqual(['packages', 'needs']);
  expect(planOf({ type: 'buildkite', packages: [] }, { agent: null })?.layers[0]?.args).toEqual({ OWNER: 'o1' });
});

describe('the name', () => {
  const named = planOf()?.reference;

  test('has the type of the service and the beginning of the hash', () => {
    expect(named).toMatch(/^onejob\/azure-pipelines:[0-9a-f]{12}$/);
    expect(planOf()?.hash.startsWith(named?.split(':')[1] ?? '-')).toBe(true);
    expect(planOf()?.labels).toMatchObject({ [imageLabels.owner]: 'o1', [imageLabels.base]: 'ubuntu:24.04' });
  });

  test('is the same for the same image, for any owner and any order of packages', () => {
    expect(planOf({ packages: ['git', 'jq', 'git'] }, { owner: 'o2' })?.reference).toBe(named);
    // The same base by another name.
    expect(planOf({ base: 'mirror.example.org/ubuntu:24.04' })?.reference).toBe(named);
    expect(planOf({}, { agent: { ...agent, from: 'https://mirror.example.org/a.tar.gz' } })?.reference).toBe(named);
  });

  test.each([
    ['another base', {}, { bases: ['sha256:2'] }],
    ['another package', { packages: ['jq'] }, {}],
    ['another Dockerfile', { base: null, dockerfile: 'FROM ubuntu:24.04\n' }, {}],
    ['a newer agent', {}, { agent: { ...agent, version: '5.279.0' } }],
    ['another file of the same version', {}, { agent: { ...agent, sha256: 'cd'.repeat(32) } }],
    ['another place without a checksum', {}, { agent: { ...agent, sha256: null } }],
  ] as const)('is another with %s', (_, more, on) => {
    expect(planOf(more, on)?.reference).not.toBe(named);
  });

  test('is another when a template is', () => {
    const other = buildPlan(wish, ground, { ...templates, packages: `${templates.packages}# newer\n` });
    expect(other?.reference).not.toBe(named);
  });
});

test('a recipe is the same whatever agent and base are published', () => {
  expect(planOf({}, { bases: ['sha256:2'], agent: { ...agent, version: '6.0.0' } })?.recipe).toBe(recipeOf(wish));
  expect(recipeOf({ ...wish, packages: ['git', 'jq'] })).toBe(recipeOf(wish));
  expect(recipeOf({ ...wish, base: 'ubuntu:22.04' })).not.toBe(recipeOf(wish));
  expect(recipeOf({ ...wish, type: 'own-queue' })).not.toBe(recipeOf(wish));
});

test.each([
  ['FROM debian:12\nRUN true', ['debian:12']],
  [
    '# syntax\nARG V=1\nfrom --platform=linux/amd64 golang:1 AS build\nFROM build\nFROM Debian AS x\nFROM debian:12',
    ['golang:1', 'Debian', 'debian:12'],
  ],
  ['ARG BASE\nFROM ${BASE}\nFROM scratch', []],
  ['FROM a\nRUN echo \\\n  FROM b', ['a']],
])('what a Dockerfile is built on: %j', (text, bases) => {
  expect(basesOf(text)).toEqual(bases);
});

test('every stage of a Dockerfile is marked as the owner’s, and nothing else is changed', () => {
  const text = 'FROM a AS one\r\nRUN echo \\\n  FROM b\n\nfrom one\n';
  expect(withOwner(text, 'o1')).toBe(
    'FROM a AS one\nLABEL io.onejob.owner=o1\nRUN echo \\\n  FROM b\n\nfrom one\nLABEL io.onejob.owner=o1\n',
  );
});

test('a template says what it is for, and needs nothing but its arguments', () => {
  const { packages, agent, needs } = templates;
  expect(Object.keys(needs).sort()).toEqual(
    ['engine', ...serviceTypes.flatMap(({ type, agent: kind }) => (kind === 'mounted' ? [type] : []))].sort(),
  );
  for (const text of [packages, agent, ...Object.values(needs)]) {
    if (text === undefined) continue;
    expect(text).toMatch(/^# .*\n(?:#.*\n)*# +docker build -f /);
    const declared = [...text.matchAll(/^ARG (\w+)/gm)].map(([, name]) => name);
    const used = [...text.matchAll(/\$\{([A-Z_]+)\}/g)].map(([, name]) => name);
    expect(used.filter((name) => !declared.includes(name))).toEqual([]);
  }
});
