/** `init gitea` with a Gitea in memory behind a real port. */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Reply, serve } from '../../../test/kit/azure.ts';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { memoryGitea } from '../../../test/kit/gitea.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { types } from '../types.ts';

const token = 'a-token-of-twenty-and-more';
let dir: Scratch;
beforeEach(() => {
  dir = scratch();
  writeFileSync(at('token'), `${token}\n`, { mode: 0o600 });
});
afterEach(() => dir[Symbol.dispose]());
const at = (name: string) => join(dir.path, name);

/** Passes requests on to the one in memory; another token than ours is refused. */
function gitea(): Reply {
  const { fetch: answer } = memoryGitea();
  return async (request, response) => {
    const isOurs = request.headers.authorization === `token ${token}`;
    const body = request.body === '' ? {} : { body: request.body };
    const said = isOurs
      ? await answer(`http://forge${request.url}`, { method: request.method, ...body })
      : Response.json({ message: 'no' }, { status: 401 });
    response.writeHead(said.status, { 'Content-Type': 'application/json' });
    response.end(await said.text());
  };
}

async function init(...args: string[]) {
  await using server = await serve(gitea());
  const all = [
    'init',
    'gitea',
    '--config',
    at('config.yml'),
    '--url',
    server.url,
    '--token-file',
    'token',
    '--agents',
    '2',
    ...args,
  ];
  const { context, stdout, stderr } = testContext(all, dir.path);
  const { environment: usual } = context;
  const environment = { ...usual, config: null, configHome: at('home'), uid: 1000, path: dir.path, hostRoot: dir.path };
  const code = await runCli({ ...context, environment });
  return { code, stdout: stdout(), stderr: stderr(), url: server.url };
}

it('writes what it was told, once the server has said whose token it is and that the place is there', async () => {
  const { code, stderr, stdout, url } = await init('--queue', 'acme');
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: expect.stringContaining('is Gitea 1.26.4, and the token is that of root1.'),
  });
  expect(stderr).toContain('The token may manage the runners of acme; there are 0.');
  expect(stdout + stderr + readFileSync(at('config.yml'), 'utf8')).not.toContain(token);
  const { config, errors } = await checkConfig({
    types,
    look: lookAtHost,
    flags: { config: at('config.yml') },
    env: emptyEnvironment(),
  });
  expect(errors).toEqual([]);
  expect(config).toMatchObject({
    services: [{ type: 'gitea', url, token: { path: at('token') } }],
    pools: [{ name: 'gitea', service: 'gitea', queue: 'acme', agents: 2 }],
  });
});

it.each([
  ['an organisation that is not there', ['--queue', 'nosuch'], 'no organisation with that name'],
  ['a repository that is not there', ['--queue', 'acme/ap'], 'no such repository'],
  ['a queue that no place has', ['--queue', 'a/b/c'], 'an organisation (acme)'],
])('refuses %s, and writes nothing', async (_, args, why) => {
  const { code, stderr } = await init(...args);
  expect(code).not.toBe(0);
  expect(stderr).toContain(why);
  expect(() => readFileSync(at('config.yml'))).toThrow('ENOENT');
});

it('refuses a token that the server refuses', async () => {
  writeFileSync(at('token'), 'another-token-of-twenty\n');
  const { code, stderr } = await init('--queue', 'acme');
  expect(code).not.toBe(0);
  expect(stderr).toContain('refuses the credential');
  expect(stderr).not.toContain('another-token');
});
