import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { TrustConfig } from '../../../config/config.ts';
import { normalRepository } from '../../kit/repository.ts';
import { decideTrust, sourceRepository } from '../../kit/trust.ts';
import { type BuildkiteJobFacts, jobFacts } from './job-facts.ts';

const usual: TrustConfig = {
  forks: 'run-without-secrets',
  pipelines: null,
  branches: null,
  others: 'run-without-secrets',
  caches: 'none',
  image: null,
  network: 'internet',
  repositories: null,
  tags: null,
  sources: null,
  triggered: 'as-others',
  containers: 'refuse',
  oci_runtime: null,
};
const home = 'https://github.com/acme/app.git';
const branchBuild = {
  BUILDKITE_ORGANIZATION_SLUG: 'acme',
  BUILDKITE_PIPELINE_SLUG: 'app',
  BUILDKITE_BRANCH: 'main',
  BUILDKITE_COMMIT: 'a'.repeat(40),
  BUILDKITE_SOURCE: 'webhook',
  BUILDKITE_REPO: home,
  BUILDKITE_PULL_REQUEST: 'false',
  BUILDKITE_PULL_REQUEST_REPO: '',
};
const pullRequest = (repository: string, more: Record<string, string> = {}) => ({
  BUILDKITE_PULL_REQUEST: '12',
  BUILDKITE_PULL_REQUEST_REPO: repository,
  BUILDKITE_BRANCH: 'feature',
  ...more,
});
const fork = pullRequest('git://github.com/mallory/app.git');

function decide(env: Record<string, string>, trust: Partial<TrustConfig> = {}) {
  const given = Object.entries({ ...branchBuild, ...env }).filter(([, value]) => value !== 'absent');
  return decideTrust(jobFacts({ id: 'j', env: Object.fromEntries(given) }), { ...usual, ...trust });
}

describe('with nothing written', () => {
  it.each([
    ['a branch', {}],
    ['a pull request within the repository', pullRequest('git@github.com:acme/app.git')],
    ['one whose address is written otherwise', pullRequest('git://GitHub.com/Acme/App')],
  ])('%s is trusted', (_, env) => expect(decide(env)).toEqual({ kind: 'trusted' }));

  it.each([
    ['a fork', fork, 'it is pull request 12 from git://github.com/mallory/app.git, not from https://github.com/acme/app.git'],
    ['a fork with the name of a branch here', { ...fork, BUILDKITE_BRANCH: 'main' }, 'from git://github.com/mallory'],
    [
      'one of nobody knows where',
      pullRequest(''),
      'it is pull request 12, and the service does not say which repository it comes from',
    ],
    ['one of something strange', pullRequest('::'), 'it is pull request 12 from ::'],
    ['one to nobody knows where', { ...fork, BUILDKITE_REPO: 'absent' }, "the pipeline's own repository is unknown"],
    ['both unknown', { ...pullRequest('absent'), BUILDKITE_REPO: 'absent' }, 'does not say which repository it comes from'],
    ['both strange in the same way', { ...pullRequest('x'), BUILDKITE_REPO: 'x' }, 'it is pull request 12 from x'],
    [
      'a job of which nobody says whether it is one',
      { BUILDKITE_PULL_REQUEST: 'absent' },
      'it may be a pull request, and the service',
    ],
    ["a branch with its fork's name", { BUILDKITE_BRANCH: 'mallory:main' }, 'its branch "mallory:main" belongs to a fork'],
    ['a ref of a pull request', { BUILDKITE_BRANCH: 'refs/pull/12/head' }, 'belongs to a pull request, which may come from a fork'],
    ['a commit that is one', { BUILDKITE_COMMIT: 'refs/pull/12/head' }, 'its commit "refs/pull/12/head" belongs to a pull request'],
    ['one of GitLab', { BUILDKITE_COMMIT: 'merge-requests/12/head' }, 'its commit "merge-requests/12/head" belongs to a pull'],
    ['what is fetched', { BUILDKITE_REFSPEC: '+refs/heads/*:refs/heads/* +refs/pull/*/head:refs/pr' }, 'may belong to a pull'],
    ...[
      ...[
        "'refs/pull/7/head'",
        '"refs/pull/7/head"',
        'refs\\/pull/1/head',
        'refs/pul*:refs/heads/x*',
        '+refs/pull/1*/head:refs/x*',
      ],
      ...['refs/p*/1/head', 'refs//pull/1/head', '--upload-pack=touch', 'refs/tags/main', 'main', "refs/heads/'main'"],
    ].map((refspec): [string, Record<string, string>, string] => [
      `the refspec ${refspec}`,
      { BUILDKITE_REFSPEC: refspec },
      'is not a plain "refs/heads/…"',
    ]),
    ['an empty answer', { BUILDKITE_PULL_REQUEST: '' }, 'it may be a pull request, and the service does not say'],
    ['none, but of a fork', { ...fork, BUILDKITE_PULL_REQUEST: 'false' }, 'it may be a pull request from git://github.com/mallory'],
    ['an empty one of a fork', { ...fork, BUILDKITE_PULL_REQUEST: '' }, 'it may be a pull request from git://github.com/mallory'],
    [
      'none, of somewhere strange',
      { BUILDKITE_PULL_REQUEST_REPO: 'https://x/\u0000y' },
      'does not say which repository it comes from',
    ],
    ['a branch that is hidden', { BUILDKITE_BRANCH: `x${'y'.repeat(255)}` }, 'BUILDKITE_BRANCH is too long or contains invalid'],
    ['a tag that is hidden', { BUILDKITE_TAG: 'v'.repeat(256) }, 'BUILDKITE_TAG is too long or contains invalid'],
    ['a commit that is hidden', { BUILDKITE_COMMIT: 'refs/pull/1/head\u200b' }, 'BUILDKITE_COMMIT is too long or contains invalid'],
  ])('%s runs without secrets', (_, env, why) => {
    const verdict = decide(env);
    expect(verdict).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
    expect(verdict).toMatchObject({ why: expect.stringContaining('(rule "trust.forks: run-without-secrets").') });
    expect(decide(env, { forks: 'refuse' })).toMatchObject({
      kind: 'refused',
      why: expect.stringMatching(/^(?:its|it|BUILDKITE_\w+) .* \(rule "trust\.forks: refuse"\)\.$/),
    });
  });
});

describe('with patterns', () => {
  it.each<[string, Record<string, string>, Partial<TrustConfig>, string]>([
    ['another branch', { BUILDKITE_BRANCH: 'dev' }, { branches: ['main'] }, 'its branch dev does not match "trust.branches"'],
    ['no branch', { BUILDKITE_BRANCH: 'absent' }, { branches: ['**'] }, 'the service does not say which branch it belongs to'],
    ['another pipeline', {}, { pipelines: ['lib'] }, 'its pipeline acme/app does not match "trust.pipelines"'],
    ['another organisation', {}, { pipelines: ['other/app'] }, 'its pipeline acme/app does not match'],
    ['no organisation', { BUILDKITE_ORGANIZATION_SLUG: 'absent' }, { pipelines: ['app'] }, 'does not say which pipeline'],
    ['no pipeline', { BUILDKITE_PIPELINE_SLUG: '' }, { pipelines: ['*'] }, 'does not say which pipeline'],
    ['no pattern at all', {}, { branches: [] }, 'its branch main does not match'],
  ])('%s is not trusted', (_, env, trust, why) => {
    expect(decide(env, trust)).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
    const refused = decide(env, { ...trust, others: 'refuse' });
    expect(refused).toMatchObject({ kind: 'refused', why: expect.stringContaining('(rule "trust.others: refuse").') });
  });

  it('both must name the job', () => {
    const trust: Partial<TrustConfig> = { pipelines: ['acme/app'], branches: ['main', 'release/*'] };
    expect(decide({}, trust)).toEqual({ kind: 'trusted' });
    expect(decide({ BUILDKITE_BRANCH: 'release/1' }, trust)).toEqual({ kind: 'trusted' });
    expect(decide({ BUILDKITE_BRANCH: 'release/1/x' }, trust)).toMatchObject({ kind: 'untrusted' });
    expect(decide({ BUILDKITE_PIPELINE_SLUG: 'lib' }, trust)).toMatchObject({ kind: 'untrusted' });
  });

  it("a fork's branch has no say, its pipeline has", () => {
    const closed = { branches: ['main'], others: 'refuse' } as const;
    expect(decide(fork, closed)).toMatchObject({ kind: 'untrusted', why: expect.stringContaining('trust.forks') });
    expect(decide(fork, { pipelines: ['lib'], others: 'refuse' })).toMatchObject({ kind: 'refused' });
    expect(decide(fork, { pipelines: ['lib'] })).toMatchObject({ kind: 'untrusted' });
  });
});

describe('a build of a tag', () => {
  // The service sets the tag's name as the branch, too.
  const tagged = (name: string) => ({ BUILDKITE_BRANCH: name, BUILDKITE_TAG: name });

  it.each<[string, Partial<TrustConfig>]>([
    ['main', {}],
    ['main', { branches: ['main', 'release/**'] }],
    ['release/x', { branches: ['main', 'release/**'] }],
    ['release/x', { branches: ['**'], tags: ['v*'] }],
  ])('%s is not one of a branch with %j', (name, trust) => {
    const why = `its tag ${name} does not match "trust.tags" (rule "trust.others`;
    expect(decide(tagged(name), trust)).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
    expect(decide(tagged(name), { ...trust, others: 'refuse' })).toMatchObject({ kind: 'refused' });
  });

  it('is trusted where "tags" names it, by the other rules, too', () => {
    const trust = { branches: ['main'], tags: ['v*'] };
    expect(decide(tagged('v1.2'), trust)).toEqual({ kind: 'trusted' });
    expect(decide({ ...tagged('v1.2'), ...fork }, trust)).toMatchObject({ kind: 'untrusted' });
    expect(decide(tagged('v1.2'), { ...trust, pipelines: ['lib'] })).toMatchObject({ kind: 'untrusted' });
  });

  it('is not trusted where its commit was typed by hand, unless "sources" names that', () => {
    for (const BUILDKITE_SOURCE of ['ui', 'api', 'absent', 'new']) {
      const env = { ...tagged('v1.2'), BUILDKITE_SOURCE, BUILDKITE_COMMIT: 'evil' };
      const why = expect.stringContaining(
        'it was created by hand, and onejob cannot verify that its commit belongs to tag v1.2 ("trust.sources"',
      );
      for (const branches of [null, ['main']])
        expect(decide(env, { branches, tags: ['v*'] })).toMatchObject({ kind: 'untrusted', why });
    }
    const trust = { tags: ['v*'], sources: ['webhook', 'ui'] };
    expect(decide({ ...tagged('v1.2'), BUILDKITE_SOURCE: 'ui' }, trust)).toEqual({ kind: 'trusted' });
    expect(decide({ ...tagged('v1.2'), BUILDKITE_SOURCE: 'schedule' }, { tags: ['v*'] })).toEqual({ kind: 'trusted' });
  });

  it('is not trusted with a refspec, by anyone', () => {
    for (const [BUILDKITE_SOURCE, sources] of [
      ['webhook', null],
      ['ui', ['ui']],
    ] as const) {
      const env = { ...tagged('v1.2'), BUILDKITE_SOURCE, BUILDKITE_REFSPEC: '+refs/heads/evil:refs/tags/v1.2' };
      const why = expect.stringContaining(
        'onejob cannot verify that its refspec +refs/heads/evil:refs/tags/v1.2 belongs to tag v1.2',
      );
      expect(decide(env, { tags: ['v*'], sources })).toMatchObject({ kind: 'untrusted', why });
    }
  });
});

describe('where branches are named', () => {
  const trust = { branches: ['main'] };
  it.each([
    ['a short commit', { BUILDKITE_COMMIT: 'abc1234' }, 'that its commit abc1234 belongs to branch main'],
    ['another ref', { BUILDKITE_COMMIT: 'refs/heads/evil' }, 'that its commit refs/heads/evil belongs to branch main'],
    ['no commit', { BUILDKITE_COMMIT: 'absent' }, 'does not say which commit it builds'],
    // The agent does not look for the commit on the branch then.
    [
      'a commit behind a refspec',
      { BUILDKITE_REFSPEC: 'refs/heads/main' },
      'that its refspec refs/heads/main belongs to branch main',
    ],
    [
      'the last commit of another',
      { BUILDKITE_COMMIT: 'HEAD', BUILDKITE_REFSPEC: 'refs/heads/dev' },
      'that its refspec refs/heads/dev',
    ],
  ])('%s is not trusted', (_, env, why) => {
    expect(decide(env, trust)).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
    expect(decide({ ...env, BUILDKITE_BRANCH: 'feature' })).toEqual({ kind: 'trusted' });
  });

  it.each([
    { BUILDKITE_COMMIT: 'HEAD' },
    { BUILDKITE_COMMIT: 'b'.repeat(64) },
    { BUILDKITE_COMMIT: 'HEAD', BUILDKITE_REFSPEC: '+refs/heads/main' },
  ])('what the agent holds to its branch is: %j', (env) => expect(decide(env, trust)).toEqual({ kind: 'trusted' }));
});

describe('a build made by hand, where branches are named', () => {
  const trust = { branches: ['main', 'release/**'] };
  const own = pullRequest('git@github.com:acme/app.git', { BUILDKITE_BRANCH: 'main' });
  it.each<[string, Record<string, string>]>([
    ['names a branch that may not be there', { BUILDKITE_BRANCH: 'release/none' }],
    ['calls itself a pull request', own],
    ['calls itself one, of its last commit', { ...own, BUILDKITE_COMMIT: 'HEAD' }],
  ])('that %s is not trusted, unless "sources" names it', (_, env) => {
    for (const source of ['ui', 'api', 'absent', 'new']) {
      const why = expect.stringContaining('it was created by hand, and onejob cannot verify that its commit belongs to branch');
      expect(decide({ ...env, BUILDKITE_SOURCE: source }, trust)).toMatchObject({ kind: 'untrusted', why });
    }
    expect(decide({ ...env, BUILDKITE_SOURCE: 'ui' }, { ...trust, sources: ['ui'] })).toEqual({ kind: 'trusted' });
    expect(decide(env, trust)).toEqual({ kind: 'trusted' });
  });

  it.each<Record<string, string>>([{}, { BUILDKITE_BRANCH: 'release/1', BUILDKITE_COMMIT: 'HEAD' }])(
    'is trusted where the agent looks: %j',
    (env) => expect(decide({ ...env, BUILDKITE_SOURCE: 'ui' }, trust)).toEqual({ kind: 'trusted' }),
  );
});

it('only what the named sources made is trusted', () => {
  const trust = { sources: ['webhook', 'schedule'] };
  expect(decide({}, trust)).toEqual({ kind: 'trusted' });
  const why = 'the source of its build, api, does not match "trust.sources"';
  expect(decide({ BUILDKITE_SOURCE: 'api' }, trust)).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
  expect(decide({ BUILDKITE_SOURCE: 'absent' }, trust)).toMatchObject({ kind: 'untrusted' });
});

describe('a job that another build triggered', () => {
  const triggered = { BUILDKITE_SOURCE: 'trigger_job', BUILDKITE_TRIGGERED_FROM_BUILD_PIPELINE_SLUG: 'app' };
  it('is one of the others, since a job of a fork may have triggered it, unless the owner trusts such builds', () => {
    const verdict = decide(triggered);
    expect(verdict).toEqual({
      kind: 'untrusted',
      why:
        'The job runs without secrets, and without the caches of its pool: another build triggered it (of pipeline app), and the service does not say whether that build came from a fork ' +
        '(rule "trust.others: run-without-secrets"; "trust.triggered: trust" trusts such builds).',
    });
    expect(decide(triggered, { others: 'refuse' })).toMatchObject({
      kind: 'refused',
      why: expect.stringContaining('(rule "trust.others: refuse"; "trust.triggered: trust" trusts such builds).'),
    });
    expect(decide(triggered, { triggered: 'trust' })).toEqual({ kind: 'trusted' });
  });

  it.each([
    { BUILDKITE_SOURCE: 'trigger_job' },
    { BUILDKITE_TRIGGERED_FROM_BUILD_ID: 'b' },
    { BUILDKITE_TRIGGERED_FROM_BUILD_NUMBER: '7' },
    { BUILDKITE_TRIGGERED_FROM_BUILD_PIPELINE_SLUG: 'app' },
  ])('is known by any of %j', (env) => expect(decide(env)).toMatchObject({ kind: 'untrusted' }));

  it('must pass all other rules too, and the message of one that fails both names its pipeline', () => {
    const open = { triggered: 'trust' } as const;
    expect(decide({ ...triggered, BUILDKITE_COMMIT: 'refs/pull/12/head' }, open)).toMatchObject({ kind: 'untrusted' });
    expect(decide(triggered, { ...open, branches: ['dev'] })).toMatchObject({ kind: 'untrusted' });
    expect(decide(triggered, { pipelines: ['lib'] })).toMatchObject({ why: expect.stringContaining('trust.pipelines') });
  });
});

describe('with patterns of repositories', () => {
  const trust = { repositories: ['github.com/acme/*', '/srv/git/**'] };
  it.each([home, 'git@github.com:Acme/App', 'ssh://git@github.com:22/acme/lib.git', '/srv/git/a/b.git'])(
    '%s is trusted',
    (repository) => expect(decide({ BUILDKITE_REPO: repository }, trust)).toEqual({ kind: 'trusted' }),
  );
  it.each([
    ['https://github.com/mallory/app', 'its repository https://github.com/mallory/app does not match "trust.repositories"'],
    ['https://me:hunter2@github.com.evil.example/acme/app', 'https://github.com.evil.example/acme/app does not match'],
    ['https://github.com/acme/app/more', 'does not match "trust.repositories"'],
    ['absent', 'the service does not say which repository it belongs to'],
    ['what is this', 'does not match "trust.repositories"'],
  ])('%s is not', (repository, why) => {
    const verdict = decide({ BUILDKITE_REPO: repository }, trust);
    expect(verdict).toMatchObject({ kind: 'untrusted', why: expect.stringContaining(why) });
    expect(JSON.stringify(verdict)).not.toContain('hunter2');
  });

  it('a pipeline that calls the fork its own repository gains nothing', () => {
    const env = { ...fork, BUILDKITE_REPO: 'git://github.com/mallory/app.git' };
    expect(decide(env, trust)).toMatchObject({ kind: 'untrusted' });
  });
});

it('no password of an address is told, and no sentence is longer than people read', () => {
  const { why = '' } = { why: '', ...decide(pullRequest(`https://me:hunter2@evil.example/${'x'.repeat(2000)}`)) };
  expect(why).not.toContain('hunter2');
  expect(why.length).toBeLessThan(500);
});

it('private caches belong to the repository that a job is from', () => {
  const of = (env: Record<string, string>) => sourceRepository(jobFacts({ id: 'j', env: { ...branchBuild, ...env } }));
  expect(of({})).toBe(home);
  expect(of(fork)).toBe('git://github.com/mallory/app.git');
  expect(of(pullRequest(''))).toBeNull();
  expect(of({ BUILDKITE_BRANCH: 'mallory:main' })).toBeNull();
});

const word = fc.stringMatching(/^[a-z0-9][a-z0-9-]{0,8}$/);
const anyText = fc.option(fc.oneof(word, fc.string(), fc.constantFrom('main', home, 'git@github.com:acme/app')), { nil: null });
const anyTrust: fc.Arbitrary<TrustConfig> = fc.record({
  forks: fc.constantFrom('refuse', 'run-without-secrets'),
  pipelines: fc.option(fc.array(fc.constantFrom('*', '**', 'app', 'acme/*', 'lib')), { nil: null }),
  branches: fc.option(fc.array(fc.constantFrom('*', '**', 'main', 'feature/*')), { nil: null }),
  others: fc.constantFrom('refuse', 'run-without-secrets'),
  caches: fc.constantFrom('none', 'private', 'read'),
  image: fc.constant(null),
  network: fc.constant('internet'),
  tags: fc.option(fc.array(fc.constantFrom('*', '**', 'main')), { nil: null }),
  sources: fc.option(fc.array(fc.constantFrom('webhook', 'ui')), { nil: null }),
  repositories: fc.option(fc.array(fc.constantFrom('**', 'github.com/acme/*')), { nil: null }),
  triggered: fc.constantFrom('as-others', 'trust'),
  containers: fc.constantFrom('refuse', 'allow'),
  oci_runtime: fc.constant(null),
});
const anyFacts = fc.record({
  organisation: anyText,
  pipeline: anyText,
  branch: anyText,
  repository: anyText,
  pullRequest: fc.record({ number: fc.option(word, { nil: null }), repository: anyText }),
  commit: anyText,
  refspec: anyText,
  hidden: anyText,
  source: anyText,
  tag: anyText,
  triggeredBy: fc.option(fc.record({ pipeline: anyText }), { nil: null }),
});

it('a pull request from another repository is never trusted, whatever else is said of it', () => {
  fc.assert(
    fc.property(anyFacts, anyTrust, (facts, trust) => {
      const [from, to] = [facts.pullRequest.repository, facts.repository].map((one) =>
        one === null ? null : normalRepository(one),
      );
      const verdict = decideTrust(facts, trust);
      if (from !== null && from === to) return;
      expect(verdict.kind).not.toBe('trusted');
      if (trust.forks === 'refuse') expect(verdict.kind).toBe('refused');
    }),
    { numRuns: 500 },
  );
});

it('a stricter rule never gives more', () => {
  const rank = { refused: 0, untrusted: 1, trusted: 2 };
  const facts: fc.Arbitrary<Omit<BuildkiteJobFacts, 'id' | 'title'>> = fc.record({
    organisation: anyText,
    pipeline: anyText,
    branch: anyText,
    repository: anyText,
    tag: anyText,
    build: anyText,
    buildId: anyText,
    buildUrl: anyText,
    commit: anyText,
    source: anyText,
    refspec: anyText,
    hidden: anyText,
    triggeredBy: fc.option(fc.record({ pipeline: anyText }), { nil: null }),
    pullRequest: fc.option(fc.record({ number: anyText, repository: anyText }), { nil: null }),
  });
  fc.assert(
    fc.property(facts, anyTrust, (found, trust) => {
      const before = rank[decideTrust(found, trust).kind];
      for (const stricter of [
        { ...trust, forks: 'refuse' as const },
        { ...trust, others: 'refuse' as const },
        { ...trust, triggered: 'as-others' as const },
        { ...trust, repositories: trust.repositories === null ? ['github.com/acme/*'] : trust.repositories.slice(1) },
        { ...trust, branches: trust.branches === null ? ['main'] : trust.branches.slice(1) },
        { ...trust, tags: trust.tags?.slice(1) ?? null },
        { ...trust, sources: trust.sources === null ? ['webhook'] : trust.sources.slice(1) },
        { ...trust, pipelines: trust.pipelines === null ? ['app'] : trust.pipelines.slice(1) },
      ]) {
        expect(rank[decideTrust(found, stricter).kind]).toBeLessThanOrEqual(before);
      }
    }),
    { numRuns: 500 },
  );
});
