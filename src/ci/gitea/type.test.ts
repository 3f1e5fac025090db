import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const lines = (service: string, ...pools: string[]) =>
  folder.check(
    `services:\n  forge: { type: gitea, url: "https://git.example.org", token: { env: T }${service} }\npools:\n${pools.map((keys, n) => `  p${n}: { service: forge, queue: acme, image: x, ${keys} }\n`).join('')}`,
  );

it('rules of trust need a job that is known before there is a sandbox', async () => {
  const trust = 'trust: { forks: refuse }';
  expect(await lines(', binding: late', trust)).toEqual([]);
  const [found, ...others] = await lines('', trust);
  expect(found).toContain('pools.p0.trust: cannot be kept: "service" is forge');
  expect(found).toContain('write "binding: late" into the service');
  expect(others).toEqual([]);
});

it('only a service that binds early has several pools', async () => {
  expect(await lines('', 'tags: a', 'tags: b')).toEqual([]);
  const [found, ...others] = await lines(', binding: late', 'tags: a', 'tags: b');
  expect(found).toContain('pools.p1.service: is forge, which pool p0 uses already');
  expect(others).toEqual([]);
});

it.each([
  ['network: none', 'no job would ever start'],
  ['trust: { network: host }', 'an untrusted job could reach everything'],
])('says what cannot work with late binding: %s', async (keys, words) => {
  expect((await lines(', binding: late', keys)).join('\n')).toContain(words);
});

it('knows two ways to bind', async () => {
  expect((await lines(', binding: never', 'tags: a')).join('\n')).toMatch(/services\.forge\.binding: .*early.*late/);
});

it('warns of a limit for agents that nobody waits for', async () => {
  expect(await lines(', binding: late, boot_timeout: 1s, poll: 1m', 'tags: a')).toEqual([
    expect.stringMatching(/services\.forge\.boot_timeout: is not used/),
  ]);
});

it.each([
  ['acme', 'branches: [main]', ''],
  ['"*"', 'branches: [main], pipelines: [acme/demo]', ''],
  ['"*"', 'branches: [main]', 'trust.branches: are trusted in every project, forks too'],
  ['"*"', 'pipelines: [demo]', 'contain "demo", which forks of every owner match'],
])('branches need a project where a runner is for the whole instance: queue %s, %s', async (queue, rules, words) => {
  const service = 'type: gitea, url: "https://git.example.org", token: { env: T }, binding: late';
  const pool = `service: forge, queue: ${queue}, image: x, trust: { ${rules} }`;
  const found = await folder.check(`services: { forge: { ${service} } }\npools: { p: { ${pool} } }\n`);
  expect(found.join('\n')).toContain(words);
  expect(found.length).toBe(words === '' ? 0 : 1);
});
