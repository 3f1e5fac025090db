import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { delegate, groupOf, hasReachedLimit, limitsObstacle } from './engine-group.ts';

const id = 'ab'.repeat(32);

describe('the control group of a container', () => {
  let folders = new DisposableStack();
  afterEach(() => {
    folders.dispose();
    folders = new DisposableStack();
  });
  const folder = (): string => folders.use(scratch()).path;

  function process(lines: string): string {
    const root = folder();
    mkdirSync(join(root, 'proc/7'), { recursive: true });
    writeFileSync(join(root, 'proc/7/cgroup'), lines);
    return root;
  }

  test.each([
    ['with systemd', `0::/system.slice/docker-${id}.scope\n`, `system.slice/docker-${id}.scope`],
    ['without', `0::/docker/${id}\n`, `docker/${id}`],
    ['whose first process the job has moved', `0::/docker/${id}/own/docker/x\n`, `docker/${id}`],
  ])('is that of its id, %s', async (_, lines, group) => {
    const root = process(lines);
    expect(await groupOf(id, 7, root)).toBe(join(root, 'sys/fs/cgroup', group));
  });

  test.each([
    ['version 1', `12:memory:/docker/${id}\n0::/docker/${id}\n`],
    ['another container', `0::/docker/${'cd'.repeat(32)}\n`],
    ['the group of another namespace', '0::/\n'],
    ['no process', ''],
  ])('is not known with %s', async (_, lines) => {
    const root = process(lines);
    expect(await groupOf(id, 7, root)).toBeNull();
    expect(await groupOf(id, 8, root)).toBeNull();
  });

  test('belongs to the engine without what limits it, and has room for a bounded number of groups', async () => {
    const group = folder();
    for (const name of ['cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control', 'cgroup.max.descendants', 'memory.max'])
      writeFileSync(join(group, name), '');
    const { uid } = statSync(group);
    // Only root gives files away.
    const owner = uid === 0 ? 12_345 : uid;
    await delegate(group, owner);
    for (const name of ['.', 'cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control'])
      expect.soft(statSync(join(group, name)).uid, name).toBe(owner);
    expect(readFileSync(join(group, 'cgroup.max.descendants'), 'utf8')).toBe('2000');
    expect(statSync(join(group, 'memory.max')).uid).toBe(uid);
  });

  test.each([
    ['version 1 of control groups', 0, 'cgroup.procs', 'this host has version 1 of control groups'],
    ['onejob without root', 1000, 'cgroup.controllers', 'onejob is not root'],
    ['version 2', 0, 'cgroup.controllers', null],
  ])('limits single containers with version 2 and as root: %s', (_, user, file, why) => {
    const root = folder();
    mkdirSync(join(root, 'sys/fs/cgroup'), { recursive: true });
    writeFileSync(join(root, 'sys/fs/cgroup', file), '');
    expect(limitsObstacle(root, user)).toBe(why);
  });

  test.each([
    ['its own limit', 'max 9\noom 1\noom_kill 0\n', true],
    ['the limit of a group below it', 'max 0\noom 0\noom_kill 0\n', false],
  ])('says that %s has ended something', async (_, said, isOver) => {
    const group = folder();
    writeFileSync(join(group, 'memory.events.local'), said);
    expect(await hasReachedLimit(group)).toBe(isOver);
    expect(await hasReachedLimit(join(group, 'gone'))).toBeNull();
  });
});
