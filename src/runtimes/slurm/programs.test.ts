/** Programs that nodes get. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startChild } from '../../../test/support/child.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { bringPrograms, programsOf, takeProgram } from './programs.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const mount = (host: string, program: boolean) => ({
  host,
  container: `/onejob/${host.split('/').at(-1)}`,
  readOnly: true,
  variable: null,
  cache: null,
  ...(program && { program: true as const }),
});

/** A program as `AgentProgram` keeps it: behind a link that config names. */
function kept(version: string): string {
  const folder = join(dir.path, `runner-${version}-0a1b`);
  mkdirSync(folder);
  writeFileSync(join(folder, 'runner'), `runner ${version}`, { mode: 0o555 });
  const link = join(dir.path, `at-${version}`);
  symlinkSync(folder, link);
  return join(link, 'runner');
}

const day = 86_400_000;

it('those of a recipe have the name of their version, and other mounts stay where they are', async () => {
  const found = await programsOf({ mounts: [mount(kept('1.0'), true), mount('/data', false)] });
  expect(found).toEqual([
    { file: join(dir.path, 'runner-1.0-0a1b/runner'), container: '/onejob/runner', path: 'runner-1.0-0a1b/runner' },
  ]);
  await expect(programsOf({ mounts: [mount(join(dir.path, 'at-2.0/runner'), true)] })).rejects.toMatchObject({
    code: 'E_MOUNT_MISSING',
    retry: true,
  });
});

describe('a shared folder', () => {
  it('gets each once, whole and for good, and loses what nobody has used for a week', async () => {
    const shared = join(dir.path, 'shared');
    mkdirSync(shared);
    const [old, next] = [
      await programsOf({ mounts: [mount(kept('1.0'), true)] }),
      await programsOf({ mounts: [mount(kept('2.0'), true)] }),
    ];
    const now = Date.now();
    await Promise.all([bringPrograms(shared, old, now), bringPrograms(shared, old, now)]);
    const target = join(shared, 'runner-1.0-0a1b/runner');
    expect(readFileSync(target, 'utf8')).toBe('runner 1.0');
    expect(statSync(target).mode & 0o777).toBe(0o555);
    const { ino } = statSync(target);
    await bringPrograms(shared, old, now + 6 * day);
    expect(statSync(target).ino).toBe(ino);
    await bringPrograms(shared, next, now + 12 * day);
    expect(readdirSync(shared).toSorted()).toEqual(['runner-1.0-0a1b', 'runner-2.0-0a1b']);
    utimesSync(join(shared, 'runner-1.0-0a1b'), now / 1000, now / 1000);
    const third = await programsOf({ mounts: [mount(kept('3.0'), true)] });
    await bringPrograms(shared, third, now + 13 * day);
    expect(readdirSync(shared).toSorted()).toEqual(['runner-2.0-0a1b', 'runner-3.0-0a1b']);
  });
});

describe('a node', () => {
  const program = { path: 'runner-1.0-0a1b/runner' };
  const take = (folder: string, input: string) =>
    spawnSync('/bin/sh', ['-c', takeProgram(folder, program)], { input, encoding: 'utf8' });

  it('keeps what comes, and reads no second one', () => {
    const folder = join(dir.path, 'programs');
    expect(take(folder, 'first').status).toBe(0);
    expect(take(folder, 'second').status).toBe(0);
    expect(readFileSync(join(folder, program.path), 'utf8')).toBe('first');
    expect([statSync(folder).mode & 0o777, readdirSync(folder)]).toEqual([0o700, ['runner-1.0-0a1b']]);
  });

  it('gets it once from agents that come at the same time', async () => {
    const folder = join(dir.path, 'programs');
    const children = Array.from({ length: 4 }, () =>
      startChild('/bin/sh', ['-c', `exec </dev/null\n${takeProgram(folder, program)}`], { cwd: '/', env: process.env }),
    );
    for (const { ended } of children) expect((await ended).code).toBe(0);
    expect(readdirSync(folder)).toEqual(['runner-1.0-0a1b']);
  });

  it('takes none into a folder of another user', () => {
    const folder = join(dir.path, 'programs');
    symlinkSync(dir.path, folder);
    expect(take(folder, 'first').status).toBe(94);
    expect(existsSync(join(dir.path, program.path))).toBe(false);
  });
});
