import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { guestOf } from '../machines/guest.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const join = 'join: { listen: "127.0.0.1:7718", url: "https://ci.example.org", package: /srv/onejob.tgz }';
const clouds = 'clouds: { aws: { type: aws, region: us-west-2, scheduler_role: "arn:aws:iam::123456789012:role/onejob" } }';
const config = (host: string, more = join): string => `${clouds}\nhosts: { burst: { ${host} } }\n${more}\n`;
const services = `services:
  hub: { type: github, token: { file: /keys/pat } }
  lab: { type: gitlab, url: "https://gitlab.example.org", token: { file: /keys/runner } }
`;
const usual = 'cloud: aws, types: [g6.xlarge], pools: { gpu: {} }';

it.each([
  ['cloud: aws', /hosts\.burst: "types" is missing[\s\S]*hosts\.burst: "pools" is missing/],
  ['cloud: awz, types: [g6.xlarge], pools: { gpu: {} }', /hosts\.burst\.cloud: there is no such cloud; did you mean "aws"\?/],
  ['cloud: aws, types: [p2.xlarge], pools: { gpu: {} }', /hosts\.burst\.types\[0\]: p2\.xlarge has NVIDIA K80 GPUs/],
  [`${usual}, min: 3`, /hosts\.burst\.min: is 3, more than "max" \(1\)/],
  [`${usual}, lifetime: 20m`, /hosts\.burst\.boot: is not shorter than "lifetime"/],
  [
    'cloud: aws, types: [g6.xlarge], pools: { gpu: { service: nosuch } }',
    /hosts\.burst\.pools\.gpu\.service: "services" has no "nosuch"/,
  ],
  [
    'cloud: aws, types: [g6.xlarge], pools: { gpu: { agnets: 1 } }',
    /hosts\.burst\.pools\.gpu\.agnets: unknown key; did you mean "agents"\?/,
  ],
  [`${usual}, budget: { per_day: lots }`, /hosts\.burst\.budget\.per_day: expected an amount such as "40 USD", found "lots"/],
  [`${usual}, prices: { g5.xlarge: 1 }`, /warning: hosts\.burst\.prices.*g5\.xlarge.*is not used: "types" does not name it/],
  [`${usual}, idle: 10`, /hosts\.burst\.idle: "10" has no unit/],
])('hosts: { burst: { %s } } is refused with the place', async (host, said) => {
  expect((await folder.check(config(host))).join('\n')).toMatch(said);
});

it('a host of a cloud that has mistakes of its own is not said to name no cloud', async () => {
  const said = (await folder.check(config(usual).replace('type: aws', 'type: awss'))).join('\n');
  expect(said).toMatch(/clouds\.aws\.type: .*did you mean "aws"\?/);
  expect(said).not.toContain('there is no such cloud');
});

it('a host of a cloud in a file without clouds is told to write one', async () => {
  const said = (await folder.check(config(usual).replace(clouds, ''))).join('\n');
  expect(said).toMatch(/hosts\.burst\.cloud: there is no such cloud; none is written/);
});

it.each([
  ['', /hosts: needs "join" at the top level/],
  ['join: { listen: "0.0.0.0:7718", package: /srv/x }', /join: "url" is missing/],
  ['join: { listen: "0.0.0.0:7718", url: "http://ci.example.org", package: /srv/x }', /join\.url: is not https/],
  [
    'join: { listen: "0.0.0.0:7718", url: "https://ci.example.org", package: "https://x/y.tgz" }',
    /join\.package: .*"sha256" is required/,
  ],
  [
    'join: { through: cloud, listen: "0.0.0.0:7718", package: /srv/x }',
    /join\.listen: has no meaning with "through: cloud"[\s\S]*join\.package: is a file, but with "through: cloud"/,
  ],
  ['join: { through: cloud, package: "https://x/y.tgz" }', /join\.package: .*"sha256" is required/],
  ['join: { through: cloud }', /join: "package" is missing$/],
  ['join: { through: could, package: "https://x/y.tgz" }', /join\.through: /],
])('%s is refused with the place', async (more, said) => {
  expect((await folder.check(config(usual, more))).join('\n')).toMatch(said);
});

it.each([
  ['hub', 'a: { service: hub }', /hosts\.burst\.pools\.a\.queue: is missing: "service" is hub/],
  ['hub', 'a: { service: hub, queue: acme/app, tags: ["a b"] }', /:\d+: hosts\.burst\.pools\.a\.tags: contain "a b"/],
  [
    'lab',
    'a: { service: lab }, b: { service: lab }',
    /hosts\.burst\.pools\.b\.service: is lab, which pool a uses already: a service of type gitlab is one runner/,
  ],
  ['none', 'a: { agents: per-device }', /hosts\.burst\.pools\.a\.agents: is per-device, but "devices" is 0/],
  ['none', 'a: { agents: 2, name: gpu }', /hosts\.burst\.pools\.a\.name: "gpu" gives all slots of the pool the same name/],
  ['none', 'a: { shm_size: 2GiB, memory: 1GiB }', /hosts\.burst\.pools\.a\.shm_size: is 2GiB, more than "memory"/],
])('a pool of machines is checked as that of a daemon is: service %s, %s', async (_, pools, said) => {
  expect((await folder.check(services + config(`cloud: aws, types: [g6.xlarge], pools: { ${pools} }`))).join('\n')).toMatch(said);
});

it('a pool of machines may take the jobs of a pool of this host', async () => {
  const pool = '{ service: hub, queue: acme/app, tags: [gpu] }';
  const text = `${services}${config(`cloud: aws, types: [g6.xlarge], pools: { gpu: ${pool}, b: { service: lab } }`)}pools: { local: ${pool}, c: { service: lab } }\n`;
  expect(await folder.check(text)).toEqual([]);
});

it('machines may join through the cloud', async () => {
  const more = `join: { through: cloud, package: "https://example.org/onejob.tgz", sha256: "${'a'.repeat(64)}" }`;
  const serving = services + config('cloud: aws, types: [g6.xlarge], pools: { gpu: { service: lab } }', more);
  expect(await folder.check(serving)).toEqual([]);
  expect((await folder.check(config(usual, more))).join('\n')).toMatch(
    /hosts\.burst\.pools\.gpu\.service: is own, but .* need "join\.listen"/,
  );
  const program = serving.replace(clouds, 'clouds: { aws: { type: command, program: /etc/onejob/provider } }');
  expect((await folder.check(program)).join('\n')).toMatch(/hosts\.burst\.cloud: is of type command, .*write "join\.listen"/);
  const { config: loaded } = await folder.load(serving);
  expect(loaded.join).toMatchObject({ listen: null, url: null, tls: null, package: 'https://example.org/onejob.tgz' });
});

it('a machine gets its pools, the services that they name, and their secrets as files in memory', async () => {
  const text = `
services:
  julia: { type: buildkite, token: { env: TOKEN } }
  other: { type: buildkite, token: { env: OTHER } }
defaults: { cpus: 2, name: "gpu-{host}-{n}" }
${config('cloud: aws, types: [g6.xlarge], pools: { gpu: { service: julia, queue: cuda }, cpu: { name: "{host}-cpu" } }')}`;
  const { config: loaded } = await folder.load(text);
  const [host] = loaded.hosts;
  if (host === undefined) throw new Error('no host');
  expect(host.pools.map(({ name, agents, service }) => [name, agents, service])).toEqual([
    ['burst.gpu', 0, 'julia'],
    ['burst.cpu', 0, 'own'],
  ]);
  const { services, origins, secretsKey } = loaded;
  const variables = { TOKEN: 'bkct_secret', OTHER: 'another' };
  const guest = await guestOf(host, 'onejob-0123456789abcdef', { services, origins, secretsKey, variables });
  expect(guest.config).toBe(`services:
  julia:
    type: buildkite
    token:
      file: /run/onejob-cloud/secrets/julia.token
defaults:
  cpus: 2
  name: burst-012345-gpu-burst-012345-{n}
pools:
  gpu:
    service: julia
    queue: cuda
  cpu:
    name: burst-012345-cpu
`);
  const content = Buffer.from('bkct_secret').toString('base64');
  expect(guest.files).toEqual([{ path: '/run/onejob-cloud/secrets/julia.token', mode: '0600', content }]);
});
