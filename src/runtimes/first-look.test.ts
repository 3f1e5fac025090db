import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { FirstLook, removeDrafts } from './first-look.ts';

test('what is half made is swept once', async () => {
  const [look, sweep] = [new FirstLook(), vi.fn(async () => {})];
  await look.sweep(sweep);
  await look.sweep(sweep);
  expect(sweep).toHaveBeenCalledTimes(1);
});

test('nothing is swept once a sandbox is made: it may be that one', async () => {
  const [look, sweep] = [new FirstLook(), vi.fn(async () => {})];
  await look.end();
  await look.sweep(sweep);
  expect(sweep).not.toHaveBeenCalled();
});

test('who looks or makes a sandbox meanwhile waits until the sweep is over', async () => {
  const look = new FirstLook();
  const swept = Promise.withResolvers<void>();
  const done: string[] = [];
  const all = [look.sweep(() => swept.promise.then(() => void done.push('swept')))];
  all.push(look.sweep(async () => void done.push('swept again')).then(() => void done.push('looked')));
  all.push(look.end().then(() => void done.push('made')));
  await new Promise(setImmediate);
  expect(done).toEqual([]);
  swept.resolve();
  await Promise.all(all);
  expect(done).toEqual(['swept', 'looked', 'made']);
});

test('a look does not fail by what it cannot remove', async () => {
  const look = new FirstLook();
  await expect(look.sweep(() => Promise.reject(new Error('the disk is read-only')))).resolves.toBeUndefined();
});

test('only drafts go, and an agent that has a folder of its own is not forgotten', async () => {
  using here = scratch();
  for (const name of ['.new-a/log', '.new-b', 'b', '.gone-c', 'd']) mkdirSync(join(here.path, name), { recursive: true });
  writeFileSync(join(here.path, '.new-a/spec.json'), '{"owner":');
  const forgotten: string[] = [];
  await removeDrafts(here.path, async (agent) => void forgotten.push(agent));
  expect(readdirSync(here.path).sort()).toEqual(['.gone-c', 'b', 'd']);
  expect(forgotten).toEqual(['a']);
});
