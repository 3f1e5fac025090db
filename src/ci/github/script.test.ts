/** The script that makes a sandbox a runner, and what it puts in front of a job, run by the shells of this host. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { attempt } from '../../base/errors.ts';
import { githubScript, type Refuses } from './script.ts';

/** Stands for the listener: runs what is in front of a job, as `JobHookProvider.cs` does, and says what came of it. */
const listener = `#!/bin/sh
echo "args: $*"
echo "jit: $ACTIONS_RUNNER_INPUT_JITCONFIG"
"$ACTIONS_RUNNER_HOOK_JOB_STARTED" >job.log 2>&1
echo "$?" >code
`;

interface Run {
  readonly event?: object | null;
  readonly env?: Readonly<Record<string, string>>;
  readonly refuses?: Partial<Refuses>;
  readonly hasNode?: boolean;
  readonly workspace?: string;
  readonly isWritable?: boolean;
  /** Jobs may use an Engine. */
  readonly hasEngine?: boolean;
}

/** Programs of the scripts, without this host's Node.js. */
const programs = 'sh mkdir rm ln mkfifo chmod cat cp'.split(' ');

async function run(given: Run) {
  const {
    event = {},
    env = {},
    refuses = {},
    hasNode = true,
    workspace: named = 'w',
    isWritable = true,
    hasEngine = false,
  } = given;
  using dir = scratch();
  const root = join(dir.path, 'agent');
  const workspace = join(dir.path, named);
  mkdirSync(join(root, 'bin'), { recursive: true });
  mkdirSync(join(root, 'externals/node24/bin'), { recursive: true });
  mkdirSync(workspace);
  writeFileSync(join(root, 'bin/Runner.Listener'), listener, { mode: 0o755 });
  if (hasNode) symlinkSync(process.execPath, join(root, 'externals/node24/bin/node'));
  const file = join(dir.path, 'event.json');
  if (event !== null) writeFileSync(file, JSON.stringify(event));
  const shared = hasEngine ? join(dir.path, "it's shared", 'a1') : null;
  const home = shared ?? (isWritable ? root : join(workspace, '.onejob/runner'));
  const all = { forks: true, public: true, ...refuses };
  const script = githubScript({ root, isWritable, workspace, shared, seesMounts: false, config: 'abc+/=', refuses: all });
  const job = {
    GITHUB_EVENT_PATH: file,
    GITHUB_REPOSITORY: 'acme/demo',
    GITHUB_RUN_ID: '70',
    GITHUB_RUN_ATTEMPT: '2',
    GITHUB_RUN_NUMBER: '5',
    GITHUB_WORKFLOW: 'CI',
    GITHUB_JOB: 'build',
    GITHUB_EVENT_NAME: 'push',
    GITHUB_REF: 'refs/heads/x',
    GITHUB_ACTOR: 'octocat',
  };
  const path = join(dir.path, 'path');
  mkdirSync(path);
  for (const name of programs) symlinkSync(`/bin/${name}`, join(path, name));
  const child = spawn('sh', ['-c', script], {
    env: { PATH: path, ...job, ...env },
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (data) => (stdout += data));
  child.stderr.on('data', (data) => (stderr += data));
  await once(child, 'exit');
  // A sandbox ends with its listener; here what reads on behind it is still there.
  if (hasNode) await expect.poll(() => stderr, { timeout: 30_000 }).toMatch(/^onejob: job .*\n/m);
  const { pid } = child;
  // Nobody may be left of the group.
  if (pid !== undefined) attempt(() => process.kill(-pid, 'SIGKILL'));
  const text = (name: string) => (existsSync(join(home, name)) ? readFileSync(join(home, name), 'utf8') : '');
  const mark = /^onejob: job (.*)$/m.exec(stderr)?.[1];
  return {
    stdout,
    stderr,
    log: text('job.log'),
    code: text('code').trim(),
    told: mark === undefined ? null : (JSON.parse(mark) as Record<string, unknown>),
    links: ['_work', '_diag', 'externals'].map((name) =>
      lstatSync(join(home, name)).isSymbolicLink()
        ? readlinkSync(join(home, name)).replace(workspace, 'W').replace(root, 'R')
        : 'real',
    ),
    there: readdirSync(root).toSorted(),
  };
}

const own = { repository: { full_name: 'acme/demo', private: true } };
const pull = (head: object | null, more: object = {}) => ({ ...own, pull_request: { head: { repo: head }, ...more } });

describe('the script of a runner', () => {
  it('becomes the listener, with its files in the workspace, and writes only on standard error', async () => {
    const { stdout, stderr, links } = await run({ event: own });
    expect(stdout).toBe('');
    expect(stderr).toContain('args: run\n');
    expect(stderr).toContain('jit: abc+/=');
    expect(links).toEqual(['W/work', 'W/.onejob-diag', 'real']);
  });

  it('runs from a copy of its programs where their folder cannot be written, and leaves nothing there', async () => {
    const { links, there, told } = await run({ event: own, isWritable: false, workspace: "it's a $HOME" });
    expect(links).toEqual(['W/work', 'W/.onejob-diag', 'R/externals']);
    expect(there).toEqual(['bin', 'externals']);
    expect(told).toMatchObject({ repository: 'acme/demo' });
  });

  it('has all files of its job and of itself where an Engine finds them, if jobs may use one', async () => {
    const { links, told } = await run({ event: own, hasEngine: true });
    expect(links).toEqual(['real', 'W/.onejob-diag', 'real']);
    expect(told).toMatchObject({ repository: 'acme/demo' });
  });

  it('tells which job it is, in a workspace with any name', async () => {
    const { told, code, log } = await run({ event: own, workspace: "it's a $HOME" });
    expect({ code, log }).toEqual({ code: '0', log: '' });
    expect(told).toEqual({
      repository: 'acme/demo',
      run: 70,
      number: 5,
      workflow: 'CI',
      name: 'build',
      event: 'push',
      ref: 'refs/heads/x',
      refused: null,
    });
  });

  it.each([
    ['a pull request of a fork', pull({ full_name: 'stranger/demo' }), {}, /from stranger\/demo, a fork/],
    ['one whose fork is gone', pull(null), {}, /a fork that is gone/],
    ['a run after that of a fork', { ...own, workflow_run: { head_repository: { full_name: 'stranger/demo' } } }, {}, /a fork/],
    ['a public repository', { repository: { private: false } }, {}, /acme\/demo is public/],
    ['an event that does not say', {}, {}, /acme\/demo is public/],
    ['an event that cannot be read', null, {}, /cannot read where it comes from/],
  ])('refuses %s, and says why in the job log and to onejob', async (_, event, env, why) => {
    const { code, log, told } = await run({ event, env });
    expect(code).toBe('1');
    expect(log).toMatch(/^::error::onejob does not run this job: /);
    expect(log).toMatch(why);
    expect(told?.refused).toMatch(why);
  });

  it.each([
    ['a pull request of its own repository', pull({ full_name: 'Acme/Demo' }), {}, {}],
    ['an event of the clock, which names no repository', { schedule: '0 0 * * *' }, { GITHUB_EVENT_NAME: 'schedule' }, {}],
    ['a fork where they are allowed', pull({ full_name: 'stranger/demo' }), {}, { forks: false }],
    ['a public repository where they are allowed', { repository: { private: false } }, {}, { public: false }],
  ])('runs %s', async (_, event, env, refuses) => {
    expect(await run({ event, env, refuses })).toMatchObject({ code: '0', log: '' });
  });

  it('refuses without the runner’s Node.js, and runs where nothing is to be refused', async () => {
    expect(await run({ event: own, hasNode: false })).toMatchObject({ code: '1', log: expect.stringContaining('no Node.js') });
    const refuses = { forks: false, public: false };
    expect(await run({ event: own, hasNode: false, refuses })).toMatchObject({ code: '0', told: null });
  });
});
