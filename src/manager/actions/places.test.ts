import { chmodSync, mkdirSync, renameSync, symlinkSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Mount } from '../../runtimes/runtime.ts';
import { createMountPlaces } from './places.ts';

let dir: Scratch;
const at = (...parts: string[]) => join(dir.path, ...parts);
const mount = (host: string, more: Partial<Mount> = {}): Mount => {
  return { host, container: '/in', readOnly: true, variable: null, cache: null, ...more };
};

beforeEach(() => {
  dir = scratch();
  for (const name of ['state', 'open/one', 'open/agent-1', 'closed', 'v1', 'v2', 'secret'])
    mkdirSync(at(name), { recursive: true });
  chmodSync(at('open'), 0o777);
  symlinkSync(at('v1'), at('closed', 'current'));
});
afterEach(() => dir[Symbol.dispose]());

function places(agents: PoolConfig['agents'], ...hosts: string[]) {
  return placesAmong(undefined, agents, ...hosts);
}
function placesAmong(mountinfo: (() => string) | undefined, agents: PoolConfig['agents'], ...hosts: string[]) {
  const recipe = { mounts: hosts.map((host) => mount(host)) };
  const pools = [{ name: 'p', agents, agentName: 'agent-{n}', recipe }] as unknown as PoolConfig[];
  const guarded = { stateDir: at('state'), socket: at('state', 'onejob.sock'), secretsKey: null, services: [], notify: null };
  return createMountPlaces({ ...guarded, host: 'gpu', pools } as unknown as Parameters<typeof createMountPlaces>[0], mountinfo);
}
function becomesLink(path: string, target: string): void {
  renameSync(path, `${path}.was`);
  symlinkSync(target, path);
}

test('a volume whose folder became a link is not mounted, until it is put back', () => {
  const { of } = places(1, at('open/one'));
  expect(of([mount(at('open/one'))])).toEqual([at('open/one')]);
  becomesLink(at('open/one'), '/etc');
  expect(() => of([mount(at('open/one'))])).toThrow(expect.objectContaining({ code: 'E_MOUNT_CHANGED' }));
  expect(() => of([mount(at('open/one'))])).toThrow(`leads to /etc now, and led to ${at('open/one')} when the config was read`);
  unlinkSync(at('open/one'));
  mkdirSync(at('open/one'));
  expect(of([mount(at('open/one'))])).toEqual([at('open/one')]);
});

test.each([1, 'per-device'] as const)('the same for a folder of each agent, of %s', (agents) => {
  const { of } = places(agents, at('open/{name}'));
  expect(of([mount(at('open/agent-1'))])).toEqual([at('open/agent-1')]);
  becomesLink(at('open/agent-1'), '/etc');
  expect(() => of([mount(at('open/agent-1'))])).toThrow('leads to /etc now');
});

test('a link that only the owner of the daemon can change is followed, but not to what no job may see', () => {
  const { of } = places(1, at('closed/current'));
  const leadsTo = (target: string) => {
    unlinkSync(at('closed/current'));
    symlinkSync(target, at('closed/current'));
  };
  leadsTo(at('v2'));
  expect(of([mount(at('closed/current'))])).toEqual([at('v2')]);
  leadsTo(at('state'));
  expect(() => of([mount(at('closed/current'))])).toThrow('state of onejob');
});

test('a volume of a job is what was checked, and others are what they lead to', () => {
  const { of } = places(1);
  symlinkSync('/usr', at('link'));
  expect(of([mount(at('link')), mount(at('link'), { real: at('v1') })])).toEqual(['/usr', at('v1')]);
});

test('a volume on a file server is not looked at again, since that may be away', () => {
  const onServer = (path: string) => () => `20 1 0:20 / / rw - ext4 /dev/sda rw\n21 20 0:21 / ${path} rw - nfs4 server:/ rw\n`;
  becomesLink(at('open/one'), at('v1'));
  const { of } = placesAmong(onServer(at('open')), 1, at('open/one'));
  unlinkSync(at('open/one'));
  expect(of([mount(at('open/one')), mount(at('open/other'))])).toEqual([at('v1'), at('open/other')]);
  // A link on a disk of this host that leads there.
  becomesLink(at('closed/current'), at('v2'));
  const through = placesAmong(onServer(at('v2')), 1, at('closed/current'));
  unlinkSync(at('closed/current'));
  expect(through.of([mount(at('closed/current'))])).toEqual([at('v2')]);
});
