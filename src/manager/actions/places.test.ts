import { chmodSync, mkdirSync, renameSync, symlinkSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { Folder } from '../../../test/kit/config.ts';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import type { PoolConfig } from '../../config/config.ts';
import { lookAtHost } from '../../config/host-look.ts';
import type { Mount } from '../../ports/runtime.ts';
import { createMountPlaces } from './places.ts';

const dir = eachScratch();
const at = (...parts: string[]) => join(dir.path, ...parts);
const mount = (host: string, more: Partial<Mount> = {}): Mount => {
  return { host, container: '/in', readOnly: true, variable: null, cache: null, ...more };
};

beforeEach(() => {
  for (const name of ['state', 'open/one', 'open/agent-1', 'closed', 'v1', 'v2', 'secret'])
    mkdirSync(at(name), { recursive: true });
  chmodSync(at('open'), 0o777);
  symlinkSync(at('v1'), at('closed', 'current'));
});

/** As after the check of a config with a pool that has these volumes. */
async function places(agents: PoolConfig['agents'], ...hosts: string[]) {
  const recipe = { mounts: hosts.map((host) => mount(host)) };
  const pools = [{ name: 'p', agents, agentName: 'agent-{n}', hooks: null, plugins: null, recipe }] as unknown as PoolConfig[];
  const guarded = { stateDir: at('state'), socket: at('state', 'onejob.sock'), secrets: [] };
  const config = { ...guarded, host: 'gpu', pools };
  return createMountPlaces({ ...config, places: await lookAtHost.places(config) });
}
function becomesLink(path: string, target: string): void {
  renameSync(path, `${path}.was`);
  symlinkSync(target, path);
}

test('a volume whose folder became a link is not mounted, until it is put back', async () => {
  const { of } = await places(1, at('open/one'));
  expect(await of([mount(at('open/one'))])).toEqual([at('open/one')]);
  becomesLink(at('open/one'), '/etc');
  await expect(of([mount(at('open/one'))])).rejects.toThrow(expect.objectContaining({ code: 'E_MOUNT_CHANGED' }));
  const why = `leads to /etc now, and led to ${at('open/one')} when it was checked`;
  await expect(of([mount(at('open/one'))])).rejects.toThrow(why);
  unlinkSync(at('open/one'));
  mkdirSync(at('open/one'));
  expect(await of([mount(at('open/one'))])).toEqual([at('open/one')]);
});

test('a link that is put in place of a volume after the config was checked is not mounted', async () => {
  using folder = new Folder();
  const pool = `{ service: own, runtime: docker, image: x, volumes: ["${at('open/one')}:/in"] }`;
  const { config } = await folder.load(`pools: { p: ${pool} }`, { look: lookAtHost });
  becomesLink(at('open/one'), '/etc');
  const { of } = createMountPlaces(config);
  await expect(of([mount(at('open/one'))])).rejects.toThrow('leads to /etc now');
});

test.each([1, 'per-device'] as const)('the same for a folder of each agent, of %s', async (agents) => {
  const { of } = await places(agents, at('open/{name}'));
  expect(await of([mount(at('open/agent-1'))])).toEqual([at('open/agent-1')]);
  becomesLink(at('open/agent-1'), '/etc');
  await expect(of([mount(at('open/agent-1'))])).rejects.toThrow('leads to /etc now');
});

test('a link that only the owner of the daemon can change is followed, but not to what no job may see', async () => {
  const { of } = await places(1, at('closed/current'));
  const leadsTo = (target: string) => {
    unlinkSync(at('closed/current'));
    symlinkSync(target, at('closed/current'));
  };
  leadsTo(at('v2'));
  expect(await of([mount(at('closed/current'))])).toEqual([at('v2')]);
  leadsTo(at('state'));
  await expect(of([mount(at('closed/current'))])).rejects.toThrow('state of onejob');
});

test('a volume that no config has is mounted, unless it is a link that others can change', async () => {
  const { of } = await places(1);
  symlinkSync('/usr', at('link'));
  expect(await of([mount(at('link')), mount(at('open/one'))])).toEqual(['/usr', at('open/one')]);
  becomesLink(at('open/one'), '/etc');
  await expect(of([mount(at('open/one'))])).rejects.toThrow('other users can change that');
});

test('a volume of a person leads to a folder of the group, also on a file server, or is not mounted', async () => {
  const config = { stateDir: at('state'), socket: at('state', 'onejob.sock'), secrets: [], host: 'gpu', pools: [] };
  // As `realOf` has it, which stops in front of a server.
  const leads: Record<string, string | null> = { '/nfs/lab/x': '/nfs/lab/y', '/nfs/lab/z': '/srv/others', '/nfs/lab/away': null };
  const { of } = createMountPlaces({ ...config, places: new Map() }, undefined, async (paths) => {
    return new Map(paths.map((path) => [path, { near: path, real: path in leads ? (leads[path] ?? null) : path, exists: true }]));
  });
  const theirs = (host: string) => mount(host, { real: host, within: ['/nfs/lab'] });
  expect(await of([theirs('/nfs/lab/x')])).toEqual(['/nfs/lab/y']);
  await expect(of([theirs('/nfs/lab/z')])).rejects.toThrow('leads to /srv/others now');
  await expect(of([theirs('/nfs/lab/away')])).rejects.toThrow('its file server has not said where it leads');
});

test('a volume of a job is what was checked, or nothing', async () => {
  const { of } = await places(1);
  symlinkSync('/usr', at('link'));
  expect(await of([mount(at('link'), { real: at('v1') })])).toEqual([at('v1')]);
  await expect(of([mount(at('link'), { real: at('state') })])).rejects.toThrow('state of onejob');
  becomesLink(at('v1'), '/etc');
  await expect(of([mount(at('link'), { real: at('v1') })])).rejects.toThrow('leads to /etc now');
});
