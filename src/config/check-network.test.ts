/** Pools that share the network of a host on which jobs of other pools go through the filter. */
import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const trust = 'trust: { forks: refuse, others: refuse }';
const errors = async (service: string, pools: string) =>
  (await folder.check(`services: { s: { ${service} } }\npools: { ${pools} }\n`)).filter((line) => !line.includes('warning: '));

const buildkite = 'type: buildkite, token: { env: T }';
const azure = 'type: azure-pipelines, url: "https://dev.azure.com/a", token: { env: T }';

it.each(['docker', 'process'])('network host is an error next to a pool whose jobs go through the filter: %s', async (runtime) => {
  const other = `lab: { service: s, runtime: docker, ${trust} }`;
  const [line, ...more] = await errors(buildkite, `${other}, mine: { runtime: ${runtime}, network: host }`);
  expect(line).toMatch(/config\.yml:2:\d+: pools\.mine\.network: is "host", but jobs of pool lab reach their service through/);
  expect(line).toContain('write "default", or move one of them to another host');
  expect(more).toEqual([]);
  expect(await errors(buildkite, `${other}, mine: { runtime: ${runtime} }`)).toEqual([]);
  expect(await errors(buildkite, `${other}, mine: { runtime: ${runtime}, network: none }`)).toEqual([]);
});

it('so it is for a pool of such a service itself', async () => {
  const [line] = await errors(buildkite, `lab: { service: s, ${trust}, network: host }`);
  expect(line).toContain('pools.lab.network: is "host", but jobs of service s reach their service through a filter on this host');
});

it('a host without such a pool may have it', async () => {
  expect(await errors(azure, 'lab: { service: s }, mine: { network: host }')).toEqual([]);
  expect(await errors(buildkite, 'mine: { network: host }')).toEqual([]);
});
