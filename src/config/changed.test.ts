import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { emptyEnvironment, Folder, host } from '../../test/kit/config.ts';
import { types } from '../cli/types.ts';
import { configChange, type LoadedConfig } from './changed.ts';
import { lookAtHost } from './host-look.ts';
import { loadConfig } from './load.ts';

let folder: Folder;
beforeEach(() => {
  folder = new Folder();
});
afterEach(() => folder[Symbol.dispose]());

const noon = new Date(2030, 0, 2, 12, 5).getTime();
const path = () => join(folder.path, 'config.yml');
const found = (at: string) => ({ path: at, from: { source: 'default', line: null, column: null } });
const change = (loaded: LoadedConfig, at: string | null = path()) =>
  configChange(loaded, at === null ? null : found(at), noon + 1_000);

async function load(): Promise<LoadedConfig> {
  folder.write('more.yml', 'pools: { b: {} }\n');
  folder.write('config.yml', 'include: more.yml\npools: { a: {} }\n');
  const { config, files } = await loadConfig({ types, look: lookAtHost, flags: { config: path() }, env: emptyEnvironment(), host });
  return { path: config.path, files, at: noon };
}

test('files that say the same as when they were read are not a change, whenever they were written', async () => {
  const loaded = await load();
  folder.write('more.yml', 'pools: { b: {} }\n');
  expect(await change(loaded)).toBeNull();
});

test('a change of the file, or of one that it includes, is told with when it was read', async () => {
  for (const name of ['config.yml', 'more.yml']) {
    const loaded = await load();
    folder.write(name, 'pools: { c: {} }\n');
    expect(await change(loaded)).toBe(
      `${join(folder.path, name)} was changed after the daemon loaded it at 12:05; the daemon still uses what it loaded.`,
    );
  }
});

test('a file that went, and one that came', async () => {
  const loaded = await load();
  rmSync(join(folder.path, 'more.yml'));
  expect(await change(loaded)).toBe(
    `Cannot read ${join(folder.path, 'more.yml')} any more; the daemon still uses the config that it loaded at 12:05.`,
  );
  const none: LoadedConfig = { path: null, files: [], at: noon };
  expect(await change(none, null)).toBeNull();
  expect(await change(none, '/etc/onejob/config.yml')).toBe(
    '/etc/onejob/config.yml exists now, but this daemon was started without a config at 12:05.',
  );
});
