/** `init github` with the stand-in on a real port. */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { startGitHub } from '../../../test/support/github-server.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { types } from '../types.ts';

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
/** On a terminal: what is typed after each prompt that matches. */
async function initAsked(args: readonly string[], answers: readonly (readonly [RegExp, string])[]) {
  const stdin = Object.assign(new PassThrough(), { isTTY: true });
  const own = ['--config', at('config.yml'), '--url', github.origin, '--agents', '2'];
  const { context, stderr } = testContext(['init', 'github', ...own, ...args], dir.path, { stdin: () => stdin });
  const left = [...answers];
  let from = 0;
  context.stderr.on('data', () => {
    const [next] = left;
    if (next === undefined || !next[0].test(stderr().slice(from))) return;
    left.shift();
    from = stderr().length;
    setImmediate(() => stdin.write(`${next[1]}\n`));
  });
  const { environment: usual } = context;
  const environment = { ...usual, config: null, configHome: at('home'), uid: 1000, path: dir.path, hostRoot: dir.path };
  const code = await runCli({ ...context, environment });
  return { code, stderr: stderr(), left: left.length };
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
  const { errors } = await checkConfig({ types, look: lookAtHost, flags: { config: at('config.yml') }, env: emptyEnvironment() });
  expect(errors).toEqual([]);
});

it('writes one for a token, and says that a repository is public', async () => {
  github.repository('acme/open', { isPrivate: false });
  writeFileSync(at('token'), github.userToken(), { mode: 0o600 });
  const { code, stderr } = await init('--queue', 'acme/open', '--token-file', 'token');
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('It is public: its jobs are refused until') });
  expect(readFileSync(at('config.yml'), 'utf8')).toMatch(/token:\n +file: /);
});

it('asks on a terminal whether to sign in as an App, and for its key', async () => {
  const { code, stderr, left } = await initAsked(
    ['--queue', 'acme'],
    [
      [/Id of a GitHub App, .*empty: an access token/, String(github.app.id)],
      [/private key of the App/, 'nowhere.pem'],
      [/nowhere\.pem does not exist.*private key of the App/s, 'key.pem'],
      [/Last day/, ''],
      [/\? /, 'y'],
    ],
  );
  expect({ code, left, stderr }).toEqual({
    code: 0,
    left: 0,
    stderr: expect.stringContaining('lets onejob manage the runners of acme'),
  });
  const written = readFileSync(at('config.yml'), 'utf8');
  expect(written).toMatch(new RegExp(`id: ${github.app.id}\\s+private_key:\\s+file: ${at('key.pem')}`));
  expect(written).not.toContain('PRIVATE KEY');
});

it('asks for a token instead if there is no App, and never for an enterprise', async () => {
  const typed = github.userToken();
  const token = [/Access token .*: $/, typed] as const;
  const rest = [[/Last day/, ''] as const, [/\? /, 'y'] as const];
  expect(await initAsked(['--queue', 'acme'], [[/Id of a GitHub App/, ''], token, ...rest])).toMatchObject({ code: 0, left: 0 });
  expect(readFileSync(at('config.yml'), 'utf8')).toMatch(/token:\n +file: /);
  const big = await initAsked(['--queue', 'enterprises/big', '--force', '--no-check'], [token, ...rest]);
  expect(big).toMatchObject({ code: 0, left: 0, stderr: expect.not.stringContaining('GitHub App') });
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
