/** What keeps the list of types the only one. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { types } from '../cli/types.ts';
import { schemasOf } from '../config/interpret.ts';
import { tellingOrigin, titlesWith } from '../config/types.ts';
import { ownQueue } from './own-queue/type.ts';
import { serviceType, serviceTypes } from './types.ts';

const src = join(import.meta.dirname, '..');
const others = serviceTypes.filter(({ type }) => type !== ownQueue.type);

it.each(others)('$type is named by the files of its folder and by its init only', ({ type }) => {
  const files = globSync('**/*.ts', { cwd: src }).filter((file) => !/\.test\.ts$|(^|\/)testing/.test(file));
  const naming = files.filter((file) => readFileSync(join(src, file), 'utf8').includes(`'${type}'`));
  expect(naming).toContain(`ci/${type}/type.ts`);
  expect(naming.filter((file) => !file.startsWith(`ci/${type}/`) && !file.startsWith('cli/init/'))).toEqual([]);
});

it.each(others)('$type needs keys that there are', ({ type }) => {
  const service = schemasOf(types).services[type];
  if (service === undefined) throw new Error(type);
  const { keys, maps, needs, mapNeeds = {}, removed = {} } = service;
  const known = Object.keys(keys.shape);
  expect(known).toEqual(expect.arrayContaining([...Object.keys(maps), ...needs.flat()]));
  for (const [map, names] of Object.entries(mapNeeds))
    expect(Object.keys(maps[map]?.shape ?? {})).toEqual(expect.arrayContaining([...names]));
  expect(known.filter((key) => Object.hasOwn(removed, key))).toEqual([]);
});

it('an unknown type is treated as the own queue', () => {
  expect(serviceType('jenkins')).toBe(ownQueue);
  expect(serviceType(undefined)).toBe(ownQueue);
});

it('services that tell where their jobs come from are known by the key for it', () => {
  expect(titlesWith(types, 'trust')).toBe('Buildkite, Gitea and GitLab');
  expect([...tellingOrigin(types, [{ name: 'jobs', type: 'own-queue' }])]).toEqual([]);
});
