import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { describeHolder, holder, type Ours, ownersOf, parseCgroup, parsePasswd, whose } from './processes.ts';

const id = (digit: string) => digit.repeat(64);
const hour = 3_600_000;

const dir = eachScratch();
let proc = '';
let passwd = '';
beforeEach(() => {
  proc = dir.path;
  passwd = join(proc, 'passwd');
  writeFileSync(passwd, 'root:x:0:0::/root:/bin/sh\nalice:x:1001:1001:Alice:/home/alice:/bin/bash\nbad line\n');
  writeFileSync(join(proc, 'stat'), 'cpu 1 2 3\nbtime 1700000000\nprocesses 9\n');
});

/** Puts a process into the stand-in for /proc. */
function put(
  pid: number,
  files: { comm?: string; state?: string; start?: number; uid?: number; cgroup?: string; environ?: string },
) {
  const { comm = 'python', state = 'S', start = 360_000, uid, cgroup, environ } = files;
  const at = join(proc, String(pid));
  mkdirSync(at);
  writeFileSync(join(at, 'stat'), `${pid} (${comm}) ${state} 1 ${'0 '.repeat(17)}${start} 0 0\n`);
  if (uid !== undefined) writeFileSync(join(at, 'status'), `Name:\tx\nUid:\t${uid}\t0\t0\t0\n`);
  if (cgroup !== undefined) writeFileSync(join(at, 'cgroup'), cgroup);
  if (environ !== undefined) writeFileSync(join(at, 'environ'), environ);
}
const owner = (pid: number) => ownersOf([pid], { proc, passwd }).get(pid);

test('a person: user, program, since when', () => {
  put(41, { uid: 1001, cgroup: '0::/user.slice/user-1001.slice/session-3.scope\n' });
  const found = owner(41);
  expect(found).toMatchObject({
    user: 'alice',
    uid: 1001,
    command: 'python',
    startedAt: 1_700_000_000_000 + hour,
    containers: [],
    agents: [],
  });
  const wall = 1_700_000_000_000 + hour + 60_000;
  const started = new Date(1_700_000_000_000 + hour);
  const clock = `${String(started.getHours()).padStart(2, '0')}:${String(started.getMinutes()).padStart(2, '0')}`;
  const held = holder({ pid: 41, name: '/usr/bin/python', memoryMiB: 9421 }, found);
  expect(describeHolder(held, wall)).toBe(`alice: python, 9.2 GiB, since ${clock}`);
  expect(describeHolder(held, wall + 72 * hour)).toMatch(/since 2023-11-\d\d \d\d:\d\d$/);
});

test('a program with brackets and spaces in its name, and control characters that a terminal would obey', () => {
  put(42, { comm: 'a) R (b \u001b[2J', uid: 5012 });
  expect(owner(42)).toMatchObject({ command: 'a) R (b ?[2J', state: 'S', user: null, uid: 5012 });
  expect(describeHolder(holder({ pid: 42, name: null, memoryMiB: 38 }, owner(42)), 0)).toContain('uid 5012: a) R (b ?[2J, 38 MiB');
});

test("a program's arguments are not shown", () => {
  const held = holder({ pid: 7, name: '/opt/app/bin/serve --token hunter2', memoryMiB: null }, undefined);
  expect(held.command).toBe('serve');
  expect(describeHolder(held, 0)).toBe('serve');
});

test('gone, hidden, half readable or nonsense: no owner, or less of one, and no fault', () => {
  mkdirSync(join(proc, '50'));
  mkdirSync(join(proc, '51'));
  writeFileSync(join(proc, '51', 'stat'), 'not a stat line');
  mkdirSync(join(proc, '52', 'stat'), { recursive: true });
  put(53, {});
  const found = ownersOf([49, 50, 51, 52, 53, -1, 0, 1.5, Number.NaN], { proc, passwd: join(proc, 'none') });
  expect([...found.keys()]).toEqual([53]);
  expect(found.get(53)).toMatchObject({ uid: null, user: null, containers: [], agents: [], mark: null });
  rmSync(join(proc, 'stat'));
  expect(owner(53)?.startedAt).toBeNull();
  expect(describeHolder(holder({ pid: 49, name: null, memoryMiB: null }, undefined), 0)).toBe('process 49');
});

describe('control groups', () => {
  test.each([
    ['Docker, version 1', `12:devices:/docker/${id('a')}\n11:cpu:/docker/${id('a')}\n`, [id('a')]],
    ['Docker, version 2 with systemd', `0::/system.slice/docker-${id('b')}.scope\n`, [id('b')]],
    ['Podman', `0::/machine.slice/libpod-${id('c')}.scope/container\n`, [id('c')]],
    ['Kubernetes', `0::/kubepods.slice/kubepods-pod5_1.slice/cri-containerd-${id('d')}.scope\n`, [id('d')]],
    ['a container in a container', `0::/docker/${id('a')}/docker/${id('e')}\n`, [id('a'), id('e')]],
    ['a person', '0::/user.slice/user-1000.slice\n', []],
    ['nothing', '', []],
  ])('%s', (_, text, containers) => {
    expect(parseCgroup(text)).toEqual({ containers, agents: [] });
  });

  test('an agent of the process runtime, wherever the hierarchy begins', () => {
    const agents = [{ owner: 'o1', agent: 'gpu-1-abc' }];
    expect(parseCgroup('0::/onejob/o1/gpu-1-abc\n5:memory:/onejob/o1/gpu-1-abc\n')).toEqual({ containers: [], agents });
    expect(parseCgroup('0::/system.slice/x/onejob/o1/gpu-1-abc/nested\n').agents).toEqual(agents);
    expect(parseCgroup('0::/onejob/o1/.supervisors\n').agents).toEqual([]);
  });
});

describe('whose it is', () => {
  const ours: Ours = { owner: 'o1', alive: new Set(['live', id('a')]), ended: new Set(['dead', id('d')]) };
  test.each([
    ['a dead container of ours', { cgroup: `0::/docker/${id('d')}\n` }, 'ended'],
    ['a living container of ours', { cgroup: `0::/docker/${id('a')}\n` }, 'alive'],
    ['a container inside of a living one', { cgroup: `0::/docker/${id('a')}/docker/${id('f')}\n` }, 'alive'],
    ["somebody else's container", { cgroup: `0::/docker/${id('f')}\n` }, 'stranger'],
    ['a living agent', { cgroup: '0::/onejob/o1/live\n' }, 'alive'],
    ['an agent of ours that is no longer known', { cgroup: '0::/onejob/o1/forgotten\n' }, 'ended'],
    ["another installation's agent", { cgroup: '0::/onejob/o2/live\n' }, 'stranger'],
    ['a process that left its group and still carries the mark', { environ: 'A=1\0ONEJOB_AGENT_MARK=dead\0' }, 'ended'],
    ['a process that claims to be of a living agent', { environ: 'ONEJOB_AGENT_MARK=live\0' }, 'stranger'],
    ['a person', { cgroup: '0::/user.slice\n' }, 'stranger'],
  ])('%s', (_, files, expected) => {
    put(60, files);
    expect(whose(owner(60), ours)).toBe(expected);
  });

  test('a process that /proc does not show is unknown', () => {
    expect(whose(undefined, ours)).toBe('unseen');
  });
});

test('two names of one number: the first', () => {
  expect([...parsePasswd('a:x:1:\nb:x:1:\n# c:x:2:\nd:x::\n')]).toEqual([[1, 'a']]);
});

describe('this host', () => {
  let child: ChildProcess | null = null;
  afterEach(() => child?.kill('SIGKILL'));

  test('a real process is known while it lives', async () => {
    const before = Date.now();
    child = spawn('sleep', ['60'], { stdio: 'ignore' });
    await once(child, 'spawn');
    const pid = child.pid ?? 0;
    const found = ownersOf([pid]).get(pid);
    expect(found).toMatchObject({ uid: userInfo().uid, user: userInfo().username });
    expect(Math.abs((found?.startedAt ?? 0) - before)).toBeLessThan(60_000);
    child.kill('SIGKILL');
    await once(child, 'exit');
    expect(ownersOf([pid]).size).toBe(0);
  });
});
