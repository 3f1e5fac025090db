import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { bareRecipe } from '../../../test/kit/recipe.ts';
import { leased } from '../../../test/kit/runtimes.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { noCards } from './engine-cards.ts';
import { engineUsers } from './engine-program.ts';
import { engineBody, outside, specInside, userFor } from './own-engine.ts';

const context = {
  owner: 'o',
  boot: 'b',
  engineStart: null,
  imageId: 'sha256:e',
  network: 'n',
  folder: '/s/engines/a1',
  user: engineUsers.trusted,
  store: 'v',
  ready: null,
  cards: noCards,
  others: {},
};
const specOf = (changes: Partial<Recipe>) => ({
  agent: 'a1',
  pool: 'p',
  slot: 'p/1',
  name: 'box-1',
  devices: [],
  recipe: { ...bareRecipe, image: 'i', containers: { image: 'e' }, ...changes },
});

it('an engine has two capabilities, a filter on system calls, and never all rights', () => {
  const { HostConfig } = engineBody(specOf({ unsafe: { privileged: true, pidHost: true, seccompUnconfined: true } }), context);
  expect(HostConfig).toMatchObject({ CapDrop: ['ALL'], CapAdd: ['SETUID', 'SETGID'] });
  expect(HostConfig.SecurityOpt[0]).toMatch(/^seccomp=\{/);
  expect(HostConfig).not.toHaveProperty('Privileged');
  expect(HostConfig).not.toHaveProperty('PidMode');
});

it('an engine is found as the agent that it is for, with its limits and what engines need on top', () => {
  const body = engineBody(specOf({ memory: 2 ** 30, cpus: 2, pids: 100 }), context);
  expect(body.Labels).toMatchObject({ 'onejob.owner': 'o', 'onejob.agent': 'a1', 'onejob.pool': 'p', 'onejob.slot': 'p/1' });
  expect(body.HostConfig).toMatchObject({
    Memory: 2 ** 30 + 2 ** 28,
    MemorySwap: 2 ** 30 + 2 ** 28,
    NanoCpus: 2e9,
    PidsLimit: 612,
  });
  const volumes = body.HostConfig.Mounts.filter((mount) => 'VolumeOptions' in mount);
  expect(volumes).toHaveLength(3);
  for (const { VolumeOptions } of volumes) expect(VolumeOptions).toEqual({ Labels: body.Labels });
});

it('the images that all engines share are read-only', () => {
  const { Mounts } = engineBody(specOf({}), context).HostConfig;
  expect(Mounts).toContainEqual({ Type: 'volume', Source: 'v', Target: '/var/lib/images', ReadOnly: true });
});

it('the images that jobs have from the start are read-only, too', () => {
  const { Mounts } = engineBody(specOf({}), { ...context, ready: 'r' }).HostConfig;
  expect(Mounts).toContainEqual({ Type: 'volume', Source: 'r', Target: '/var/lib/ready', ReadOnly: true });
});

it('the mirrors of a pool are those of its engines', () => {
  const containers = { image: 'e', mirrors: ['https://a', 'http://b:5000'] };
  expect(engineBody(specOf({ containers }), context).Env).toContain(
    'MIRRORS=--registry-mirror https://a --registry-mirror http://b:5000',
  );
  expect(engineBody(specOf({}), context).Env).toContain('MIRRORS=');
});

it('inside, folders have the same paths, and limits and network are those of the engine', () => {
  const mount = { host: '/data', container: '/d', readOnly: true, variable: 'D', cache: null };
  const spec = { ...specOf({ memory: 2 ** 30, cpus: 2, pids: 9, network: 'internet', mounts: [mount] }), places: ['/real'] };
  const { Mounts } = engineBody(spec, context).HostConfig;
  expect(Mounts).toContainEqual({ Type: 'bind', Source: '/real', Target: '/d', ReadOnly: true });
  const { recipe, ...rest } = specInside(spec, 'localhost/onejob:1');
  expect(rest).not.toHaveProperty('places');
  expect(recipe).not.toHaveProperty('containers');
  expect(recipe).toMatchObject({ imageId: 'localhost/onejob:1', network: 'host', memory: null, cpus: null, pids: null });
  expect(recipe.mounts.map(({ host, container }) => `${host} ${container}`)).toEqual([
    '/d /d',
    '/run/docker.sock /var/run/docker.sock',
    '/tmp /tmp',
  ]);
});

it.each([{ readOnly: true }, { tmpfs: { '/tmp': 'size=1m' } }])('a sandbox with a /tmp in memory keeps it: %o', (changes) => {
  expect(specInside(specOf(changes), 'i').recipe.mounts.map(({ container }) => container)).toEqual(['/var/run/docker.sock']);
});

it('an engine has the nodes of its cards one by one, and asks the Engine for no card, whose tools would mount into its /proc', () => {
  const cards = {
    ...noCards,
    nodes: [{ from: '/run/nvidia/driver/dev/nvidia3', to: '/dev/nvidia3' }],
    own: [['GPU-a', ['/dev/nvidia3']]] as const,
    files: [{ from: '/run/nvidia/driver/usr/lib/libcuda.so.580', to: '/usr/lib/libcuda.so.580' }],
  };
  const node = (from: string, to = from) => ({ PathOnHost: from, PathInContainer: to, CgroupPermissions: 'rw' });
  const others = { Devices: [node('/dev/kfd')], GroupAdd: ['44'] };
  const spec = { ...specOf({ grant: { ...bareRecipe.grant, way: 'request' } }), devices: [leased({ uuid: 'GPU-a', minor: 3 })] };
  const { Cmd, Env, HostConfig } = engineBody(spec, { ...context, cards, others });
  expect(Env).toContain('NVIDIA_VISIBLE_DEVICES=void');
  expect(HostConfig).not.toHaveProperty('DeviceRequests');
  expect(HostConfig).not.toHaveProperty('Runtime');
  expect(HostConfig.Devices).toEqual([
    node('/dev/net/tun'),
    node('/run/nvidia/driver/dev/nvidia3', '/dev/nvidia3'),
    node('/dev/kfd'),
  ]);
  expect(Cmd).toEqual(['a1', '/dev/nvidia3', '/dev/kfd']);
  const readOnly = { Type: 'bind', ReadOnly: true };
  expect(HostConfig.Mounts).toEqual(
    expect.arrayContaining([
      { ...readOnly, Source: '/s/engines/a1/cards', Target: '/var/lib/cards' },
      { ...readOnly, Source: '/run/nvidia/driver/usr/lib/libcuda.so.580', Target: '/var/lib/driver/usr/lib/libcuda.so.580' },
    ]),
  );
  expect(specInside(spec, 'i')).toMatchObject({ devices: spec.devices, recipe: { grant: { way: 'auto' } } });
});

it('an engine asks for no cards, also on an Engine whose images would get all', () => {
  const { Cmd, Env, HostConfig } = engineBody(specOf({}), context);
  expect(Env).toContain('NVIDIA_VISIBLE_DEVICES=void');
  expect(Cmd).toEqual(['a1']);
  expect(HostConfig.Mounts.filter(({ Target }) => Target.startsWith('/etc'))).toEqual([]);
});

it('an agent with ids of its own has them in its container, whose first program waits for them, and onejob knows them by its label', () => {
  const user = { ...engineUsers.trusted, first: 1_900_019_712 };
  const { Env, Labels } = engineBody(specOf({}), { ...context, user });
  expect(Env).toEqual(expect.arrayContaining(['ENGINE_USER=engine', 'ENGINE_FIRST=1900019712']));
  expect(outside({ uid: 1000, gid: 5 }, { Config: { User: '0', Labels } })).toEqual({ uid: 1_900_020_712, gid: 1_900_019_717 });
  const { 'onejob.ids': _, ...older } = Labels;
  expect(outside({ uid: 0, gid: 0 }, { Config: { User: '0', Labels: older } }).uid).toBe(engineUsers.trusted.first);
});

it('an untrusted job has other ids than a trusted one, and the image of engines has both', () => {
  const dockerfile = readFileSync(new URL('../../images/dockerfiles/engine.Dockerfile', import.meta.url), 'utf8');
  expect(dockerfile).toContain(
    `first=${engineUsers.trusted.first}; \\\n    for user in ${engineUsers.trusted.name} ${engineUsers.untrusted.name}`,
  );
  expect(dockerfile).toContain(`first=$((first + ${engineUsers.untrusted.first - engineUsers.trusted.first}))`);
  const rootOf = (untrusted?: true) => {
    const spec = specOf({ containers: { image: 'e', ...(untrusted && { untrusted }) } });
    const { Env, Labels } = engineBody(spec, { ...context, user: userFor(spec.recipe) });
    return [Env.find((one) => one.startsWith('ENGINE_USER=')), outside({ uid: 0, gid: 1 }, { Config: { User: '0', Labels } })];
  };
  expect(rootOf()).toEqual(['ENGINE_USER=engine', { uid: 1_879_048_192, gid: 1_879_048_193 }]);
  expect(rootOf(true)).toEqual(['ENGINE_USER=untrusted', { uid: 1_879_179_264, gid: 1_879_179_265 }]);
});
