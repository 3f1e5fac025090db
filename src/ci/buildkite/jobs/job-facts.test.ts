import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { anyCharacter } from '../../../../test/support/any-character.ts';
import { jobFacts } from './job-facts.ts';

const id = '0190a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b';
const env = {
  BUILDKITE_ORGANIZATION_SLUG: 'acme',
  BUILDKITE_PIPELINE_SLUG: 'app',
  BUILDKITE_BRANCH: 'feature/x',
  BUILDKITE_TAG: '',
  BUILDKITE_REPO: 'git@github.com:acme/app.git',
  BUILDKITE_PULL_REQUEST: 'false',
  BUILDKITE_PULL_REQUEST_REPO: '',
  BUILDKITE_BUILD_NUMBER: '17',
  BUILDKITE_BUILD_URL: 'https://buildkite.com/acme/app/builds/17',
  BUILDKITE_COMMIT: '0123abcd',
  BUILDKITE_SOURCE: 'webhook',
  BUILDKITE_LABEL: ':julia: test',
  BUILDKITE_MESSAGE: 'Fix it\n\nAnd more',
};

it('what the service says of a job', () => {
  expect(jobFacts({ id, env })).toEqual({
    id,
    organisation: 'acme',
    pipeline: 'app',
    branch: 'feature/x',
    tag: null,
    repository: 'git@github.com:acme/app.git',
    pullRequest: null,
    buildId: null,
    build: '17',
    buildUrl: `https://buildkite.com/acme/app/builds/17#${id}`,
    commit: '0123abcd',
    source: 'webhook',
    refspec: null,
    triggeredBy: null,
    hidden: null,
    title: ':julia: test',
  });
});

it('what it does not say is not made up', () => {
  const { id: _, title, pullRequest, ...rest } = jobFacts({ id, env: {} });
  expect(new Set(Object.values(rest))).toEqual(new Set([null]));
  expect(title).toBe('a job without a name');
  // No answer is not the answer "none".
  expect(pullRequest).toEqual({ number: null, repository: null });
});

describe('pull requests', () => {
  const of = (more: Record<string, string>) => jobFacts({ id, env: { ...env, ...more } }).pullRequest;
  it.each([
    ['false', '', null],
    ['', '', { number: null, repository: null }],
    ['false', 'https://x/y', { number: null, repository: 'https://x/y' }],
    ['false', 'https://x/\u0000y', { number: null, repository: null }],
    ['12', 'https://x/y', { number: '12', repository: 'https://x/y' }],
    ['12', '', { number: '12', repository: null }],
    ['true', 'https://x/y', { number: null, repository: 'https://x/y' }],
    ['12', 'https://x/\u0000y', { number: '12', repository: null }],
    ['12', `https://x/${'y'.repeat(2048)}`, { number: '12', repository: null }],
  ])('%j of %j', (number, repository, expected) => {
    expect(of({ BUILDKITE_PULL_REQUEST: number, BUILDKITE_PULL_REQUEST_REPO: repository })).toEqual(expected);
  });
});

describe('titles', () => {
  const of = (more: Record<string, string>) => jobFacts({ id, env: { BUILDKITE_COMMAND: 'make\nmake test', ...more } }).title;
  it.each([
    [{ BUILDKITE_LABEL: 'test' }, 'test'],
    [{ BUILDKITE_LABEL: ' ' }, 'make'],
    [{ BUILDKITE_MESSAGE: 'Fix it' }, 'Fix it'],
    [{ BUILDKITE_LABEL: 'x https://me:pw@h/p' }, 'x https://h/p'],
    [{}, 'make'],
    [{ BUILDKITE_COMMAND: '', BUILDKITE_MESSAGE: '\n\n the first\nline' }, 'the first'],
    [{ BUILDKITE_LABEL: '\u001b[31mred\u0007 \u202eback' }, '[31mred   back'],
    [{ BUILDKITE_LABEL: 'é'.repeat(300) }, `${'é'.repeat(199)}…`],
  ])('%j', (more, title) => expect(of(more)).toBe(title));
});

it('an invalid address is not a link', () => {
  for (const url of ['javascript:alert(1)', 'https://x/"onclick', 'https://x/ y', '//x']) {
    expect(jobFacts({ id, env: { BUILDKITE_BUILD_URL: url } }).buildUrl).toBeNull();
  }
  const { buildUrl } = jobFacts({ id: '#"', env: { BUILDKITE_BUILD_URL: 'https://x/y' } });
  expect(buildUrl).toBe('https://x/y');
});

it('whatever the environment holds, all is one line, bounded, and whole or absent', () => {
  const names = Object.keys(env);
  fc.assert(
    fc.property(
      fc.dictionary(fc.constantFrom(...names, '__proto__'), fc.string({ unit: anyCharacter, maxLength: 3000 })),
      (found) => {
        const facts = jobFacts({ id, env: found });
        for (const [name, key] of [
          ['BUILDKITE_ORGANIZATION_SLUG', 'organisation'],
          ['BUILDKITE_PIPELINE_SLUG', 'pipeline'],
          ['BUILDKITE_BRANCH', 'branch'],
          ['BUILDKITE_REPO', 'repository'],
        ] as const) {
          expect([null, found[name]]).toContain(facts[key]);
        }
        for (const text of Object.values({
          ...facts,
          ...facts.pullRequest,
          pullRequest: null,
          triggeredBy: facts.triggeredBy?.pipeline ?? null,
        })) {
          if (text === null) continue;
          expect(text.length).toBeLessThanOrEqual(2200);
          expect(text).not.toMatch(/[\p{Cc}\u2028\u2029]/u);
        }
        expect(facts.title).not.toBe('');
      },
    ),
  );
});
