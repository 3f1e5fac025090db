/** `init github` with the stand-in on a real port. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { startGitHub } from '../../../test/support/github-server.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { checkConfig } from '../../config/load.ts';

let dir: Scratch;
let github: Awaited<ReturnType<typeof startGitHub>>;
beforeEach(async () => {
  dir = scratch();
  github = await startGitHub();
  writeFileSync(at('key.pem'), github.app.pem, { mode: 0o600 });
});
afterEach(async () => {
  await github[Symbol.asyncDispose]();
  dir[Symbol.dispose]();
});
const at = (name: string) => join(dir.path, name);

async function init(...args: string[]) {
  const own = ['--config', at('config.yml'), '--url', github.origin, '--agents', '2'];
  const { context, stdout, stderr } = testContext(['init', 'github', ...own, ...args], dir.path);
  const { environment: usual } = context;
  const environment = { ...usual, config: null, configHome: at('home'), uid: 1000, path: dir.path, hostRoot: dir.path };
  const code = await runCli({ ...context, environment });
  return { code, stdout: stdout(), stderr: stderr() };
}
const asApp = (id: number = github.app.id) => ['--app', String(id), '--token-file', 'key.pem'];

it('writes a config for the App, once GitHub has shown it the runners', async () => {
  const { code, stdout, stderr } = await init('--queue', 'acme', ...asApp());
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: expect.stringMatching(/lets onejob manage the runners of acme; there are 0\./),
  });
  expect(stdout).toContain('runs-on: github');
  const written = readFileSync(at('config.yml'), 'utf8');
  expect(written).toContain(`id: ${github.app.id}`);
  expect(written).not.toContain('PRIVATE KEY');
  const { errors } = await checkConfig({ flags: { config: at('config.yml') }, env: emptyEnvironment() });
  expect(errors).toEqual([]);
});

it('writes one for a token, and says that a repository is public', async () => {
  github.repository('acme/open', { isPrivate: false });
  writeFileSync(at('token'), github.userToken(), { mode: 0o600 });
  const { code, stderr } = await init('--queue', 'acme/open', '--token-file', 'token');
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('It is public: its jobs are refused until') });
  expect(readFileSync(at('config.yml'), 'utf8')).toMatch(/token:\n +file: /);
});

it.each([
  ['an App without an installation', ['--queue', 'other'], /has no installation there/],
  ['a place without a meaning', ['--queue', 'a/b/c'], /Type an organisation/],
  ['an enterprise', ['--queue', 'enterprises/big'], /An App cannot manage the runners of an enterprise/],
  ['an address with more than the server', ['--queue', 'acme', '--url', 'https://github.com/acme'], /the server alone/],
])('writes nothing for %s', async (_, args, message) => {
  const { code, stderr } = await init(...args, ...asApp());
  expect({ isOk: code === 0, stderr }).toEqual({ isOk: false, stderr: expect.stringMatching(message) });
  expect(() => readFileSync(at('config.yml'))).toThrow();
});

it('refuses a file without a key, before it asks GitHub', async () => {
  writeFileSync(at('key.pem'), 'not a key', { mode: 0o600 });
  const { code, stderr } = await init('--queue', 'acme', ...asApp());
  expect({ code, stderr }).toEqual({
    code: expect.any(Number),
    stderr: expect.stringContaining('Expected a private key in PEM format'),
  });
  expect(github.calls).toEqual([]);
});
