import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { z } from 'zod';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { createJobFiles } from './job-files.ts';

let dir: Scratch;
const at = () => join(dir.path, 'jobs');
const open = () => createJobFiles(at(), z.object({ id: z.number(), more: z.string().optional() }));
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

it('keeps what was said last of each job, for the next manager, until it is forgotten', async () => {
  const files = open();
  expect(files.all()).toEqual([]);
  await files.keep('1', { id: 1, more: 'x' });
  await files.keep('2', { id: 2 });
  await files.keep('1', { id: 1 });
  expect(open().all()).toEqual([{ id: 1 }, { id: 2 }]);
  files.forget('1');
  files.forget('1');
  expect(open().all()).toEqual([{ id: 2 }]);
});

it('removes what a crash left half-written, and leaves what it cannot read', async () => {
  const files = open();
  await files.keep('1', { id: 1 });
  writeFileSync(join(at(), '2.json.new'), '{"id":');
  writeFileSync(join(at(), '3.json'), '{"id":"three"}');
  expect(files.all()).toEqual([{ id: 1 }]);
  expect(readdirSync(at()).sort()).toEqual(['1.json', '3.json']);
});
