import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { Mount } from '../ports/runtime.ts';
import { hostPathProblem, mountProblemFor } from './check-mounts.ts';
import { lookAtHost } from './host-look.ts';

let dir: Scratch;
let config: Parameters<typeof mountProblemFor>[0];
let problem: (mount: Mount) => string | null;
const at = (...parts: string[]) => join(dir.path, ...parts);
const mount = (host: string, more: Partial<Mount> = {}): Mount => ({
  host,
  container: '/in',
  readOnly: true,
  variable: null,
  cache: null,
  ...more,
});

beforeAll(() => {
  dir = scratch();
  for (const name of ['state/logs', 'run', 'engine', 'secrets', 'data', 'shared/below']) mkdirSync(at(name), { recursive: true });
  for (const name of ['run/onejob.sock', 'engine/own.sock', 'secrets/token']) writeFileSync(at(name), '');
  symlinkSync(at('state'), at('data', 'state'));
  symlinkSync(at('run'), at('link-to-run'));
  symlinkSync(at('engine'), at('link-to-engine'));
  symlinkSync(at('shared'), at('link-to-shared'));
  symlinkSync('/usr', at('shared', 'link'));
  symlinkSync('/proc/self/root', at('link-to-root'));
  config = {
    stateDir: at('state'),
    socket: at('link-to-run', 'onejob.sock'),
    secrets: [['services.ci.token', { kind: 'file', path: at('secrets', 'token'), expires: null }]],
    host: 'gpu-01',
    places: new Map(),
    pools: [{ name: 'train', recipe: { mounts: [mount(at('shared'), { readOnly: false })] } } as never],
  };
  const docker = { host: `unix://${at('link-to-engine', 'own.sock')}` } as never;
  problem = mountProblemFor(config, { docker, runtimeDir: '/run/user/1000' });
});
afterAll(() => dir[Symbol.dispose]());

describe('a volume of a job', () => {
  it.each([
    ['the state directory', 'state', 'state of onejob'],
    ['what is in it', 'state/logs', 'state of onejob'],
    ['what it is in', '', 'secret file|state of onejob'],
    ['a link to it', 'data/state', 'state of onejob'],
    ['what a link to it leads to', 'data/state/not-there-yet', 'state of onejob'],
    ['a link to everything', 'link-to-root', 'secret file|state of onejob'],
    ['the folder of the daemon’s socket', 'run', 'talk to onejob'],
    ['the daemon’s socket', 'run/onejob.sock', 'talk to onejob'],
    ['a secret', 'secrets/token', 'secret file of services.ci.token'],
    ['where the Engine listens', 'engine', 'all rights over this host'],
    ['the Engine’s socket', 'engine/own.sock', 'all rights over this host'],
    ['what is below a folder that jobs can write to', 'shared/below', 'pools.train.volumes.0.*replace it by a link'],
    ['the same through a link', 'link-to-shared/below', 'pools.train.volumes.0'],
    ['a link there, wherever it leads', 'shared/link', 'pools.train.volumes.0'],
  ])('must not show %s', (_, path, why) => {
    expect(problem(mount(path === '' ? dir.path : at(path)))).toMatch(new RegExp(why));
  });

  it.each([
    '/var/run/docker.sock',
    '/run/docker.sock',
    '/run',
    '/var/run',
    '/run/podman',
    '/run/user/1000',
    '/proc',
    '/proc/1',
    '/',
  ])('must not show %s', (path) => expect(problem(mount(path))).not.toBeNull());

  it.each([
    ['a place of the sandbox’s own', { container: '/workspace' }, 'belongs to the sandbox'],
    ['one written otherwise', { container: '//workspace/.' }, 'belongs to the sandbox'],
    ['a place in /proc', { container: '/proc/sys' }, 'belongs to the sandbox'],
    ['the root', { container: '/' }, 'belongs to the sandbox'],
    ['a relative place', { container: 'in' }, 'must be absolute'],
    ['a way up', { host: '/data/../etc/onejob' }, 'must not contain ".."'],
    ['a NUL', { host: '/da\0ta' }, 'control character'],
    ['no name of a variable', { variable: 'A=B' }, 'is not the name of a variable'],
  ])('is refused with %s', (_, more, why) => {
    expect(problem(mount('/data', more))).toContain(why);
  });

  it('may be anything else, also what is not there', () => {
    expect(problem(mount(at('data'), { variable: 'DATA', readOnly: false, container: '/workspace/data' }))).toBeNull();
    expect(problem(mount('/nowhere/at/all'))).toBeNull();
  });
});

it('follows links of a pool’s volumes; the config may mount the Engine’s socket', () => {
  for (const path of ['data/state', 'run', 'link-to-run']) expect(hostPathProblem(mount(at(path)), config)).not.toBeNull();
  for (const path of ['data', 'engine/own.sock']) expect(hostPathProblem(mount(at(path)), config)).toBeNull();
});

describe('volumes below a folder that jobs can write to', () => {
  const folder = new Folder();
  afterAll(() => folder[Symbol.dispose]());
  const pool = (name: string, keys: string) => `  ${name}: { service: own, runtime: docker, image: x, ${keys} }\n`;
  const errors = (...pools: string[]) => {
    const text = `pools:\n${pools.join('')}`;
    return folder.check(text).then((found) => found.filter((line) => line.includes('can write to')));
  };
  const why = (folder: string, key: string) =>
    `lies in ${folder}, which jobs can write to (${key}): a job could replace it by a link to any folder of this host; move it, or mount only that folder`;

  it.each([
    [
      'of its pool',
      [pool('n', 'volumes: ["/srv/d:/d:rw", "/srv/d/one:/one:rw"]')],
      `pools.n.volumes[1]: ${why('/srv/d', 'pools.n.volumes[0]')}`,
    ],
    [
      'of another',
      [pool('ci', 'volumes: ["/srv/d/m:/m"]'), pool('train', 'volumes: ["/srv/d:/d:rw"]')],
      `pools.ci.volumes[0]: ${why('/srv/d', 'pools.train.volumes[0]')}`,
    ],
    [
      'that is a cache',
      [pool('n', 'volumes: ["/srv/d/m:/m"], caches: ["/srv/d:/d"]')],
      `pools.n.volumes[0]: ${why('/srv/d', 'pools.n.caches[0]')}`,
    ],
    [
      'of each agent',
      [pool('n', 'agents: 2, volumes: ["/srv/{name}:/d:rw"]'), pool('m', 'volumes: ["/srv/box-n-2/x:/x"]')],
      `pools.m.volumes[0]: ${why('/srv/{name}', 'pools.n.volumes[0]')}`,
    ],
    [
      'of an agent, for each',
      [pool('n', 'agents: 2, volumes: ["/srv/{name}/x:/x", "/srv/box-n-1:/d:rw"]')],
      `pools.n.volumes[0]: ${why('/srv/box-n-1', 'pools.n.volumes[1]')}`,
    ],
  ])('%s', async (_, pools, expected) => {
    const [first, ...more] = await errors(...pools);
    expect([first, more]).toEqual([expect.stringContaining(expected), []]);
  });

  it('are refused on machines of a cloud, too, between the pools of one host', async () => {
    const machines = (name: string, ...volumes: string[]) => {
      const pools = volumes.map((volume, at) => `p${at}: { service: own, image: x, volumes: ["${volume}"] }`);
      return `  ${name}: { cloud: aws, types: [g6.xlarge], pools: { ${pools.join(', ')} } }\n`;
    };
    const found = await folder.check(`
clouds: { aws: { type: aws, region: us-west-2, credentials: { profile: ci }, scheduler_role: "arn:aws:iam::123456789012:role/x" } }
join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tar.gz }
pools: { local: { agents: 1, service: own, runtime: docker, image: x, volumes: ["/srv/d:/d:rw"] } }
hosts:
${machines('near', '/srv/d:/d:rw', '/srv/d/one:/one')}${machines('far', '/srv/d/one:/one')}`);
    expect(found.filter((line) => line.includes('can write to'))).toEqual([
      expect.stringContaining(`hosts.near.pools.p1.volumes[0]: ${why('/srv/d', 'hosts.near.pools.p0.volumes[0]')}`),
    ]);
  });

  it('are allowed in the same folder, next to it, and in folders that nobody can write to', async () => {
    const same = 'volumes: ["/srv/d:/d:rw", "/srv/d:/again", "/srv/dd/x:/x", "/srv/ro:/ro", "/srv/ro/in:/in"]';
    expect(await errors(pool('n', same), pool('m', 'agents: 2, volumes: ["/srv/{name}:/d:rw", "/srv/box-n-2/x:/x"]'))).toEqual([]);
  });
});

it('nothing shows what a link on a file server makes of a secret, the state or the socket', () => {
  const places = new Map(
    [at('secrets', 'token'), config.stateDir, config.socket].map((path, n) => [
      path,
      { near: path, real: `/nfs/${n}/x`, exists: true },
    ]),
  );
  const why = (path: string) => hostPathProblem(mount(path), { ...config, places });
  expect(why('/nfs/0')).toContain('secret file of services.ci.token');
  expect(why('/nfs/1/x/logs')).toContain('state of onejob');
  expect(why('/nfs/2')).toContain('talk to onejob');
  expect(why('/nfs/3')).toBeNull();
});

it('looks also where secrets lead', async () => {
  expect([...(await lookAtHost.places({ ...config, pools: [] })).keys()]).toEqual(
    expect.arrayContaining([at('secrets', 'token'), config.stateDir, config.socket]),
  );
});
