/** `onejob dashboard`: the link, and the browser, which is a script here. */
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { readEnvironment } from '../config/environment.ts';
import { readVersion } from './session.ts';

let dir: Scratch;
let server: ApiServer;

beforeEach(async () => {
  dir = scratch();
  const files = join(dir.path, 'web');
  mkdirSync(files);
  writeFileSync(join(files, 'index.html'), '');
  server = await startApi({
    manager: createFakeManager(),
    version: readVersion(),
    socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' },
    web: { config: null, stateDir: dir.path, log: { info: () => {}, error: () => {} }, files },
  });
});

afterEach(async () => {
  await server.close();
  dir[Symbol.dispose]();
});

const link = /^http:\/\/127\.0\.0\.1:\d+\/login\/[\w-]{22}#[\w-]{22}$/m;

/** On a desktop, whose browser writes down what it was started with. */
async function onDesktop(...args: string[]) {
  const bin = join(dir.path, 'bin');
  mkdirSync(bin, { recursive: true });
  writeFileSync(join(bin, 'xdg-open'), `#!/bin/sh\necho "$@" >${dir.path}/opened\n`, { mode: 0o755 });
  const variables = { HOME: dir.path, ONEJOB_STATE_DIR: dir.path, DISPLAY: ':0', PATH: `${bin}:/usr/bin:/bin` };
  const { context, stdout, stderr } = testContext(['dashboard', ...args], dir.path, {
    variables,
    environment: readEnvironment(variables),
  });
  Object.assign(context.stdout, { isTTY: true });
  const code = await runCli(context);
  return { code, stdout: stdout(), stderr: stderr() };
}

test('prints a link that works once', async () => {
  const { context, stdout, stderr } = testContext(['dashboard', '--read-only'], dir.path);
  expect(await runCli(context)).toBe(0);
  expect(stdout()).toMatch(link);
  expect(stderr()).toMatch(/within a minute.*may see everything for seven days/s);
});

test('gives no link to a dashboard that is not built, and says how to build it', async () => {
  rmSync(join(dir.path, 'web'), { recursive: true });
  const { code, stdout, stderr } = await onDesktop();
  expect([code, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/^onejob: The dashboard of this onejob is not built\.\n.*"npm run build:web"/);
  expect(existsSync(join(dir.path, 'opened'))).toBe(false);
  expect(JSON.parse((await onDesktop('--json')).stdout)).toMatchObject({ built: false });
  mkdirSync(join(dir.path, 'web'));
  writeFileSync(join(dir.path, 'web', 'index.html'), '');
  expect((await onDesktop()).stdout).toMatch(link);
});

test('opens the browser of a desktop, and no argument of a program has the code', async () => {
  const { stdout, stderr } = await onDesktop();
  expect(stderr).toContain('opened in your browser');
  const opened = join(dir.path, 'opened');
  await expect.poll(() => existsSync(opened) && readFileSync(opened, 'utf8')).toBe(`${join(dir.path, 'dashboard.html')}\n`);
  const page = join(dir.path, 'dashboard.html');
  expect(readFileSync(page, 'utf8')).toContain(link.exec(stdout)?.[0] ?? '?');
  expect(statSync(page).mode & 0o777).toBe(0o600);
});

test.each([
  ['more than a link', '"><script>document.title = "here"</script><p "'],
  ['another scheme', 'file:///etc/passwd'],
  ['a script', 'javascript:alert(1)'],
])('writes and opens nothing if the daemon of another host sends %s', async (_, url) => {
  await server.close();
  // What another version answers is checked as what another host answers.
  const hostile = createServer((_request, response) => {
    response.writeHead(201, { 'content-type': 'application/json', 'onejob-version': '9.9.9' });
    response.end(JSON.stringify({ url, role: 'operator', until: 1 }));
  });
  const listening = Promise.withResolvers<void>();
  hostile.listen(join(dir.path, 'onejob.sock'), () => listening.resolve());
  await listening.promise;
  const { code, stdout, stderr } = await onDesktop();
  hostile.close();
  expect([code, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/daemon/);
  expect([existsSync(join(dir.path, 'opened')), existsSync(join(dir.path, 'dashboard.html'))]).toEqual([false, false]);
});

test('opens none where only the link, or JSON, is asked for', async () => {
  expect((await onDesktop('--print')).stdout).toMatch(link);
  const { url, role, until } = JSON.parse((await onDesktop('--json')).stdout);
  expect([url, role, typeof until]).toEqual([expect.stringMatching(link), 'operator', 'number']);
  expect(existsSync(join(dir.path, 'opened'))).toBe(false);
});
