import { chownSync } from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { Folder } from '../../../test/kit/config.ts';
import { githubService } from '../../../test/kit/github-service.ts';
import { lookAtHost } from '../../config/host-look.ts';
import type { Device } from '../../gpu/inventory.ts';
import { apiOf } from './client.ts';
import { deviceLabels } from './labels.ts';
import { describeExit } from './service.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const config = (service: string, pool: string) =>
  `services: { hub: { type: github, ${service} } }\npools: { lab: { service: hub, ${pool} } }\n`;
const rootly = 'docker: { socket: /var/run/docker.sock, folder: /nowhere/jobs }';
const app = 'app: { id: 1, private_key: { env: T } }';

describe('a config that cannot work says why', () => {
  it.each([
    ['token: { env: T }', 'agents: 1', /pools\.lab\.queue: is missing: .* write an organisation \(acme\)/],
    [app, 'queue: a/b/c', /"a\/b\/c", but "service" is hub/],
    [app, 'queue: enterprises/big', /GitHub lets Apps manage no runners there; write "token"/],
    [`${app}, group: gpu`, 'queue: acme/app', /runner groups belong to organisations/],
    [`${app}, mode: scale-set`, 'queue: acme, tags: "a,b"', /jobs name one scale set; write one tag/],
    [app, 'queue: acme, runtime: process', /agent is part of an image/],
    [app, 'queue: acme, network: none', /no agent would ever come online/],
    [app, 'queue: acme, timeout: 1h', /is not used: .* timeout-minutes/],
    [`${app}, token: { env: T }`, 'queue: acme', /signs in with only one of them/],
    [`${app}, url: "http://github.example.org"`, 'queue: acme', /in clear text to github\.example\.org/],
    [`${app}, poll: 1m, boot_timeout: 1m`, 'queue: acme', /would end an agent before it sees it/],
    [`${app}, agent: { from: /srv/runner.tar.gz }`, 'queue: acme', /write "version" too/],
    [`${app}, agent: { sha256: ${'a'.repeat(64)} }`, 'queue: acme', /would refuse the next one/],
    [`${app}, url: "https://github.com/acme"`, 'queue: acme', /must be the address of the server alone/],
    [`${app}, url: "https://api.github.com"`, 'queue: acme', /must be the address of the server alone/],
    [app, 'queue: acme/..', /"acme\/\.\.", but/],
    [app, 'queue: Enterprises/big', /GitHub lets Apps manage no runners there/],
    [`${app}, agent: { folder: /srv, version: 2.336.0 }`, 'queue: acme', /agent\.version: is not used: "folder" is set/],
    [`${app}, docker: { socket: /var/run/docker.sock }`, 'queue: acme', /"folder" is missing/],
    [`${app}, ${rootly}`, 'queue: acme', /warning.*all rights of root on this host/],
    [
      `${app}, ${rootly}, forks: run`,
      'queue: acme',
      /hub\.docker: is set together with "forks: run": jobs of strangers would be root/,
    ],
    [`${app}, ${rootly}`, 'queue: acme, image: x, containers: true', /containers: is true, but .*"docker" is another Engine/],
    [`${app}, ${rootly}, public: run`, 'queue: acme', /is set together with "public: run"/],
    [
      `${app}, docker: { socket: /run/user/7/docker.sock, folder: /srv/jobs }, forks: run`,
      'queue: acme',
      /^.*warning.*all rights of the owner of/,
    ],
    [`${app}, webhook: { listen: "127.0.0.1:8787" }`, 'queue: acme', /"secret" is missing/],
    [
      `${app}, webhook: { listen: "0.0.0.0:8787", secret: { env: S } }`,
      'queue: acme',
      /warning.*others can reach without encryption/,
    ],
    ['app: { id: 1 }', 'queue: acme', /private_key/],
    ['url: "https://github.example.org"', 'queue: acme', /token.*app|app.*token/],
  ])('%s, %s', async (service, pool, message) => {
    expect((await folder.check(config(service, pool))).join('\n')).toMatch(message);
  });
});

it.each([
  ['jit', /warning.*are those of pool lab/],
  ['scale-set', /pools\.other\.tags: are those of pool lab/],
])('tells two pools with the same labels, with mode %s', async (mode, message) => {
  const two = `services: { hub: { type: github, ${app}, mode: ${mode} } }
pools: { lab: { service: hub, queue: acme, tags: GPU }, other: { service: hub, queue: Acme, tags: gpu } }
`;
  expect((await folder.check(two)).join('\n')).toMatch(message);
});

it.each([
  ['agent: { folder: /nowhere/runner }', /agent\.folder: is \/nowhere\/runner, which is not there: no agent can start/],
  [rootly, /docker\.folder: is \/nowhere\/jobs, which is not there/],
])('warns of what sandboxes cannot mount: %s', async (service, message) => {
  expect((await folder.check(config(`${app}, ${service}`, 'queue: acme'), { look: lookAtHost })).join('\n')).toMatch(message);
});

it('refuses strangers where it cannot be known whether the Engine is that of root', async () => {
  const open = `${app}, docker: { socket: /nowhere/docker.sock, folder: /srv/jobs }, public: run`;
  expect((await folder.check(config(open, 'queue: acme'), { look: lookAtHost })).join('\n')).toMatch(
    /^(?!.*warning).*hub\.docker: is set together with "public: run", but \/nowhere\/docker\.sock is not there.*; start that Engine/m,
  );
});

it.runIf(process.getuid?.() === 0).each([
  [
    'image: lab:1',
    /pools\.lab\.user: is that of the image, but service hub gives jobs the Engine of user 4321: .* write user: "4321:4321"/,
  ],
  ['user: builder', /pools\.lab\.user: is builder, but/],
  ['user: "0:0"', /pools\.lab\.user: is 0:0, but/],
  ['user: "4321:4321"', null],
])('lets sandboxes use the Engine of a user only as that user: %s', async (pool, message) => {
  const socket = folder.write('docker.sock', '');
  chownSync(socket, 4321, 4321);
  const service = `${app}, docker: { socket: ${socket}, folder: /srv }, forks: run`;
  const found = (await folder.check(config(service, `queue: acme, ${pool}`), { look: lookAtHost })).join('\n');
  expect(found).toMatch(/warning.*all rights of user 4321/);
  if (message === null) expect(found).not.toContain('pools.lab.user');
  else expect(found).toMatch(message);
});

it('says that two cannot listen at one address', async () => {
  const hook = 'webhook: { listen: "127.0.0.1:8787", secret: { env: S } }';
  const service = `type: github, ${app}, ${hook}`;
  const two = `services: { a: { ${service} }, b: { ${service} } }\npools: { lab: { service: a, queue: acme } }\n`;
  expect((await folder.check(two)).join('\n')).toMatch(/services\.b\.webhook\.listen: is 127\.0\.0\.1:8787, as that of service a/);
  const api = `api: { listen: "127.0.0.1:8787" }\n${config(`${app}, ${hook}`, 'queue: acme')}`;
  expect((await folder.check(api)).join('\n')).toMatch(/as that of "api": only one can listen there/);
});

it.each([
  ['mode: scale-set', 'queue: acme'],
  ['mode: jit', 'queue: acme/app'],
])('leases devices where GitHub tells what waits: %s, %s', async (mode, queue) => {
  expect((await folder.load(config(`${app}, ${mode}`, `${queue}, standby: false, devices: 1`))).errors).toEqual([]);
});

it('leases no devices for an organisation, whose waiting jobs only webhooks tell, which may be lost', async () => {
  const hook = 'webhook: { listen: "127.0.0.1:8787", secret: { env: S } }';
  for (const more of [app, `${app}, ${hook}`])
    expect((await folder.check(config(more, 'queue: acme, standby: false, devices: 1'))).join('\n')).toMatch(
      /standby: is false, but "devices" are asked for .* write "mode: scale-set"/,
    );
});

it('takes the default group of a repository, however it is written', async () => {
  expect((await folder.load(config(`${app}, group: default`, 'queue: acme/app'))).errors).toEqual([]);
});

it('holds its defaults', async () => {
  const { config: found, errors } = await folder.load(config(app, 'queue: Acme'));
  expect(errors).toEqual([]);
  expect(found.services[0]).toMatchObject({
    url: 'https://github.com',
    group: 'Default',
    mode: 'jit',
    forks: 'refuse',
    public: 'refuse',
  });
  expect(found.pools[0]).toMatchObject({ runtime: 'docker', imageRecipe: { base: 'auto' } });
});

it.each([
  ['https://github.com', 'https://api.github.com'],
  ['https://acme.ghe.com', 'https://api.acme.ghe.com'],
  ['https://github.example.org', 'https://github.example.org/api/v3'],
])('finds the API of %s', (url, api) => {
  expect(apiOf(url)).toBe(api);
});

it.each([
  ['NVIDIA A100-SXM4-40GB', 'gpu-a100'],
  ['NVIDIA H100 80GB HBM3', 'gpu-h100'],
  ['NVIDIA GeForce RTX 4090', 'gpu-rtx4090'],
  ['NVIDIA RTX A6000', 'gpu-a6000'],
  ['Tesla V100-SXM2-16GB', 'gpu-v100'],
  ['AMD Instinct MI250X', 'gpu-mi250x'],
  ['NVIDIA L40S', 'gpu-l40s'],
  ['Quadro RTX 8000', 'gpu-rtx8000'],
  ['NVIDIA L4', 'gpu-l4'],
  ['Tesla T4', 'gpu-t4'],
  ['NVIDIA RTX PRO 6000 Blackwell Server Edition', 'gpu-rtxpro6000'],
  ['NVIDIA GeForce RTX 3080 Ti', 'gpu-rtx3080ti'],
  ['NVIDIA GeForce RTX 4070 SUPER', 'gpu-rtx4070super'],
])('%s has the label %s', (model, label) => {
  const devices = [{ vendor: 'nvidia', model, mig: null }] as unknown as Device[];
  expect(deviceLabels({ devices, cuda: null })).toEqual(['gpu', label]);
});

it('tells a runner that is too old from one that had no job', () => {
  const ended = (code: number) => describeExit({ kind: 'code', code }, '');
  expect(ended(7)).toMatchObject({ code: 'E_AGENT_OUTDATED', message: expect.stringContaining('no longer accepts') });
  expect(ended(3)).toMatchObject({ code: 'E_AGENT_OUTDATED', message: expect.stringContaining('update itself') });
  expect(ended(0)).toMatchObject({ code: 'E_AGENT_ENDED' });
});

it('puts the newest runner into images, or the one that config names', async () => {
  const newest = githubService();
  expect(await newest.service.agentPackage('linux-arm64', patient)).toMatchObject({
    type: 'github',
    version: '2.336.0',
    sha256: 'ab'.repeat(32),
    from: expect.stringContaining('linux-arm64-2.336.0'),
  });
  newest.close();
  const pinned = githubService({ config: { agentPackage: { version: '2.330.0', from: null, sha256: null } } });
  expect(await pinned.service.agentPackage('linux-x64', patient)).toMatchObject({
    from: 'https://github.com/actions/runner/releases/download/v2.330.0/actions-runner-linux-x64-2.330.0.tar.gz',
  });
  pinned.close();
});

describe('doctor', () => {
  const said = async (
    options: Parameters<typeof githubService>[0],
    prepare?: (bench: ReturnType<typeof githubService>) => void,
  ) => {
    const bench = githubService(options);
    prepare?.(bench);
    const found = await bench.service.check(patient);
    bench.close();
    return found.map(({ level, message }) => `${level}: ${message}`).join('\n');
  };

  it.each<[string, Parameters<typeof githubService>[0], ((bench: ReturnType<typeof githubService>) => void) | undefined, RegExp]>([
    ['what it may do', {}, undefined, /ok: onejob may list the runners of acme: 0, 0 of them of this host/],
    ['a group that is missing', { config: { group: 'gpu' } }, undefined, /error: acme has no runner group "gpu"/],
    [
      'a public repository',
      { queues: ['acme/open'] },
      ({ github }) => void github.repository('acme/open', { isPrivate: false }),
      /error: acme\/open is public/,
    ],
    [
      'strangers who need no approval',
      { queues: ['acme/open'], config: { public: 'run', forks: 'run' } },
      ({ github }) => void github.repository('acme/open', { isPrivate: false }),
      /warning: acme\/open is public, "forks" is run, and not all pull requests from outside need an approval/,
    ],
  ])('tells %s', async (_, options, prepare, message) => {
    expect(await said(options, prepare)).toMatch(message);
  });
});
