import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { Mount } from '../runtimes/runtime.ts';
import { type Guarded, hostPathProblem, mountProblemFor } from './check-mounts.ts';

let dir: Scratch;
let config: Guarded;
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
  for (const name of ['state/logs', 'run', 'engine', 'secrets', 'data']) mkdirSync(at(name), { recursive: true });
  for (const name of ['run/onejob.sock', 'engine/own.sock', 'secrets/token']) writeFileSync(at(name), '');
  symlinkSync(at('state'), at('data', 'state'));
  symlinkSync(at('run'), at('link-to-run'));
  symlinkSync(at('engine'), at('link-to-engine'));
  symlinkSync('/proc/self/root', at('link-to-root'));
  config = {
    stateDir: at('state'),
    socket: at('link-to-run', 'onejob.sock'),
    secretsKey: null,
    services: [
      { type: 'buildkite', name: 'ci', token: { kind: 'file', path: at('secrets', 'token') }, metricsToken: null } as never,
    ],
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
