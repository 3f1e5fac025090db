/** `init gitlab` with a GitLab in memory behind a real port. */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { memoryGitlab, runnerToken } from '../../../test/kit/gitlab.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { types } from '../types.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());
const at = (name: string) => join(dir.path, name);

async function init(token: string, ...more: string[]) {
  const gitlab = memoryGitlab();
  await using _server = await gitlab.serve('127.0.0.1');
  writeFileSync(at('token'), `${token}\n`, { mode: 0o600 });
  const own = ['--config', at('config.yml'), '--url', `${gitlab.url}/`, '--token-file', 'token', '--agents', '2'];
  const { context, stdout, stderr } = testContext(['init', 'gitlab', ...own, ...more], dir.path);
  const environment = {
    ...context.environment,
    config: null,
    configHome: at('home'),
    uid: 1000,
    path: dir.path,
    hostRoot: dir.path,
  };
  const code = await runCli({ ...context, environment });
  return { code, said: stdout() + stderr(), url: gitlab.url, calls: gitlab.calls };
}

it('writes what it was told, once the server has accepted the token', async () => {
  const { code, said, url, calls } = await init(runnerToken);
  expect([code, said]).toEqual([0, expect.stringContaining(`${url} accepts the token, which is that of runner #12.`)]);
  expect(said + readFileSync(at('config.yml'), 'utf8')).not.toContain(runnerToken);
  expect(calls).toEqual(['POST /api/v4/runners/verify 200']);
  const { config, errors } = await checkConfig({
    types,
    look: lookAtHost,
    flags: { config: at('config.yml') },
    env: emptyEnvironment(),
  });
  expect(errors).toEqual([]);
  expect(config).toMatchObject({
    services: [{ type: 'gitlab', url, token: { path: at('token') } }],
    pools: [{ name: 'gitlab', service: 'gitlab', agents: 2 }],
  });
});

it.each([
  ['that the server refuses', 'glrt-of-somebody-else', 'refuses the token of the runner'],
  ['of a person', 'glpat-of-somebody-else', 'That is an access token'],
  ['that is too short', 'glrt', 'too short'],
])('refuses a token %s, and writes nothing', async (_, token, why) => {
  const { code, said } = await init(token);
  expect(code).not.toBe(0);
  expect(said).toContain(why);
  expect(() => readFileSync(at('config.yml'))).toThrow('ENOENT');
});
