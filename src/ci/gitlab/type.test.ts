import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const lines = (service: string, pools: string) =>
  folder.check(`services:\n  lab: { type: gitlab, url: "https://git.example.org", token: { env: T }${service} }\npools:\n${pools}`);

it('a service of its own for one pool is right', async () => {
  expect(
    await lines(', images: ["debian:*"], poll: 5s', '  ci: { service: lab, agents: 2, image: "debian:stable-slim" }\n'),
  ).toEqual([]);
});

it.each(['pipelines: [acme/demo]', 'repositories: ["git.example.org/acme/**"]'])(
  'branches of a project are right: %s',
  async (keys) => {
    expect(await lines('', `  ci: { service: lab, image: x, trust: { branches: [main], ${keys} } }\n`)).toEqual([]);
  },
);

it('a second pool of one service is refused, with what to write', async () => {
  const [found, ...others] = await lines('', '  a: { service: lab, image: x }\n  b: { service: lab, image: x }\n');
  expect(found).toContain('pools.b.service: is lab, which pool a uses already');
  expect(found).toMatch(/create another runner at the server, and write a service of its own for it/);
  expect(others).toEqual([]);
});

describe('says what cannot work:', () => {
  it.each([
    ['queue: gpu', 'the choice of jobs belongs to the runner at the server'],
    ['tags: gpu', 'the tags are those of the runner at the server'],
    ['network: none', 'no job would ever start'],
    ['trust: { branches: [main] }', 'trust.branches: are trusted in every project, forks too'],
    ['trust: { tags: ["v*"], pipelines: [demo] }', 'trust.tags: are trusted in every project'],
    ['trust: { pipelines: [demo] }', 'warning: pools.ci.trust.pipelines: contain "demo", which forks of every owner match'],
    ['trust: { network: host }', 'an untrusted job could reach everything'],
  ])('%s', async (keys, words) => {
    expect((await lines('', `  ci: { service: lab, image: x, ${keys} }\n`)).join('\n')).toContain(words);
  });

  it.each([
    ['agent: { from: "https://example.org/gitlab-runner" }', 'unchecked'],
    ['url: "http://git.example.org"', 'in clear text'],
    ['url: "https://user:secret@git.example.org"', 'contains a user or a password'],
    ['images: debian', 'expected'],
  ])('%s', async (keys, words) => {
    const rest = keys.startsWith('url') ? 'token: { env: T }' : 'url: "https://git.example.org", token: { env: T }';
    const text = `services: { lab: { type: gitlab, ${rest}, ${keys} } }\npools: { ci: { service: lab, image: x } }\n`;
    expect((await folder.check(text)).join('\n')).toContain(words);
  });
});
