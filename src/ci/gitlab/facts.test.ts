import { describe, expect, it } from 'vitest';
import { testPool } from '../../../test/kit/buildkite-manager.ts';
import type { TrustConfig } from '../../config/config.ts';
import { decideTrust } from '../kit/trust.ts';
import { jobFacts } from './facts.ts';
import { givenJob } from './wire.ts';

const usual: Readonly<Record<string, string>> = {
  CI_PIPELINE_ID: '7',
  CI_PIPELINE_SOURCE: 'push',
  CI_JOB_URL: 'https://git.example/acme/team/app/-/jobs/1',
};
const merge = {
  CI_PIPELINE_SOURCE: 'merge_request_event',
  CI_MERGE_REQUEST_IID: '12',
  CI_MERGE_REQUEST_SOURCE_BRANCH_NAME: 'feature',
  CI_MERGE_REQUEST_SOURCE_PROJECT_URL: 'https://git.example/acme/team/app',
  CI_MERGE_REQUEST_PROJECT_URL: 'https://git.example/acme/team/app',
};
const head = { ref: 'refs/merge-requests/12/head', ref_type: 'branch' };

interface Given {
  /** Of the project. */
  readonly path?: string;
  readonly git?: object;
  readonly set?: Readonly<Record<string, string>>;
  /** Variables of the pipeline, behind those of the server. */
  readonly more?: Readonly<Record<string, string>>;
}

function facts({ path = 'acme/team/app', git = {}, set = {}, more = {} }: Given) {
  const variables = [...Object.entries({ ...usual, ...set }), ...Object.entries(more)].map(([key, value]) => ({ key, value }));
  return jobFacts(
    givenJob.parse({
      id: 1,
      token: 'glcbt-1',
      variables,
      job_info: { name: 'test', project_full_path: path },
      git_info: {
        repo_url: 'https://gitlab-ci-token:glcbt-1@git.example/acme/team/app.git',
        ref: 'main',
        ref_type: 'branch',
        sha: 'a'.repeat(40),
        ...git,
      },
    }),
  );
}

const decide = (given: Given, trust: Partial<TrustConfig> = {}) =>
  decideTrust(facts(given), { ...testPool().trust, forks: 'run-without-secrets', others: 'run-without-secrets', ...trust });

it('tells a job’s project, and nothing of its token', () => {
  const found = facts({});
  expect(found).toMatchObject({
    organisation: 'acme/team',
    pipeline: 'app',
    branch: 'main',
    tag: null,
    source: 'webhook',
    reason: 'push',
    build: '7',
    repository: 'https://git.example/acme/team/app.git',
    link: usual.CI_JOB_URL,
    title: 'test',
    pullRequest: null,
  });
  expect(JSON.stringify(found)).not.toContain('glcbt-');
});

describe('is trusted:', () => {
  it.each<[string, Given, Partial<TrustConfig>]>([
    ['a branch', {}, {}],
    ['a branch that is named', {}, { pipelines: ['acme/team/app'], branches: ['main'] }],
    [
      'a branch that a pattern names, started by hand: the server finds the commit',
      { set: { CI_PIPELINE_SOURCE: 'web' } },
      { pipelines: ['acme/team/app'], branches: ['m*'] },
    ],
    ['a tag that is named', { git: { ref: 'v1', ref_type: 'tag' } }, { pipelines: ['acme/team/app'], tags: ['v*'] }],
    ['a project that is named', {}, { pipelines: ['acme/team/app'], repositories: ['git.example/acme/**'] }],
    ['a source that is named', { set: { CI_PIPELINE_SOURCE: 'schedule' } }, { sources: ['schedule'] }],
    ['a merge request within the project', { git: head, set: merge }, {}],
    [
      'a merge request within the project, of a branch that is named',
      { git: head, set: merge },
      { repositories: ['git.example/acme/**'], branches: ['feature'] },
    ],
    [
      'a pipeline that another project started, where that is allowed',
      { set: { CI_PIPELINE_SOURCE: 'pipeline' } },
      { triggered: 'trust' },
    ],
  ])('%s', (_, given, trust) => expect(decide(given, trust)).toEqual({ kind: 'trusted' }));
});

describe('is untrusted:', () => {
  it.each<[string, Given, Partial<TrustConfig>, string]>([
    ['another branch', { git: { ref: 'x' } }, { pipelines: ['acme/team/app'], branches: ['main'] }, 'its branch x does not match'],
    [
      'a tag with the name of a branch',
      { git: { ref: 'main', ref_type: 'tag' } },
      { pipelines: ['acme/team/app'], branches: ['main'] },
      'its tag main',
    ],
    [
      'a fork',
      { git: head, set: { ...merge, CI_MERGE_REQUEST_SOURCE_PROJECT_URL: 'https://git.example/mallory/app' } },
      {},
      'mallory/app',
    ],
    ['a merge request of nobody knows where', { git: head }, {}, 'does not say which repository'],
    [
      'a fork that claims to be the project',
      {
        git: head,
        set: { ...merge, CI_MERGE_REQUEST_SOURCE_PROJECT_URL: 'https://git.example/mallory/app' },
        more: { CI_MERGE_REQUEST_SOURCE_PROJECT_URL: 'https://git.example/acme/team/app' },
      },
      {},
      'does not say which repository',
    ],
    [
      'a fork with an empty number',
      { git: head, set: { ...merge }, more: { CI_MERGE_REQUEST_SOURCE_PROJECT_URL: '' } },
      {},
      'does not say',
    ],
    ['a pull request of another forge', { set: { CI_EXTERNAL_PULL_REQUEST_IID: '3' } }, {}, 'pull request 3'],
    ['one of another project', {}, { pipelines: ['acme/app'] }, 'its pipeline acme/team/app does not match'],
    ['another source', {}, { sources: ['schedule'] }, 'the source of its build, webhook, does not match'],
    ['two sources', { more: { CI_PIPELINE_SOURCE: 'schedule' } }, { sources: ['schedule'] }, 'does not say what created'],
    ['a pipeline that another project started', { set: { CI_PIPELINE_SOURCE: 'pipeline' } }, {}, 'another build triggered it'],
    [
      'one that says that none did',
      { set: { CI_PIPELINE_SOURCE: 'trigger' }, more: { CI_PIPELINE_SOURCE: 'push' } },
      {},
      'triggered it',
    ],
    ['a ref that nobody can read', { git: { ref: 'a\u0000b' } }, {}, 'may belong to a fork'],
  ])('%s', (_, given, trust, why) => {
    expect(decide(given, trust)).toEqual({ kind: 'untrusted', why: expect.stringContaining(why) });
  });
});

describe('a fork, with forks: refuse, others: refuse, branches: [main]', () => {
  const rules: Partial<TrustConfig> = { forks: 'refuse', others: 'refuse', branches: ['main'] };
  const at = (path: string, given: Given = {}) => {
    const git = { repo_url: `https://gitlab-ci-token:x@git.example/${path}.git`, ...given.git };
    return { ...given, path, git };
  };
  const fork = 'https://git.example/evil/app';
  const own = { ...merge, CI_MERGE_REQUEST_SOURCE_BRANCH_NAME: 'main', CI_MERGE_REQUEST_SOURCE_PROJECT_URL: fork };

  it.each<[string, Given, Partial<TrustConfig>]>([
    ['merge request, run in the target', at('acme/team/app', { git: head, set: own }), {}],
    ['merge request, run in the fork', at('evil/app', { git: head, set: own }), {}],
    [
      'merge request, run in the fork, whose target is doubled',
      at('evil/app', { git: head, set: own, more: { CI_MERGE_REQUEST_PROJECT_URL: fork } }),
      {},
    ],
    [
      'merge request, run in the fork, whose target is emptied',
      at('evil/app', { git: head, set: own, more: { CI_MERGE_REQUEST_PROJECT_URL: '' } }),
      {},
    ],
    [
      'merge request, run in the fork, without a word about its target',
      at('evil/app', { git: head, set: { ...own, CI_MERGE_REQUEST_PROJECT_URL: '' } }),
      {},
    ],
    [
      'merge request, run in the fork, whose number is emptied',
      at('evil/app', { set: { ...own, CI_MERGE_REQUEST_IID: '' } }),
      { repositories: ['**'] },
    ],
    ['push to its own main', at('evil/app'), {}],
    ['push to its own main, with a bare name', at('evil/app'), { pipelines: ['app'] }],
    ['push to its own main, with the name of the project', at('evil/app'), { pipelines: ['acme/team/app'] }],
  ])('is refused: %s', (_, given, more) => {
    expect(decide(given, { ...rules, ...more })).toMatchObject({ kind: 'refused' });
  });
});
