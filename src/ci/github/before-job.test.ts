/** What is refused in front of a job when it is unclear where the job comes from. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { githubScript } from './script.ts';

function run(event: string | null, env: Record<string, string> = {}, refuses = { forks: true, public: false }) {
  using dir = scratch();
  const root = join(dir.path, 'agent');
  const workspace = join(dir.path, 'w');
  mkdirSync(join(root, 'bin'), { recursive: true });
  mkdirSync(join(root, 'externals/node24/bin'), { recursive: true });
  mkdirSync(workspace);
  writeFileSync(join(root, 'bin/Runner.Listener'), '#!/bin/sh\n"$ACTIONS_RUNNER_HOOK_JOB_STARTED"\necho "code=$?"\n', {
    mode: 0o755,
  });
  symlinkSync(process.execPath, join(root, 'externals/node24/bin/node'));
  const file = join(dir.path, 'event.json');
  if (event !== null) writeFileSync(file, event);
  const script = githubScript({ root, isWritable: true, workspace, shared: null, seesMounts: false, config: 'abc', refuses });
  const { PATH } = process.env;
  const job = { GITHUB_EVENT_PATH: file, GITHUB_REPOSITORY: 'acme/demo', GITHUB_RUN_ID: '70', GITHUB_EVENT_NAME: 'pull_request' };
  const child = spawnSync('sh', ['-c', script], { env: { PATH, ...job, ...env }, encoding: 'utf8', timeout: 60_000 });
  return `${child.stdout}${child.stderr}`;
}

it.each([
  ['absent', null],
  ['torn', '{"pull_request": {"head"'],
  ['a list', '[]'],
  ['null', 'null'],
])('an event that cannot be read (%s) is not taken for one without a fork', (_, event) => {
  expect(run(event)).toContain('code=1');
});

it('a pull request whose event names no head is refused', () => {
  expect(run('{"repository":{"private":true},"pull_request":{}}')).toContain('code=1');
});

it('NODE_OPTIONS of the image or the pool does not switch the check off', () => {
  const fork = '{"repository":{"private":true},"pull_request":{"head":{"repo":{"full_name":"stranger/demo"}}}}';
  expect(run(fork, { NODE_OPTIONS: '--import=data:text/javascript,process.exit(0)' })).toContain('code=1');
});
