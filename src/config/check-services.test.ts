import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { configShow, formatShown } from './explain.ts';
import { lookAtHost } from './host-look.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const service = (more: string) => `services: { s: { type: azure-pipelines, ${more} } }\n`;
const usual = 'url: "https://dev.azure.com/acme", token: { file: /keys/pat }';
const principal = 'principal: { tenant: acme.com, client: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b, secret: { file: /keys/client } }';
const pool = (more: string) => `pools: { lab: { service: s, ${more} } }\n`;

it('what holds of a service where little is written', async () => {
  const { config, errors, warnings } = await folder.load(service(usual) + pool('queue: gpu'));
  expect([...errors, ...warnings]).toEqual([]);
  expect(config.services).toEqual([
    {
      name: 's',
      type: 'azure-pipelines',
      url: 'https://dev.azure.com/acme',
      credential: { kind: 'pat', token: { kind: 'file', path: '/keys/pat', expires: null } },
      registration: 'manager',
      pollEvery: 10_000,
      bootTimeout: 180_000,
      agentPackage: { version: null, from: null, sha256: null },
    },
  ]);
  // Its agent is a program in an image: onejob builds one, and only Docker has images.
  expect(config.pools[0]).toMatchObject({
    queue: 'gpu',
    runtime: 'docker',
    imageRecipe: { base: 'auto' },
    recipe: { image: null },
  });
});

it('and where all is written', async () => {
  const sha = 'AB'.repeat(32);
  const { config, errors, warnings } = await folder.load(
    service(
      `url: "https://dev.azure.com/acme/", ${principal}, registration: manager, poll: 5s, boot_timeout: 1m, agent: { version: 5.278.0, from: /srv/agent.tar.gz, sha256: ${sha} }`,
    ) + pool('image: "lab/agent:1", runtime: best'),
  );
  expect([...errors, ...warnings]).toEqual([]);
  expect(config.services[0]).toMatchObject({
    credential: {
      kind: 'principal',
      tenant: 'acme.com',
      client: '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b',
      secret: { kind: 'file', path: '/keys/client' },
      authority: 'https://login.microsoftonline.com',
    },
    pollEvery: 5000,
    bootTimeout: 60_000,
    agentPackage: { version: '5.278.0', from: '/srv/agent.tar.gz', sha256: sha.toLowerCase() },
  });
  expect(config.pools[0]).toMatchObject({ runtime: 'docker', imageRecipe: null, recipe: { image: 'lab/agent:1' } });
});

it("a version that only the package's name tells is known", async () => {
  const from = 'https://download.agent.dev.azure.com/agent/5.278.0/vsts-agent-linux-x64-5.278.0.tar.gz';
  const { config, errors, warnings } = await folder.load(service(`${usual}, agent: { from: "${from}" }`));
  expect([...errors, ...warnings]).toEqual([]);
  expect(config.services[0]).toMatchObject({ agentPackage: { version: '5.278.0', from } });
});

describe('keys of a service that do not go together, or are not what they should be', () => {
  const url = 'url: "https://dev.azure.com/acme"';
  it.each([
    [`${usual}, ${principal}`, 'services.s.principal: and "token" are both set: onejob signs in with only one of them'],
    [url, 'services.s: "token" or "principal" is missing'],
    [`${url}, principal: { tenant: t }`, 'services.s.principal: "client" is missing'],
    [`${url}, principal: { tenant: t }`, 'services.s.principal: "secret" is missing'],
    [
      `${url}, principal: { tenant: t, client: hunter2, secret: { env: S } }`,
      'services.s.principal.client: expected the id of an application',
    ],
    [`${url}, principal: { tennant: t }`, 'services.s.principal.tennant: unknown key; did you mean "tenant"?'],
    [`${usual}, agent: { versoin: 1.2.3 }`, 'services.s.agent.versoin: unknown key; did you mean "version"?'],
    [`${usual}, agent: { version: 5 }`, 'services.s.agent.version: "5" is not a version such as "5.278.0"'],
    [`${usual}, agent: { from: "http://x/a.tar.gz" }`, 'services.s.agent.from: "http://x/a.tar.gz" is not an https address'],
    [`${usual}, agent: { from: /srv/agent.tar.gz }`, 'services.s.agent.from: does not contain the version in its name'],
    [`${usual}, agent: { from: /srv/agent.zip }`, 'services.s.agent.from: expected an https address'],
    [`${usual}, agent: { sha256: abc }`, 'services.s.agent.sha256: expected a SHA-256 checksum'],
    [
      `${usual}, agent: { sha256: ${'ab'.repeat(32)} }`,
      'services.s.agent.sha256: is the checksum of one package, but "version" is latest',
    ],
    [`${usual}, agent: { from: "https://mirror/a-1.2.3.tar.gz" }`, 'warning: services.s.agent.from: has no "sha256": '],
    [`${usual}, poll: 1s`, 'services.s.poll: must be at least 2s'],
    [
      `${usual}, poll: 1m, boot_timeout: 90s`,
      'services.s.boot_timeout: is 1m30s, but "poll" is 1m: onejob would end an agent before',
    ],
    [`${usual}, registration: auto`, 'services.s.registration: '],
    [`${usual}, registration: in-agent`, 'warning: services.s.registration: is in-agent: the credential enters every sandbox'],
    [
      `${usual}, registration: image`,
      'warning: services.s.registration: is image: the credential enters every sandbox, and jobs may',
    ],
    [
      'url: "http://tfs.lab/c", token: { env: T }',
      'warning: services.s.url: is not encrypted: onejob would send the token in clear text to tfs.lab; write https',
    ],
    [
      `url: "https://tfs.lab/c", ${principal}`,
      'warning: services.s.principal: may not work: "url" seems to be an Azure DevOps Server',
    ],
    [
      'url: "https://dev.azure.com/acme/project/_settings/agentqueues", token: { env: T }',
      'services.s.url: is more than the address of the organisation; keep "https://dev.azure.com/acme"',
    ],
  ])('%s', async (keys, line) => {
    const lines = await folder.check(service(keys));
    expect(lines).toContainEqual(expect.stringContaining(line));
    expect(lines.join('\n')).not.toContain('hunter2');
  });
});

describe('pools that its agents could not work in', () => {
  it.each([
    ['runtime: process', 'pools.lab.runtime: is process, but "service" is s, whose Azure Pipelines agent is part of an image'],
    ['read_only: true', 'pools.lab.read_only: is true, but "service" is s, whose agent writes into its own folder'],
    ['network: none', 'pools.lab.network: is "none", but "service" is s, which an agent must reach'],
    [
      'standby: false, devices: 1',
      'pools.lab.standby: is false, but "devices" are asked for and "service" is s, whose agents hold their devices while they wait for a job',
    ],
    ['timeout: 2h', 'warning: pools.lab.timeout: is not used: "service" is s, where a pipeline sets how long its job may run'],
  ])('%s', async (keys, line) => {
    expect(await folder.check(service(usual) + pool(keys))).toEqual([expect.stringContaining(line)]);
    expect(await folder.check(`pools: { lab: { ${keys} } }\n`)).toEqual([]);
  });

  it.each(['standby: false', 'timeout: none', 'network: internet', 'agents: per-device, devices: 1'])(
    'but with %s they can',
    async (keys) => {
      expect(await folder.check(service(usual) + pool(keys))).toEqual([]);
    },
  );
});

describe('its secrets', () => {
  it.each([
    ['token', usual, '/keys/pat'],
    ['principal.secret', `url: "https://dev.azure.com/acme", ${principal}`, '/keys/client'],
  ])('%s: no volume may show it, no output tells it, and its end is told 14 days before', async (key, keys, path) => {
    const soon = service(keys.replace(`file: ${path}`, `file: ${path}, expires: 2030-01-31`));
    const lines = await folder.check(soon + pool('volumes: ["/keys:/x"]'));
    expect(lines).toEqual([expect.stringContaining(`would show jobs the secret file of services.s.${key}, ${path}`)]);
    const { config } = await folder.load(soon);
    expect(config.secrets.map(([name]) => name)).toEqual([`services.s.${key}`]);
    const checked = await folder.check(soon, { look: lookAtHost, now: Date.UTC(2030, 0, 18) });
    expect(checked).toContainEqual(expect.stringContaining(`warning: services.s.${key}.file: expires on 2030-01-31, in 13 days`));
    expect(checked).toContainEqual(expect.stringContaining(`services.s.${key}.file: ${path} does not exist`));
  });
});

it('config show tells all of it, and where each value comes from', async () => {
  const checked = await folder.load(service(`${usual}, poll: 30s`) + pool(''));
  const lines = formatShown(configShow(checked)).replaceAll(`${folder.path}/`, '').split('\n');
  const line = (key: string) => lines.find((one) => one.startsWith(`${key}: `))?.replace(/ +/g, ' ');
  expect(line('services.s.poll')).toBe('services.s.poll: 30s # config.yml:1');
  expect(line('services.s.boot_timeout')).toBe('services.s.boot_timeout: 3m # default');
  expect(line('services.s.registration')).toBe('services.s.registration: manager # default');
  expect(line('services.s.token')).toBe('services.s.token: file /keys/pat # config.yml:1');
  expect(line('pools.lab.image')).toBe('pools.lab.image: auto # default');
  expect(line('pools.lab.runtime')).toBe('pools.lab.runtime: docker # default');
});
