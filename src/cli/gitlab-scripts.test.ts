/** The programs of a sandbox, run here as its processes would be. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Child, startChild } from '../../test/support/child.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { ending, running, waiting } from './gitlab-scripts.ts';

let dir: Scratch;
let children: Child[];
beforeEach(() => {
  dir = scratch();
  children = [];
});
afterEach(async () => {
  for (const child of children) if (child.running) await child.kill();
  dir[Symbol.dispose]();
});

function start([command = '', ...args]: readonly string[], env: NodeJS.ProcessEnv = process.env): Child {
  const child = startChild(command, args, { cwd: dir.path, env });
  children.push(child);
  return child;
}

/** The waiting program, once it can be told to end. */
async function waiter(idle?: number): Promise<Child> {
  const { command, env } = waiting(idle);
  const child = start(command, { ...process.env, ...env });
  await expect.poll(() => readFileSync(join(dir.path, '.onejob-gitlab'), 'utf8')).toBe(`${child.pid}\n`);
  return child;
}

function run(script: string, how: { counts?: boolean; grace?: number } = {}): Child {
  const child = start(running(how.counts ?? true, how.grace));
  child.typeMore(`${Buffer.byteLength(script)}\n${script}`);
  return child;
}

test('a script runs with its output and exit code, from input that is in no argument', async () => {
  await waiter();
  const child = run('echo "héllo"; echo wrong >&2; cat; tr "\\0" " " </proc/$PPID/cmdline | grep -c s3cret-héllo; exit 7\n');
  expect(await child.ended).toMatchObject({ code: 7, stdout: 'héllo\n0\n', stderr: 'wrong\n' });
});

test('the end of its input asks a script to end, and kills one that does not', async () => {
  await waiter();
  const polite = run("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done");
  await polite.says(/up/);
  polite.type('');
  expect(await polite.ended).toMatchObject({ code: 3, stdout: 'up\nbye\n' });
  const deaf = run("trap '' TERM; echo up; while :; do sleep 0.1; done", { grace: 1 });
  await deaf.says(/up/);
  deaf.type('');
  expect((await deaf.ended).code).toBe(137);
});

test.each([
  ['passed', 'true', true, 0],
  ['failed', 'exit 7', true, 7],
  ['failed where that does not count', 'false', false, 0],
] as const)('the waiting program says that a script has %s', async (_, script, counts, code) => {
  const waits = await waiter();
  await run(script, { counts }).ended;
  await start(ending).ended;
  expect((await waits.ended).code).toBe(code);
});

test('the waiting program ends when nobody has called for a while', async () => {
  const waits = await waiter(2);
  await run('sleep 1').ended;
  expect(await waits.ended).toMatchObject({ code: 1, stderr: expect.stringContaining('has not called for 2 s') });
});

test('an image without bash is told apart', async () => {
  const { command, env } = waiting();
  const { code, stdout } = await start(['/bin/sh', ...command.slice(1)], { ...env, PATH: dir.path }).ended;
  expect({ code, stdout }).toEqual({ code: 127, stdout: '' });
});
