import { afterAll, expect, it } from 'vitest';
import { parse } from 'yaml';
import { Folder } from '../../test/kit/config.ts';
import { agentPrefix, guestOf } from './guest.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());
const run = 'onejob-3fa9c10000000001';

it("the names of a machine's agents begin with those of its host and itself, however they are written", async () => {
  const { config } = await folder.load(`
clouds: { aws: { type: aws, region: us-west-2, credentials: { profile: ci }, scheduler_role: "arn:aws:iam::123456789012:role/x" } }
hosts:
  burst:
    cloud: aws
    types: [g6.xlarge]
    pools: { a: {}, b: { name: "gpu-{host}-{n}" }, c: { name: "{host}-{n}" }, d: { name: "{host}{n}" }, e: { name: "x-{n}" } }
join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tar.gz }
`);
  const [host] = config.hosts;
  if (host === undefined) throw new Error('no host');
  const { config: text } = await guestOf(host, run, { ...config, secretsKey: null, variables: {} });
  const guest = parse(text) as { defaults: { name: string }; pools: Record<string, { name?: string }> };
  expect(agentPrefix('burst', run)).toBe('burst-3fa9c1');
  expect([guest.defaults.name, ...Object.values(guest.pools).map(({ name }) => name)]).toEqual([
    'burst-3fa9c1-{pool}-{n}',
    undefined,
    'burst-3fa9c1-gpu-burst-3fa9c1-{n}',
    'burst-3fa9c1-{n}',
    'burst-3fa9c1-{n}',
    'burst-3fa9c1-x-{n}',
  ]);
});

it('a machine gets no secret that only the daemon uses which makes it', async () => {
  const { config } = await folder.load(`
services:
  hub:
    type: github
    token: { env: TOKEN }
    webhook: { listen: "127.0.0.1:8787", secret: { env: HOOK } }
  kite: { type: buildkite, token: { env: TOKEN }, metrics_token: { env: COUNTS } }
clouds: { aws: { type: aws, region: us-west-2, credentials: { profile: ci }, scheduler_role: "arn:aws:iam::123456789012:role/x" } }
hosts:
  burst: { cloud: aws, types: [g6.xlarge], pools: { a: { service: hub, queue: acme }, b: { service: kite } } }
join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tar.gz }
`);
  const [host] = config.hosts;
  if (host === undefined) throw new Error('no host');
  const variables = { TOKEN: 'token', HOOK: 'hook', COUNTS: 'counts' };
  const { config: text, files } = await guestOf(host, run, { ...config, secretsKey: null, variables });
  const secret = (name: string) => `/run/onejob-cloud/secrets/${name}`;
  expect(parse(text)).toMatchObject({
    services: {
      hub: { type: 'github', token: { file: secret('hub.token') } },
      kite: { type: 'buildkite', token: { file: secret('kite.token') } },
    },
  });
  expect(text).not.toMatch(/webhook|metrics_token|HOOK|COUNTS/);
  expect(files.map(({ path }) => path)).toEqual([secret('hub.token'), secret('kite.token')]);
});
