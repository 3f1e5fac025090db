import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const config = (service: string, host: string): string => `
services: { hub: { ${service} } }
clouds: { aws: { type: aws, region: us-west-2, credentials: { profile: ci }, scheduler_role: "arn:aws:iam::123456789012:role/x" } }
hosts: { burst: { cloud: aws, types: [g6.xlarge], ${host} } }
join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tar.gz }
pools: { local: { agents: 1 } }
`;
const azure = 'type: azure-pipelines, url: "https://dev.azure.com/acme", token: { file: /keys/pat }';
const github = 'type: github, token: { file: /keys/pat }';

it('a pool of machines has its own name there, and its queue without one', async () => {
  const pools = 'pools: { gpu: { service: hub }, big: { service: hub, queue: large } }';
  const { config: found, errors } = await folder.load(config(azure, pools));
  expect(errors).toEqual([]);
  expect(found.hosts[0]?.pools).toMatchObject([
    { name: 'burst.gpu', queue: 'gpu', agents: 0, elsewhere: { host: 'burst', pool: 'gpu' } },
    { name: 'burst.big', queue: 'large', agents: 0, elsewhere: { host: 'burst', pool: 'big' } },
  ]);
});

it('several machines cannot serve one scale set', async () => {
  const pools = 'max: 2, pools: { gpu: { service: hub, queue: acme } }';
  expect((await folder.load(config(`${github}, mode: scale-set`, pools))).errors).toMatchObject([
    {
      key: 'hosts.burst.max',
      message: expect.stringMatching(/^is 2, but only one machine at a time can serve pool gpu: .*write "max: 1"/),
    },
  ]);
  expect((await folder.load(config(github, pools))).errors).toEqual([]);
  expect((await folder.load(config(`${github}, mode: scale-set`, pools.replace('2', '1')))).errors).toEqual([]);
});
