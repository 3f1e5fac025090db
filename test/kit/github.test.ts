/** The GitHub stand-in by itself, in virtual time: what product code and real clients rely on. */
import { sign } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { handClock } from './core.ts';
import { type GitHubOptions, type MemoryGitHub, memoryGitHub } from './github.ts';
import { checkAnswer } from './github-schema.ts';

type Row = Record<string, unknown>;

function bench(options: GitHubOptions = {}) {
  const clock = handClock();
  const github = memoryGitHub({ clock, ...options });
  let token = github.userToken();
  const call = async (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const answer = await github.fetch(`${github.api}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    return { status: answer.status, body: (text === '' ? null : JSON.parse(text)) as Row, headers: answer.headers };
  };
  return {
    github,
    clock,
    call,
    use(other: string) {
      token = other;
    },
    async register(name = 'r-1', labels: readonly string[] = ['gpu'], scope = '/orgs/acme') {
      const { body } = await call('POST', `${scope}/actions/runners/generate-jitconfig`, { name, runner_group_id: 1, labels });
      return String(body.encoded_jit_config);
    },
    runners: async (query = '') =>
      (await call('GET', `/orgs/acme/actions/runners${query}`)).body as { runners: Row[]; total_count: number },
  };
}

/** A JSON web token of the app, with these claims on top. */
function appToken(github: MemoryGitHub, now: number, claims: Row = {}): string {
  const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const seconds = Math.floor(now / 1000);
  const text = `${part({ alg: 'RS256', typ: 'JWT' })}.${part({ iss: github.app.clientId, iat: seconds - 60, exp: seconds + 540, ...claims })}`;
  return `${text}.${sign('sha256', Buffer.from(text), github.app.key).toString('base64url')}`;
}

describe('runners', () => {
  test('a registration is there at once, offline, with lower-cased labels and nothing added', async () => {
    const { call, runners } = bench();
    const made = await call('POST', '/orgs/acme/actions/runners/generate-jitconfig', {
      name: 'r-1',
      runner_group_id: 1,
      labels: ['GPU', 'A100', 'Linux'],
    });
    expect(made.status).toBe(201);
    const [row] = (await runners()).runners;
    expect(row).toMatchObject({ name: 'r-1', status: 'offline', busy: false, ephemeral: true, os: 'unknown' });
    expect(row?.labels).toMatchObject([{ name: 'linux' }, { name: 'a100' }, { name: 'gpu' }]);
    expect((await call('DELETE', `/orgs/acme/actions/runners/${row?.id}`)).status).toBe(204);
    expect((await call('DELETE', `/orgs/acme/actions/runners/${row?.id}`)).status).toBe(404);
  });

  test.each([
    ['the same name', { name: 'R-1', runner_group_id: 1, labels: ['gpu'] }, 409],
    ['no labels', { name: 'r-2', runner_group_id: 1, labels: [] }, 422],
    ['no group', { name: 'r-2', labels: ['gpu'] }, 422],
    ['an absent group', { name: 'r-2', runner_group_id: 77, labels: ['gpu'] }, 404],
    ["GitHub's own group", { name: 'r-2', runner_group_id: 2, labels: ['gpu'] }, 403],
  ])('refuses %s', async (_, body, status) => {
    const { github, call, register } = bench();
    github.group('GitHub-Hosted', { isHosted: true });
    await register();
    expect((await call('POST', '/orgs/acme/actions/runners/generate-jitconfig', body)).status).toBe(status);
  });

  test.each(['/orgs/acme', '/repos/acme/demo', '/enterprises/big'])('of %s are listed in pages', async (scope) => {
    const { call, register } = bench();
    for (const n of [1, 2, 3]) await register(`r-${n}`, ['gpu'], scope);
    const first = await call('GET', `${scope}/actions/runners?per_page=2`);
    expect(first.body).toMatchObject({ total_count: 3, runners: [{ name: 'r-1' }, { name: 'r-2' }] });
    const next = /<([^>]+)>; rel="next"/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
    expect(next).toContain('page=2');
    expect((await call('GET', `${scope}/actions/runners?name=R-3`)).body).toMatchObject({ total_count: 1 });
  });
});

describe('jobs', () => {
  test('go to a runner that has all labels, and end with its registration', async () => {
    const { github, call, register, runners } = bench();
    const job = github.queue({ labels: ['GPU', 'a100'] });
    const small = github.connect(await register('small', ['gpu']));
    const big = github.connect(await register('big', ['a100', 'gpu', 'linux']));
    expect(small.take()).toBeNull();
    expect(big.take()).toBe(job);
    expect((await runners('?name=big')).runners).toMatchObject([{ status: 'online', busy: true, version: '2.336.0' }]);
    expect((await call('DELETE', `/orgs/acme/actions/runners/${big.row.id}`)).status).toBe(422);
    const path = `/repos/acme/demo/actions/runs/${job.run.id}`;
    expect((await call('GET', `${path}/jobs`)).body).toMatchObject({
      jobs: [{ id: job.id, status: 'in_progress', runner_name: 'big' }],
    });
    big.finish('failure');
    expect((await call('GET', `/repos/acme/demo/actions/jobs/${job.id}`)).body).toMatchObject({
      conclusion: 'failure',
      runner_id: big.row.id,
      runner_name: 'big',
      runner_group_name: 'Default',
    });
    expect((await call('GET', path)).body).toMatchObject({ status: 'completed', conclusion: 'failure' });
    expect((await runners()).runners.map(({ name }) => name)).toEqual(['small']);
  });

  test('go back when nobody takes them for a minute', async () => {
    const { github, clock, register } = bench();
    const slow = github.connect(await register('slow'));
    const job = github.queue();
    expect(slow.offered).toBe(job);
    const other = github.connect(await register('other'));
    slow.leave();
    clock.advance(60_000);
    expect([slow.take(), other.take()]).toEqual([null, job]);
  });

  test('fail when their runner says nothing for ten minutes, and its row stays', async () => {
    const { github, clock, call, register } = bench();
    const runner = github.connect(await register());
    const job = github.queue();
    runner.take();
    clock.advance(3_000_000);
    expect(job.status).toBe('in_progress');
    runner.die();
    expect((await call('DELETE', `/orgs/acme/actions/runners/${runner.row.id}`)).status).toBe(422);
    clock.advance(600_000);
    expect(job.conclusion).toBe('failure');
    expect((await call('DELETE', `/orgs/acme/actions/runners/${runner.row.id}`)).status).toBe(204);
  });

  test.each([
    ['public repositories', { allowsPublic: true }, {}],
    ['chosen repositories', { allowsPublic: true, visibility: 'selected', repositories: ['acme/open'] }, { repositories: [] }],
    [
      'chosen workflows',
      { allowsPublic: true, workflows: ['acme/open/.github/workflows/a.yml@refs/heads/main'] },
      { workflows: [] },
    ],
  ] as const)('wait in groups that keep %s out', async (_, open, closed) => {
    const { github, register } = bench();
    github.repository('acme/open', { isPrivate: false });
    const [group = github.group('none')] = github.groups;
    Object.assign(group, open, { allowsPublic: Object.keys(closed).length > 0 }, closed);
    const runner = github.connect(await register());
    const job = github.queue({ repository: 'acme/open', path: '.github/workflows/a.yml' });
    expect(runner.offered).toBeNull();
    Object.assign(group, open);
    github.connect(await register('r-2'));
    expect(runner.take()).toBe(job);
  });

  test('that run again are another one of the same run', async () => {
    const { github, call, register } = bench();
    github.people.add('octocat');
    github.repository('octocat/toy');
    expect((await call('GET', '/repos/octocat/toy')).body).toMatchObject({ owner: { type: 'User' } });
    expect((await call('GET', '/orgs/octocat/actions/runners')).status).toBe(404);
    const first = github.queue({ repository: 'octocat/toy' });
    await register('r-1', ['gpu'], '/repos/octocat/toy');
    for (const row of github.runners.values()) github.connect(row).take();
    expect(first.status).toBe('in_progress');
    github.cancel(first);
    const second = github.rerun(first);
    const jobs = `/repos/octocat/toy/actions/runs/${first.run.id}/jobs`;
    expect((await call('GET', jobs)).body).toMatchObject({ total_count: 1, jobs: [{ id: second.id, run_attempt: 2 }] });
    expect((await call('GET', `${jobs}?filter=all`)).body).toMatchObject({ total_count: 2 });
  });

  test('of a fork are seen as such, and wait for a person when they are held', async () => {
    const { github, call, register } = bench();
    const runner = github.connect(await register());
    const job = github.queue({ fork: 'stranger/demo', held: 'action_required' });
    const listed = await call('GET', '/repos/acme/demo/actions/runs?status=action_required');
    expect(listed.body).toMatchObject({
      workflow_runs: [{ event: 'pull_request', head_repository: { full_name: 'stranger/demo', fork: true } }],
    });
    expect(runner.offered).toBeNull();
    github.approve(job.run);
    expect((await call('GET', '/repos/acme/demo/actions/runs?status=queued')).body.total_count).toBe(1);
    expect(runner.take()).toBe(job);
  });

  test('that are cancelled tell their runner', async () => {
    const { github, register } = bench();
    const runner = github.connect(await register());
    const [first, second] = [github.queue(), github.queue()];
    runner.take();
    github.cancel(first);
    github.cancel(second);
    expect([runner.isCancelled, second.conclusion]).toEqual([true, 'cancelled']);
    runner.finish('cancelled');
    expect(first.conclusion).toBe('cancelled');
  });
});

describe('credentials', () => {
  test('an app gets tokens of an hour', async () => {
    const { github, clock, call, use, runners } = bench();
    use(appToken(github, clock.wall()));
    const { body: found } = await call('GET', '/orgs/acme/installation');
    const { body } = await call('POST', `/app/installations/${found.id}/access_tokens`, { permissions: { actions: 'read' } });
    use(String(body.token));
    const refused = await call('GET', '/orgs/acme/actions/runners');
    expect([refused.status, refused.headers.get('x-accepted-github-permissions')]).toEqual([
      403,
      'organization_self_hosted_runners=read',
    ]);
    use(appToken(github, clock.wall()));
    use(String((await call('POST', `/app/installations/${found.id}/access_tokens`)).body.token));
    expect(await runners()).toMatchObject({ total_count: 0 });
    expect((await call('GET', '/installation/repositories')).body).toMatchObject({ repositories: [{ full_name: 'acme/demo' }] });
    expect((await call('GET', '/enterprises/big/actions/runners')).status).toBe(403);
    github.repository('acme/other');
    use(appToken(github, clock.wall()));
    const some = { repositories: ['other'] };
    use(String((await call('POST', `/app/installations/${found.id}/access_tokens`, some)).body.token));
    expect((await call('GET', '/repos/acme/other/actions/runners')).status).toBe(200);
    expect((await call('GET', '/repos/acme/demo/actions/runners')).status).toBe(404);
    clock.advance(3_600_000);
    expect((await call('GET', '/orgs/acme/actions/runners')).status).toBe(401);
  });

  test.each([
    ['another issuer', { iss: 'x' }],
    ['a time of issue in the future', { iat: Date.UTC(2030, 0, 1) / 1000 + 30 }],
    ['a life that is too long', { exp: Date.UTC(2030, 0, 1) / 1000 + 700 }],
    ['a life that is over', { exp: Date.UTC(2030, 0, 1) / 1000 - 1 }],
  ])('an app is refused with %s', async (_, claims) => {
    const { github, clock, call, use } = bench();
    use(appToken(github, clock.wall(), claims));
    expect((await call('GET', '/orgs/acme/installation')).status).toBe(401);
  });

  test('a new token is refused for a while when the fault is on', async () => {
    const { github, clock, call, use } = bench();
    github.faults.unusableFor = 3_000;
    use(appToken(github, clock.wall()));
    use(String((await call('POST', '/app/installations/50/access_tokens')).body.token));
    expect((await call('GET', '/repos/acme/demo')).status).toBe(401);
    clock.advance(3_000);
    expect((await call('GET', '/repos/acme/demo')).body).toMatchObject({ private: true, visibility: 'private' });
  });

  test('calls cost, except of what is known already', async () => {
    const { github, clock, call } = bench();
    github.quota.limit = 2;
    const first = await call('GET', '/repos/acme/demo');
    expect(first.headers.get('x-ratelimit-remaining')).toBe('1');
    const again = await call('GET', '/repos/acme/demo', undefined, { 'if-none-match': first.headers.get('etag') ?? '' });
    expect([again.status, again.headers.get('x-ratelimit-remaining')]).toEqual([304, '1']);
    await call('GET', '/meta');
    const over = await call('GET', '/meta');
    expect([over.status, over.headers.get('x-ratelimit-remaining')]).toEqual([403, '0']);
    expect((await call('GET', '/rate_limit')).body).toMatchObject({ rate: { remaining: 0, used: 2 } });
    clock.advance(Number(over.headers.get('x-ratelimit-reset')) * 1000 - clock.wall());
    expect((await call('GET', '/meta')).status).toBe(200);
  });
});

describe('faults', () => {
  test('lists show a runner late, busy ones as offline, and a DELETE that is refused for ever', async () => {
    const { github, clock, call, register, runners } = bench();
    Object.assign(github.faults, { hiddenFor: 5_000, offlineWhileBusy: true, busyStays: true });
    const runner = github.connect(await register());
    expect((await runners()).runners).toEqual([]);
    clock.advance(5_000);
    github.queue();
    expect((await runners()).runners).toMatchObject([{ status: 'offline', busy: true }]);
    runner.take();
    runner.die();
    clock.advance(600_000);
    expect((await call('DELETE', `/orgs/acme/actions/runners/${runner.row.id}`)).status).toBe(422);
  });

  test('an acquisition is lost: the runner keeps listening, its registration is gone', async () => {
    const { github, register, runners } = bench();
    const ghost = github.connect(await register());
    const job = github.queue();
    github.faults.lostAcquire = 'gone';
    expect(ghost.take()).toBeNull();
    expect((await runners()).runners).toEqual([]);
    github.faults.lostAcquire = null;
    expect([ghost.take(), job.status]).toEqual([null, 'queued']);
    expect(github.connect(await register('next')).take()).toBe(job);
  });

  test('an old runner gets no messages', async () => {
    const { github, register } = bench();
    github.faults.oldestVersion = '2.329.0';
    const jit = await register();
    expect(() => github.connect(jit, '2.328.9')).toThrow('deprecated');
    expect(github.connect(jit, '2.1000.0').offered).toBeNull();
  });
});

test('an answer that GitHub would not give fails', async () => {
  const seen: Error[] = [];
  const { github, call } = bench({ broken: (error) => seen.push(error) });
  Object.assign(github.groups[0] ?? {}, { name: 7 });
  await expect(call('GET', '/orgs/acme/actions/runner-groups')).rejects.toThrow('$.runner_groups[0].name is not a string');
  await expect(call('GET', '/orgs/acme/unheard-of')).rejects.toThrow('has no GET');
  expect(seen).toHaveLength(2);
});

test.each([
  ['lacks a key', { total_count: 0 }, '$.runners is missing'],
  ['has a key too many', { total_count: 0, runners: [], more: 1 }, '$.more is nothing that GitHub answers'],
  ['has another kind of value', { total_count: 0, runners: [{ id: '1' }] }, '$.runners[0].name is missing'],
])('an answer that %s is noticed', (_, body, fault) => {
  expect(() => checkAnswer('GET /orgs/{org}/actions/runners', 200, body)).toThrow(fault);
});

test('an Enterprise Server has its API under a path, and names its version', async () => {
  const { github, call } = bench({ enterpriseServer: '3.19.0' });
  expect(github.api).toBe('https://github.test/api/v3');
  const { headers, status } = await call('GET', '/orgs/acme/repos');
  expect([status, headers.get('x-github-enterprise-version')]).toEqual([200, '3.19.0']);
});

test('all other reads look like GitHub', async () => {
  const { call } = bench();
  for (const path of ['/orgs/acme', '/repos/acme/demo'])
    expect((await call('GET', `${path}/actions/permissions/fork-pr-contributor-approval`)).status).toBe(200);
  for (const path of ['/orgs/acme', '/enterprises/big']) {
    expect((await call('GET', `${path}/actions/runner-groups/1`)).body).toMatchObject({ name: 'Default', visibility: 'all' });
    expect((await call('POST', `${path}/actions/runners/registration-token`)).status).toBe(201);
  }
});
