import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, onTestFinished, test } from 'vitest';
import { scratch } from '../../support/scratch.ts';
import { startBuildkite } from './standin.ts';

/** One on a port of its own, with its files in a folder that goes with the test: one that is killed removes none. */
function byHand(more = ['--port', '0']) {
  const dir = scratch();
  const args = [join(import.meta.dirname, 'main.ts'), '--host', '127.0.0.1', ...more];
  const child = spawn(process.execPath, args, {
    env: { ...process.env, TMPDIR: dir.path },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  child.stderr.pipe(process.stderr, { end: false });
  const ended = once(child, 'exit');
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await ended;
    dir[Symbol.dispose]();
  });
  return { child, ended };
}

test('by hand: it says where it is and what to type next, obeys line by line, and ends', async () => {
  const { child, ended } = byHand();
  const said = text(child.stdout);
  child.stdin.write('queue -- true\ndown\nup\njobs\nquit\n');
  expect(await ended).toEqual([0, null]);
  const words = await said;
  expect(words).toMatch(/endpoint {2}http:\/\/127\.0\.0\.1:\d+\/v3\n {2}token {5}bkct_[\w-]{40}\n/);
  expect(words).toMatch(/type: buildkite, endpoint: "http:/);
  expect(words).toMatch(/Job \w{8} is queued\.\nNobody answers any more.*\nAnswers again on .*\n\w{8} {2}scheduled/);
});

test('by hand: its config is a file that holds as it is, with a state directory of its own, and is gone with it', async () => {
  const { child, ended } = byHand();
  let said = '';
  child.stdout.on('data', (data) => {
    said += data;
  });
  await expect.poll(() => said, { timeout: 10_000 }).toMatch(/An agent of your own/);
  const config = /unset ONEJOB_STATE_DIR ONEJOB_SOCKET\n {2}export ONEJOB_CONFIG=(\S+)\n {2}bin\/onejob up\n/.exec(said)?.[1] ?? '';
  expect(statSync(dirname(config)).mode & 0o777).toBe(0o700);
  const main = join(import.meta.dirname, '..', '..', '..', 'src', 'main.ts');
  const env = { ...process.env, ONEJOB_CONFIG: config };
  const checked = spawn(process.execPath, [main, 'config', 'check', '--no-secrets'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const words = text(checked.stdout);
  expect(await once(checked, 'exit'), await words).toEqual([0, null]);
  expect(readFileSync(config, 'utf8')).toContain(`state_dir: "${join(dirname(config), 'state')}"`);
  // Its image has no git: "doctor" would call that an error, and no checkout is wanted here.
  expect(readFileSync(config, 'utf8')).toMatch(
    /image: "debian:stable-slim", memory: 1GiB, env: \{ BUILDKITE_SKIP_CHECKOUT: "true" \}/,
  );
  child.stdin.end('quit\n');
  expect(await ended).toEqual([0, null]);
  expect(existsSync(dirname(config))).toBe(false);
});

test('the page that a job names says what to type instead', async () => {
  await using bk = await startBuildkite();
  const job = bk.job(bk.queueJob({ command: 'true' }));
  const said = await fetch(job.env.BUILDKITE_BUILD_URL ?? '');
  expect([said.status, await said.text()]).toEqual([200, expect.stringContaining('"cancel JOB" cancels a job')]);
  expect((await fetch(`${bk.endpoint}/acme/demo/builds/1`)).status).toBe(404);
});

test.each([
  [
    'a port that is in use',
    1,
    /^Cannot listen on 127\.0\.0\.1 port \d+ \(EADDRINUSE\): give another one with --port or --host\.\n$/,
  ],
  ['an option that does not exist', 2, /^Unknown option '--prot'[^\n]*\n$/],
])('by hand: %s is said in one line', async (what, code, line) => {
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  onTestFinished(() => void other.close());
  const { port } = other.address() as AddressInfo;
  const more = code === 1 ? ['--port', String(port)] : ['--prot', what];
  const { child, ended } = byHand(more);
  const said = text(child.stderr);
  expect(await ended).toEqual([code, null]);
  expect(await said).toMatch(line);
});
