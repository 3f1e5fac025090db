/** The pools where none are written: without a config, or in one without `pools`. */

import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { emptyEnvironment, Folder, host } from '../../test/kit/config.ts';
import { emptyHost, plugIn } from '../../test/support/fake-tools/fake-tools.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { types } from '../cli/types.ts';
import { configShow } from './explain.ts';
import { checkConfig, type LoadOptions } from './load.ts';

let dir: Scratch;
let folder: Folder;
beforeEach(() => {
  dir = scratch();
  folder = new Folder();
});
afterEach(() => {
  folder[Symbol.dispose]();
  dir[Symbol.dispose]();
});

async function pools(options: Partial<LoadOptions>, text?: string) {
  const env = emptyEnvironment({ ONEJOB_HOST_ROOT: dir.path });
  const config = text === undefined ? {} : { flags: { config: folder.write('c.yml', text) } };
  const checked = await checkConfig({ types, env, cwd: dir.path, host, look: null, ...config, ...options });
  expect(checked.errors).toEqual([]);
  const shown = checked.config.pools.map(({ name, agents, devices, standby }) => `${name} ${agents} ${devices.count} ${standby}`);
  return { shown, checked };
}

const before = ['default 2 0 true'];

test('a host without GPUs: two agents', async () => {
  expect((await pools({ gpus: false })).shown).toEqual(before);
});

test('a host with GPUs: also one agent for each, which a temporary daemon gives only to jobs that ask', async () => {
  expect((await pools({ gpus: true })).shown).toEqual([...before, 'gpu per-device 1 true']);
  expect((await pools({ gpus: true, temporary: true })).shown).toEqual([...before, 'gpu per-device 1 false']);
  expect((await pools({ gpus: true }, 'keep_jobs: 1d')).shown).toEqual([...before, 'gpu per-device 1 true']);
});

test('what is written about pools stays as it was', async () => {
  expect((await pools({ gpus: true }, 'pools: { lab: {} }')).shown).toEqual(['lab 1 0 true']);
  expect((await pools({ gpus: true }, 'defaults: { agents: 4 }')).shown).toEqual(['default 4 0 true']);
  expect((await pools({ gpus: true }, 'defaults: { name: "box-{n}" }')).shown).toEqual(before);
});

test('the buses of the host decide, and "config show" says what was decided', async () => {
  const { sys } = emptyHost(dir.path);
  expect(sys).toBe(join(dir.path, 'sys'));
  expect((await pools({})).shown).toEqual(before);
  plugIn(sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' });
  const { shown, checked } = await pools({});
  expect(shown).toEqual([...before, 'gpu per-device 1 true']);
  const lines = configShow(checked).map(({ key, value, origin }) => `${key}: ${value} # ${origin}`);
  expect(lines).toContain('pools.gpu.agents: per-device # default');
  expect(lines).toContain('pools.gpu.devices.count: 1 # default');
});
