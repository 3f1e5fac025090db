import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { isAlive, untilGone } from '../../test/support/child.ts';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { type FakeTools, fakeTools, hangs } from '../../test/support/fake-tools/fake-tools.ts';
import { createRunner } from './run.ts';

const dir = eachScratch();
let tools: FakeTools;

beforeEach(() => {
  tools = fakeTools(dir.path);
});

const soon = { limit: 1_000 };
/** For what hangs once it has begun: it needs a turn before. */
const begun = { limit: 3_000 };
const patient = { limit: 20_000 };
const pidFile = () => join(dir.path, 'pid');
const pid = () => Number(readFileSync(pidFile(), 'utf8'));

test('output, complaints and exit code come back', async () => {
  tools.put('smi', 'echo out $*; echo err >&2; exit 9');
  const reply = await createRunner(tools).run('smi', ['-q', 'a b'], patient);
  expect(reply).toEqual({
    tool: 'smi',
    args: ['-q', 'a b'],
    output: 'out -q a b\nerr\n',
    code: 9,
    hung: false,
    missing: false,
    cut: false,
  });
});

test('what a tool gets of the environment is a path and plain English', async () => {
  tools.put('smi', 'env | sort; pwd');
  const { output } = await createRunner(tools).run('smi', [], patient);
  expect(output).toContain('LC_ALL=C\n');
  expect(output).not.toContain('HOME=');
  expect(output.endsWith('\n/\n')).toBe(true);
});

test('a huge limit on open files is lowered for the tool alone', async () => {
  tools.put('smi', 'ulimit -n; echo "$1"');
  const reply = await createRunner(tools).run('smi', ['a "b" $c'], patient);
  const [limit, arg] = reply.output.split('\n');
  expect(Number(limit)).toBeLessThanOrEqual(65_536);
  expect(arg).toBe('a "b" $c');
});

test('a tool that is not there, or not executable, is missing', async () => {
  const runner = createRunner(tools);
  expect(await runner.run('smi', [], patient)).toMatchObject({ code: 127, missing: true, output: '' });
  expect(await runner.find('smi')).toBeNull();
  tools.put('smi', 'true');
  expect(await runner.find('smi')).toBe(join(dir.path, 'tools', 'smi'));
});

test('exit code 127 of an existing tool differs from a missing tool', async () => {
  tools.put('smi', 'exec /nonexistent');
  expect(await createRunner(tools).run('smi', [], patient)).toMatchObject({ code: 127, missing: false });
});

test('a file that is not a program says so', async () => {
  tools.put('smi', '');
  const { chmodSync, writeFileSync } = await import('node:fs');
  writeFileSync(join(dir.path, 'tools', 'smi'), '#!/nonexistent/interpreter\n');
  chmodSync(join(dir.path, 'tools', 'smi'), 0o755);
  const reply = await createRunner(tools).run('smi', [], patient);
  expect(reply).toMatchObject({ code: expect.toBeOneOf([126, 127]), hung: false, missing: false });
  expect(reply.output).toContain(join(dir.path, 'tools', 'smi'));
});

test('death by a signal is 128 and the signal', async () => {
  tools.put('smi', 'echo half; kill -SEGV $$');
  expect(await createRunner(tools).run('smi', [], patient)).toMatchObject({ code: 139, output: 'half\n' });
});

test('a tool that hangs, deaf to TERM, is killed with its children', async () => {
  tools.put('smi', `echo $$ >'${pidFile()}'\necho half\n${hangs}`);
  const reply = await createRunner(tools).run('smi', [], begun);
  expect(reply).toMatchObject({ code: null, hung: true, output: 'half\n' });
  await untilGone(pid());
});

test('a wrapper whose child holds the pipe is ended with that child', async () => {
  tools.put('smi', `sh -c 'echo $$ >"${pidFile()}"; trap "" TERM; while :; do sleep 60; done' &\nwait`);
  expect(await createRunner(tools).run('smi', [], begun)).toMatchObject({ hung: true });
  await untilGone(pid());
});

test('a tool that ends while its child holds the pipe has answered', async () => {
  tools.put(
    'smi',
    `sh -c 'echo $$ >"${pidFile()}"; exec sleep 60' &\nuntil [ -s '${pidFile()}' ]; do sleep 0.01; done\necho answer\nexit 0`,
  );
  const reply = await createRunner({ ...tools, drain: 50 }).run('smi', [], patient);
  expect(reply).toMatchObject({ code: 0, hung: false, output: 'answer\n' });
  await untilGone(pid());
});

test('as long as one cannot be killed, no second one is started', async () => {
  tools.put('smi', `[ -e '${pidFile()}' ] && exit 0\necho $$ >'${pidFile()}'\n${hangs}`);
  const runner = createRunner({ ...tools, kill: () => {} });
  expect(await runner.run('smi', [], begun)).toMatchObject({ hung: true });
  expect(isAlive(pid())).toBe(true);
  const second = await runner.run('smi', ['-L'], patient);
  expect(second).toMatchObject({ args: ['-L'], hung: true, code: null, output: '' });
  expect(tools.calls('smi')).toHaveLength(1);
  process.kill(-pid(), 'SIGKILL');
  await untilGone(pid());
  // The runner hears of the end only after the kernel has it.
  await expect.poll(() => runner.run('smi', [], patient)).toMatchObject({ hung: false, code: 0 });
});

test('another tool is not held up by it', async () => {
  tools.put('smi', hangs);
  tools.put('other', 'echo fine');
  const runner = createRunner(tools);
  await runner.run('smi', [], soon);
  expect(await runner.run('other', [], patient)).toMatchObject({ code: 0, output: 'fine\n' });
});

test('a flood is cut and ended', async () => {
  tools.put('smi', 'yes 0123456789012345678901234567890123456789 | head -c 20971520; sleep 60');
  const reply = await createRunner(tools).run('smi', [], patient);
  expect(reply).toMatchObject({ cut: true, hung: false, code: null });
  expect(reply.output.length).toBeLessThanOrEqual(16 * 2 ** 20);
});

test('20 MiB are read whole where that much is allowed, split anywhere', async () => {
  tools.put('smi', 'yes ü | head -c 20971521');
  const reply = await createRunner({ ...tools, most: 2 ** 25 }).run('smi', [], patient);
  expect(reply.output).toHaveLength(13_981_014);
  expect(reply.output.startsWith('ü\nü\n')).toBe(true);
});

test('aborting the call ends the tool', async () => {
  tools.put('smi', `echo $$ >'${pidFile()}'\n${hangs}`);
  const stop = new AbortController();
  const asked = createRunner(tools).run('smi', [], { ...patient, signal: stop.signal });
  await expect.poll(() => tools.calls('smi').length, { timeout: 15_000 }).toBe(1);
  stop.abort();
  expect(await asked).toMatchObject({ hung: true });
});
