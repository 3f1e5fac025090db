import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { engineOwner, userFor, whoControls } from './engine-owner.ts';

const asRoot = it.runIf(process.getuid?.() === 0);
const stranger = 54_321;
let dir: ReturnType<typeof scratch>;
const endings: (() => Promise<void>)[] = [];
beforeEach(() => {
  dir = scratch();
  chmodSync(dir.path, 0o755);
});
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
  dir[Symbol.dispose]();
});

/** A service whose jobs may use the Engine of this user, and whose folder that user owns. */
function bench(owner = process.getuid?.() ?? 0, pool = {}, config = {}) {
  const [socket, folder] = [join(dir.path, 'docker.sock'), join(dir.path, 'jobs')];
  writeFileSync(socket, '');
  mkdirSync(folder);
  for (const path of [socket, folder]) chownSync(path, owner, owner);
  const clock = handClock();
  const user = { recipe: { user: `${owner}:${owner}` } } as never;
  const made = githubService({ clock, pool: { ...(user as object), ...pool }, config: { docker: { socket, folder }, ...config } });
  const watching = new AbortController();
  endings.push(async () => {
    watching.abort();
    await made.service.close();
    made.close();
  });
  return {
    ...made,
    clock,
    socket,
    folder,
    watch: () => made.service.observe(() => {}, watching.signal),
    /** Path of the folder that the script of an agent makes. */
    async start(agent: string) {
      made.live.add(agent);
      const { script } = await made.service.register(contextOf(agent), patient);
      made.github.connect(jitIn(script));
      const path = new RegExp(`'(${folder}/[^/']+)'`).exec(script)?.[1] ?? '';
      mkdirSync(path);
      chownSync(path, owner, owner);
      return path;
    },
    async end(agent: string) {
      made.live.delete(agent);
      const ended = { ...contextOf(agent), exit: null, job: null } as never;
      await made.service.deregister(ended, patient);
    },
  };
}

it('removes what an agent left, however deep it is, and nothing behind a link', async () => {
  const { start, end, folder } = bench();
  const path = await start('a1');
  const kept = join(dir.path, 'kept');
  mkdirSync(kept);
  writeFileSync(join(kept, 'file'), '');
  symlinkSync(kept, join(path, 'link'));
  // Longer than any path may be.
  execFileSync('bash', ['-c', `n=$(printf '%0200d' 0); for i in {1..30}; do mkdir $n; cd -P ./$n 2>/dev/null || exit; done`], {
    cwd: path,
  });
  const depth = execFileSync('find', [path, '-type', 'd']).toString().split('\n').length;
  expect(depth * 200).toBeGreaterThan(5_000);
  await end('a1');
  await expect.poll(() => readdirSync(folder)).toEqual([]);
  expect(readdirSync(kept)).toEqual(['file']);
});

asRoot('does not remove it as root, nor with groups of root, where the Engine is of another user', async () => {
  const { start, end, folder } = bench(stranger);
  const [foreign, own] = [await start('a1'), await start('a2')];
  // Only root, or its group, can remove what is in it.
  mkdirSync(join(foreign, 'closed'));
  writeFileSync(join(foreign, 'closed', 'file'), '');
  chmodSync(join(foreign, 'closed'), 0o770);
  writeFileSync(join(foreign, 'open'), '');
  await end('a1');
  await end('a2');
  await expect.poll(() => existsSync(own)).toBe(false);
  await expect.poll(() => readdirSync(foreign)).toEqual(['closed']);
  expect(readdirSync(folder)).toHaveLength(1);
  expect(readdirSync(join(foreign, 'closed'))).toEqual(['file']);
});

it('sweeps what is left of agents that are gone, at its start and later, and touches nothing else', async () => {
  const { start, live, folder, watch, clock } = bench();
  const [running, first, second] = [await start('a1'), await start('a2'), await start('a3')];
  mkdirSync(join(folder, 'job-another0-a9'));
  mkdirSync(join(folder, 'a2'));
  live.delete('a2');
  watch();
  await expect.poll(() => existsSync(first)).toBe(false);
  live.delete('a3');
  await expect
    .poll(() => {
      clock.advance(3_600_000);
      return existsSync(second);
    })
    .toBe(false);
  const names = [running, join(folder, 'job-another0-a9'), join(folder, 'a2')].map((path) => path.slice(folder.length + 1));
  expect(readdirSync(folder).toSorted()).toEqual(names.toSorted());
});

asRoot('takes a link of a user for what that user may do, wherever it leads', () => {
  const [home, root] = [join(dir.path, 'home'), join(dir.path, 'root.sock')];
  mkdirSync(home);
  chownSync(home, stranger, stranger);
  writeFileSync(root, '');
  symlinkSync(root, join(home, 'docker.sock'));
  symlinkSync('home', join(dir.path, 'way'));
  for (const path of [join(home, 'docker.sock'), join(dir.path, 'way/docker.sock')])
    expect([whoControls(path), engineOwner(path), userFor(path)]).toEqual([stranger, 0, stranger]);
  expect(whoControls(join(dir.path, 'way/../root.sock'))).toBe(0);
  expect([whoControls(join(dir.path, 'absent')), engineOwner(join(dir.path, 'absent'))]).toEqual([null, null]);
});

asRoot.each([
  [stranger, { recipe: { user: null } }, {}, /pools\.ci\.user is that of the image, .* write user: "54321:54321"/],
  [stranger, { recipe: { user: '0:0' } }, {}, /pools\.ci\.user is 0:0, but service hub gives jobs the Engine of user 54321/],
  [0, {}, { forks: 'run' }, /services\.hub\.docker is set together with "forks: run": jobs of strangers would be root/],
] as const)('looks again at whose the Engine is before it makes an agent: %s, %j, %j', async (owner, pool, config, message) => {
  const { start } = bench(owner, pool, config);
  await expect(start('a1')).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringMatching(message) });
});
