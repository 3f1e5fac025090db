import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const file = (keys: string, service = '') =>
  `services: { s: { type: buildkite, token: { env: T }${service} } }\npools: { lab: { service: s, ${keys} } }\n`;

describe('invalid rules', () => {
  it.each([
    ['forks: run', 'pools.lab.trust.forks: "run" would give secrets to anyone who opens a pull request; use "run-without-secrets"'],
    ['forks: yes', 'pools.lab.trust.forks: expected "refuse" or "run-without-secrets", found "yes"'],
    [
      'branches: ["+(main|dev)"]',
      'pools.lab.trust.branches[0]: "+(main|dev)" is not a valid pattern: patterns such as !(a) or +(a) are not known',
    ],
    ['branches: ["!main"]', 'pools.lab.trust.branches[0]: "!main" begins with "!"; a pattern says what is trusted'],
    ['branches: main', 'pools.lab.trust.branches: expected a list'],
    ['branches: [""]', 'pools.lab.trust.branches[0]: expected a pattern'],
    ['pipelines: [a/b/c]', 'pools.lab.trust.pipelines[0]: "a/b/c" is not a pattern such as "app-*" or "acme/app"'],
    ['pipelines: [{ a: 1 }]', 'pools.lab.trust.pipelines[0]: expected a pattern such as "app-*" or "acme/app", found a map'],
    ['caches: shared', 'pools.lab.trust.caches: expected "none", "private" or "read", found "shared"'],
    ['fork: refuse', 'pools.lab.trust.fork: unknown key; did you mean "forks"?'],
    ['network: none', 'pools.lab.trust.network: is "none", but the agent of an untrusted job must reach the filter on this host'],
    ['network: host', 'pools.lab.trust.network: is "host", but an untrusted job could reach everything that listens on this host'],
    ['tags: ["!v*"]', 'pools.lab.trust.tags[0]: "!v*" begins with "!"'],
    [
      'sources: [website]',
      'pools.lab.trust.sources[0]: expected "webhook", "schedule", "ui", "api" or "trigger_job", found "website"',
    ],
    ['containers: yes', 'pools.lab.trust.containers: expected "refuse" or "allow", found "yes"'],
    ['containers: allow', 'pools.lab.trust.containers: is not used: the pool has no "containers: true"'],
    ['triggered: run', 'pools.lab.trust.triggered: expected "as-others" or "trust", found "run"'],
    ['repositories: ["https://github.com/acme/app"]', 'write it as "github.com/acme/app", whatever protocol fetches it'],
    ['repositories: ["git@github.com:acme/app"]', 'write it as "github.com/acme/app", whatever protocol fetches it'],
    ['repositories: ["github.com/acme/app.git"]', 'write it as "github.com/acme/app", whatever protocol fetches it'],
    ['repositories: ["ssh://gitea@git.lab/acme/app.git"]', 'write it as "gitea@git.lab/acme/app"'],
    ['repositories: ["gitea:secret@git.lab:acme/app"]', 'write it as "gitea@git.lab/acme/app"'],
    ['repositories: ["https://gitea@git.lab/acme/app"]', 'write it as "git.lab/acme/app", whatever protocol fetches it'],
    ['repositories: ["git@git.lab/acme/*"]', 'write it as "git.lab/acme/*", whatever protocol fetches it'],
    ['repositories: ["gitea@"]', '"gitea@" names no repository'],
    ['repositories: [acme]', 'pools.lab.trust.repositories[0]: "acme" names no repository; write HOST/PATH such as'],
  ])('%s', async (rules, line) => {
    expect(await folder.check(file(`trust: { ${rules} }`))).toEqual([expect.stringContaining(line)]);
  });
});

it('a repository may be one of a user of SSH', async () => {
  const patterns = ['gitea@git.lab/acme/*', 'gitea@git.lab:2222/acme/*', 'git.lab/acme/*'];
  expect(await folder.check(file(`trust: { repositories: ${JSON.stringify(patterns)} }`))).toEqual([]);
});

it('rules merge key by key with those of the defaults', async () => {
  const { config } = await folder.load(
    `defaults: { trust: { forks: refuse, branches: [main] } }\n${file('trust: { branches: [dev] }')}`,
  );
  expect(config.pools[0]?.trust).toMatchObject({ forks: 'refuse', branches: ['dev'] });
});

it('a volume that gives the host away is not for jobs that are not trusted', async () => {
  const socket = 'volumes: ["/var/run/docker.sock:/var/run/docker.sock"]';
  const lines = await folder.check(file(`${socket}, trust: { branches: [main] }`));
  expect(lines).toEqual([
    expect.stringMatching(
      /pools\.lab\.volumes: contain \/var\/run\/docker\.sock, .* and untrusted jobs come in through "forks" and "others"/,
    ),
    expect.stringContaining('warning: pools.lab.volumes[0]: gives every job of the pool all rights over this host'),
  ]);
  expect(lines[0]).toContain('write trust: { forks: refuse, others: refuse }');
  const closed = await folder.check(file(`${socket}, trust: { forks: refuse, others: refuse }`));
  expect(closed).toEqual([expect.stringContaining('warning: pools.lab.volumes[0]')]);
});

it('a process has no network "internet": no place for jobs that are not trusted, unless the owner gives that up', async () => {
  const [line] = await folder.check(file('runtime: process'));
  expect(line).toContain(
    'pools.lab.runtime: is process, whose jobs can reach private networks, and this host if it lacks pasta, and untrusted jobs',
  );
  expect(line).toContain(
    'write trust: { forks: refuse, others: refuse }, or runtime: docker, or accept the risk with "isolation: none"',
  );
  const lines = await folder.check(file('runtime: process, trust: { forks: refuse, others: refuse }'));
  expect(lines).toEqual([expect.stringContaining('warning: pools.lab.runtime: is process, which keeps credentials')]);
  expect(await folder.check(file('runtime: process, isolation: none'))).toEqual([]);
});

it('a service that does not tell where jobs come from has no use for rules, unless they are in the defaults', async () => {
  const own = 'pools: { a: { trust: { forks: refuse } } }\n';
  expect(await folder.check(own)).toEqual([
    expect.stringContaining('warning: pools.a.trust: is not used: it depends on where jobs come from'),
  ]);
  const azure = 'services: { z: { type: azure-pipelines, url: "https://dev.azure.com/a", token: { env: T } } }\n';
  const lines = await folder.check(`${azure}pools: { a: { service: z, trust: { forks: refuse }, hooks: /h } }\n`);
  expect(lines).toEqual([
    expect.stringContaining(
      'warning: pools.a.trust: is not used: it depends on where jobs come from, and service z does not report that',
    ),
    expect.stringContaining('warning: pools.a.hooks: is not used: only agents of Buildkite support hooks'),
  ]);
  expect(await folder.check('defaults: { trust: { forks: refuse }, hooks: /h }\npools: { a: {} }\n')).toEqual([]);
  expect(await folder.check('pools: { a: { isolation: none } }\n')).toEqual([
    expect.stringContaining('warning: pools.a.isolation: is not used: the own queue has no credentials'),
  ]);
});
