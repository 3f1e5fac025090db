/**
 * The command line as a person meets it, over a fake manager: real processes wherever jobs, daemons, signals or pipes are part of
 * it. A command that only asks or refuses runs in the test's own process, which takes a tenth of the time.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { type Child, type Ended, isAlive, startChild, untilGone } from '../../test/support/child.ts';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createClient } from '../api/client.ts';
import { startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { readEnvironment } from '../config/environment.ts';
import { leaderOf } from '../store/lead.ts';
import { readVersion } from './session.ts';

const program = join(import.meta.dirname, '..', '..', 'test', 'support', 'fake-onejob.ts');

let dir: Scratch;
let children: Child[];

beforeEach(() => {
  dir = scratch();
  mkdirSync(join(dir.path, 'work'));
  children = [];
});

afterEach(async () => {
  for (const child of children) if (child.running) await child.kill();
  // A temporary daemon ends by itself; one that a test left with work is ended here.
  const pid = leaderOf(state())?.pid ?? null;
  if (pid !== null && isAlive(pid)) {
    process.kill(pid, 'SIGTERM');
    await untilGone(pid);
  }
  dir[Symbol.dispose]();
});

const state = () => join(dir.path, 'state');

const node = (args: readonly string[]) => ['--disable-warning=ExperimentalWarning', program, ...args];
const surroundings = (env: Record<string, string> = {}) => ({
  cwd: join(dir.path, 'work'),
  env: {
    PATH: process.env.PATH,
    HOME: dir.path,
    ONEJOB_STATE_DIR: state(),
    NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
    ...env,
  },
});

/** A command that is watched or signalled. */
function start(args: readonly string[], env?: Record<string, string>): Child {
  const child = startChild(process.execPath, node(args), surroundings(env));
  children.push(child);
  return child;
}

/** A command that ends by itself. */
function onejob(args: readonly string[], env?: Record<string, string>): Promise<Omit<Ended, 'signal'>> {
  return new Promise((resolve) => {
    execFile(process.execPath, node(args), { ...surroundings(env), maxBuffer: 1 << 26 }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
    });
  });
}

/** A command without a process of its own. `terminal`: of its messages. */
async function asked(args: readonly string[], terminal = false): Promise<Omit<Ended, 'signal'>> {
  const environment = readEnvironment({ HOME: dir.path, ONEJOB_STATE_DIR: state() });
  const { context, stdout, stderr } = testContext(args, join(dir.path, 'work'), { environment });
  if (terminal) Object.assign(context.stderr, { isTTY: true, columns: 200 });
  const code = await runCli(context);
  await turn();
  return { code, stdout: stdout(), stderr: stderr() };
}

async function up(env?: Record<string, string>): Promise<Child> {
  const daemon = start(['up'], env);
  await daemon.says(/listening/);
  return daemon;
}

const json = (text: string): Record<string, unknown>[] =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

describe('run', () => {
  test('passes output, streams apart, and the exit code; leaves no daemon', async () => {
    const run = await onejob(['run', '--no-workspace', '--', 'sh', '-c', 'echo out; echo err >&2; exit 7']);
    expect(run).toMatchObject({ code: 7, stdout: 'out\n' });
    expect(run.stderr.split('\n')).toEqual(['onejob: runtime fake: there is no other', 'err', '']);
    const pid = leaderOf(state())?.pid ?? null;
    if (pid !== null) await untilGone(pid);
  });

  test('needs no -- in front of the command, and leaves its options alone', async () => {
    expect(await onejob(['run', '--no-workspace', 'echo', '--json', '-d'])).toMatchObject({ code: 0, stdout: '--json -d\n' });
  });

  test('explains 127 for a missing command, and names the image', async () => {
    const run = await onejob(['run', '--no-workspace', '--image', 'some:1', '--', 'sh', '-c', 'onejob-no-such-command']);
    expect(run.code).toBe(127);
    expect(run.stderr).toContain(
      'onejob: exit code 127 means that a command was not found: it may be missing from the image some:1;',
    );
  });

  test('says on a terminal which job failed, and that job says why', async () => {
    await up();
    const failing = async (script: string, terminal = true) => {
      const { stderr } = await asked(['run', '--no-workspace', '--', 'sh', '-c', script], terminal);
      return /job (\w+) ended with exit code \d+; "onejob jobs \1" says what is known about it\n/.exec(stderr)?.[1] ?? null;
    };
    const shown = async (id: string | null) => (await asked(['jobs', id ?? ''])).stdout;
    const missing = 'exit code 127 means that a command was not found: ';
    expect(await shown(await failing('onejob-no-such-command'))).toContain(missing);
    const other = await shown(await failing('echo a; echo b; exit 127'));
    expect(other).toContain('exit 127');
    expect(other).not.toContain(missing);
    expect(await failing('exit 3', false)).toBeNull();
    expect(await failing('exit 0')).toBeNull();
  });

  test('passes on the variables', async () => {
    const run = await onejob(['run', '--no-workspace', '-e', 'A=1=2', '-e', 'OWN', '--', 'sh', '-c', 'echo $A $OWN'], {
      OWN: 'mine',
    });
    expect(run.stdout).toBe('1=2 mine\n');
  });

  test('sends the current folder', async () => {
    await up();
    writeFileSync(join(dir.path, 'work', 'file.txt'), 'content');
    expect((await onejob(['run', '--', 'true'])).code).toBe(0);
  });

  test('keeps every byte of a large output', async () => {
    const run = await onejob(['run', '--no-workspace', '--', 'seq', '1', '300000']);
    expect(run.stdout).toHaveLength(1_988_895);
    expect(run.stdout.endsWith('\n299999\n300000\n')).toBe(true);
  });

  test('two at once share one daemon', async () => {
    const runs = await Promise.all(
      [1, 2, 3].map((n) => onejob(['run', '--no-workspace', '--', 'sh', '-c', `echo ${n}; sleep 0.3`])),
    );
    expect(runs.map(({ code, stdout }) => [code, stdout])).toEqual([1, 2, 3].map((n) => [0, `${n}\n`]));
  });

  test('--detach prints the id; jobs and logs find it afterwards', async () => {
    await up();
    const { stdout, code } = await onejob(['run', '--no-workspace', '--detach', '--', 'echo', 'later']);
    expect(code).toBe(0);
    const id = stdout.trim();
    expect((await asked(['logs', '-f', id])).stdout).toBe('later\n');
    expect((await asked(['jobs', '--all'])).stdout).toMatch(new RegExp(`^${id} +default +\\S+ +passed `, 'm'));
  });

  test('the first INT cancels and waits for the last words', async () => {
    const run = start([
      'run',
      '--no-workspace',
      '--',
      'sh',
      '-c',
      'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.05; done',
    ]);
    await run.says(/ready/);
    run.signal('SIGINT');
    const { code, stdout, stderr } = await run.ended;
    expect({ code, stdout }).toEqual({ code: 130, stdout: 'ready\nbye\n' });
    expect(stderr).toContain('was cancelled');
  });

  test('the second INT leaves the job to the daemon, and says how to follow it', async () => {
    await up();
    const run = start(['run', '--no-workspace', '--', 'sh', '-c', 'trap "" TERM; echo ready; sleep 30']);
    await run.says(/ready/);
    run.signal('SIGINT');
    await run.says(/again to leave it/);
    run.signal('SIGINT');
    const { code, stderr } = await run.ended;
    expect(code).toBe(130);
    expect(stderr).toMatch(/follow it with "onejob logs -f j1"/);
    expect((await asked(['jobs'])).stdout).toContain('j1');
  });

  test('a reader that goes away cancels the job', async () => {
    const run = startChild(
      'sh',
      ['-c', '"$0" "$@" | head -n 1; wait', process.execPath, program, 'run', '--no-workspace', '--', 'yes'],
      surroundings(),
    );
    children.push(run);
    const { stdout, stderr } = await run.ended;
    expect(stdout).toBe('y\n');
    expect(stderr).toContain('the reader of the output is gone');
  });

  test('--json tells the same as events on standard output', async () => {
    const { stdout, code } = await onejob([
      'run',
      '--json',
      '--no-workspace',
      '--',
      'sh',
      '-c',
      'printf hi; printf "\\377" >&2; exit 3',
    ]);
    const events = json(stdout);
    expect(code).toBe(3);
    expect(events[0]).toMatchObject({ event: 'submitted' });
    expect(events).toContainEqual({ event: 'output', stream: 'stdout', text: 'hi' });
    expect(events).toContainEqual({ event: 'output', stream: 'stderr', base64: '/w==' });
    expect(events.at(-1)).toMatchObject({ event: 'ended', exit: 3, job: { result: { kind: 'code', code: 3 } } });
  });

  test('a daemon that cannot start says why, and run ends with 125', async () => {
    const run = await onejob(['run', '--no-workspace', '--', 'true'], { FAKE_BROKEN: '1' });
    expect(run.code).toBe(125);
    expect(run.stderr).toContain('broken on purpose');
    expect(run.stdout).toBe('');
  });

  test.each([
    [['--bogus', '--', 'true'], 'unknown option'],
    [[], 'command'],
    [['--timeout', '10', '--', 'true'], 'has no unit'],
    [['--volume', 'data', '--', 'true'], 'no container path'],
    [['-e', 'NOT_SET_ANYWHERE', '--', 'true'], 'is not set in this environment'],
    [['-e', '1A=b', '--', 'true'], 'valid variable name'],
    [['--retries', '-1', '--', 'true'], 'whole number'],
  ])('run %j is wrong usage', async (args, text) => {
    const run = await asked(['run', '--no-workspace', ...args]);
    expect(run.code).toBe(2);
    expect(run.stderr).toContain(text);
  });
});

describe('looking', () => {
  test('without a daemon, status and pause say so and start none', async () => {
    for (const command of ['status', 'pause']) {
      const { code, stderr } = await asked([command]);
      expect(code).toBe(1);
      expect(stderr).toContain('nothing listens');
      expect(stderr).toContain('onejob up');
    }
    expect((await asked(['down'])).code).toBe(1);
  });

  test('errors are JSON with --json', async () => {
    const { code, stderr } = await onejob(['status', '--json']);
    expect(code).toBe(1);
    expect(json(stderr)[0]).toMatchObject({ code: 'E_DAEMON_ABSENT', retry: true });
    expect(json((await asked(['nonsense', '--json'])).stderr)[0]).toMatchObject({ code: 'E_USAGE' });
  });

  test('doctor ends with 1 when there is an error, and says what to do', async () => {
    await up();
    const { code, stdout } = await asked(['doctor']);
    expect(code).toBe(1);
    expect(stdout).toMatch(/^error +docker: not reachable\n +-> start it$/m);
  });

  test('an unknown job is exit code 1 with what to type next', async () => {
    await up();
    expect(await asked(['cancel', 'nope'])).toMatchObject({ code: 1, stderr: expect.stringContaining('There is no job nope.') });
  });

  test('pause, resume and down reach the daemon', async () => {
    const daemon = await up();
    expect((await asked(['pause', 'default', '--reason', 'disk'])).stdout).toBe('Paused pool default: nothing new starts.\n');
    expect(await asked(['resume', 'default', '--reason', 'disk'])).toMatchObject({ code: 0, stdout: 'Resumed pool default.\n' });
    expect((await onejob(['down', '--drain'])).stdout).toBe('The daemon has ended.\n');
    expect((await daemon.ended).code).toBe(0);
  });

  test('a second daemon in the same place is refused', async () => {
    await up();
    expect(await onejob(['up'])).toMatchObject({ code: 1, stderr: expect.stringContaining('Another onejob') });
  });

  test('help and version need nothing', async () => {
    expect(await onejob(['--version'])).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) });
    expect((await asked(['run', '--help'])).stdout).toContain('Examples:');
    expect(await asked([])).toMatchObject({ code: 2, stderr: expect.stringContaining('onejob run') });
    expect(await asked(['stauts'])).toMatchObject({ code: 2, stderr: expect.stringContaining('Did you mean status?') });
  });

  test.each(['bash', 'zsh'])('the %s completion is valid shell', async (shell) => {
    const { stdout } = await asked(['completion', shell]);
    expect(stdout).toContain('--no-workspace');
    const check = startChild('bash', ['-n'], { cwd: dir.path, env: { PATH: process.env.PATH } });
    check.type(stdout);
    expect(await check.ended).toMatchObject({ code: 0, stderr: '' });
  });

  test('the bash completion offers jobs of the daemon, and without one is silent and starts none', async () => {
    const own = join(dir.path, 'onejob');
    writeFileSync(own, `#!/bin/sh\nexec '${process.execPath}' ${node([]).join(' ')} "$@"\n`, { mode: 0o755 });
    const { stdout: script } = await asked(['completion', 'bash']);
    const file = join(dir.path, 'clouds.yml');
    const cloud = 'type: aws, region: us-west-2, scheduler_role: "arn:aws:iam::123456789012:role/x"';
    const host = '{ cloud: aws, types: [g6.xlarge], pools: { gpu: {} } }';
    writeFileSync(
      file,
      `clouds: { aws: { ${cloud} } }\njoin: { listen: "127.0.0.1:7718", url: "https://ci.example.org", package: /srv/onejob.tgz }\nhosts: { burst: ${host}, big: ${host} }\n`,
    );
    const offered = async (...words: string[]) => {
      const bash = startChild('bash', ['--norc', '-s'], surroundings());
      const list = [own, ...words].map((word) => `'${word}'`).join(' ');
      bash.type(`${script}\nCOMP_WORDS=(${list})\nCOMP_CWORD=${words.length}\n_onejob\nprintf '%s\\n' "\${COMPREPLY[@]}"\n`);
      const { stdout, stderr } = await bash.ended;
      expect(stderr).toBe('');
      return stdout.split('\n').filter((word) => word !== '');
    };
    expect(await offered('cancel', 'j')).toEqual([]);
    expect(await offered('cloud', 'do')).toEqual(['down']);
    expect(await offered('cloud', 'down', '--config', file, 'b')).toEqual(['burst', 'big']);
    expect(await offered('cloud', 'acceptance', '--config', file, '')).toEqual(['aws']);
    expect(await offered('cloud', 'sweep', '--config', file, '--cloud', '')).toEqual(['aws']);
    expect(await offered('cloud', 'up', '--config', '/nowhere', '')).toEqual([]);
    expect(leaderOf(state())).toBeNull();
    await up({ FAKE_CLOSED: '1' });
    const id = (await onejob(['run', '--no-workspace', '--detach', '--', 'sleep', '1'])).stdout.trim();
    expect(await offered('cancel', id.slice(0, 1))).toEqual([id]);
    expect(await offered('wait', id.slice(0, 1))).toEqual([id]);
    // Its files are not held.
    expect(await offered('shell', id.slice(0, 1))).toEqual([]);
    expect(await offered('logs', '--fo')).toEqual(['--follow']);
  });

  test('config check needs no daemon and names the line', async () => {
    const file = join(dir.path, 'config.yml');
    writeFileSync(file, 'pools:\n  lab: { agnets: 3 }\n');
    const { code, stdout } = await asked(['config', 'check', file]);
    expect(code).toBe(1);
    expect(stdout).toMatch(/config\.yml:2:\d+: .*agents/);
    expect((await asked(['config', 'show'])).stdout).toContain('state_dir');
  });
});

test('a daemon refuses a job before its workspace is sent', async () => {
  const manager = createFakeManager();
  const socket = join(dir.path, 'in-process.sock');
  const api = await startApi({ manager, socket: { path: socket, access: 'owner' }, version: readVersion() });
  try {
    writeFileSync(join(dir.path, 'work', 'a'), 'a');
    const refused = await onejob(['run', '--socket', socket, '--pool', 'nope', '--', 'true']);
    expect(refused).toMatchObject({ code: 2, stderr: expect.stringContaining('There is no pool nope.') });
    expect(manager.workspaces.size).toBe(0);
    expect((await onejob(['run', '--socket', socket, '--', 'true'])).code).toBe(0);
    expect(manager.workspaces.size).toBe(1);
  } finally {
    await manager.end();
    await api.close();
  }
});

test('jobs lists the requested number of newest jobs, and says that there are more', async () => {
  await up({ FAKE_CLOSED: '1' });
  for (let at = 0; at < 3; at += 1) await asked(['run', '--no-workspace', '--detach', '--', 'true']);
  const { stdout, stderr } = await asked(['jobs', '--all', '--limit', '2']);
  expect(stdout.split('\n').map((line) => line.split(' ')[0])).toEqual(['JOB', 'j2', 'j3', '']);
  expect(stderr).toContain('only the newest 2 are listed');
  expect((await asked(['jobs', '--all', '--limit', '3'])).stderr).not.toContain('only the newest');
});

test('artifacts are brought to the current folder', async () => {
  const tar = pack();
  tar.entry({ name: './dist/app.js' }, 'built');
  tar.entry({ name: '../up' }, 'out');
  tar.finalize();
  writeFileSync(join(dir.path, 'artifacts.tar'), await buffer(tar));
  const run = await onejob(['run', '--no-workspace', '--artifact', 'dist/**', '--', 'false'], {
    FAKE_ARTIFACTS: join(dir.path, 'artifacts.tar'),
  });
  expect(run).toMatchObject({ code: 1, stderr: expect.stringContaining('brought back 1 file\n') });
  expect(run.stderr).toMatch(/did not bring back \.\.\/up: .* \(E_ARTIFACT_UNSAFE\)/);
  expect(readFileSync(join(dir.path, 'work', 'dist', 'app.js'), 'utf8')).toBe('built');
});

test('files that were not asked for are not brought back from a daemon that sends them', async () => {
  const tar = pack();
  for (const name of ['out.txt', '.envrc', 'package.json', '.github/workflows/x.yml']) tar.entry({ name }, 'sent');
  for (let at = 0; at < 20; at += 1) tar.entry({ name: `more-${at}` }, 'sent');
  tar.finalize();
  writeFileSync(join(dir.path, 'artifacts.tar'), await buffer(tar));
  writeFileSync(join(dir.path, 'work', 'package.json'), 'mine');
  const run = await onejob(['run', '--no-workspace', '--artifact', 'out.txt', '--', 'true'], {
    FAKE_ARTIFACTS: join(dir.path, 'artifacts.tar'),
  });
  expect(run).toMatchObject({ code: 0, stderr: expect.stringContaining('brought back 1 file\n') });
  expect(run.stderr).toContain('did not bring back .envrc: nobody asked for it (E_ARTIFACT_UNSAFE)');
  expect(run.stderr.match(/did not bring back/g)).toHaveLength(11);
  expect(run.stderr).toContain('did not bring back 13 more (E_ARTIFACT_UNSAFE)');
  expect(readdirSync(join(dir.path, 'work')).sort()).toEqual(['out.txt', 'package.json']);
  expect(readFileSync(join(dir.path, 'work', 'package.json'), 'utf8')).toBe('mine');
});

test('a reader that does not read stops neither the job nor Ctrl-C', async () => {
  await up();
  const run = spawn(
    process.execPath,
    node(['run', '--no-workspace', '--', 'sh', '-c', 'seq 1 300000; echo done >"$0"', join(dir.path, 'done')]),
    {
      ...surroundings(),
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  onTestFinished(() => void run.kill('SIGKILL'));
  const ended = once(run, 'exit');
  const client = createClient({ socket: join(state(), 'onejob.sock'), version: '0' });
  await once(run.stdout, 'readable');
  expect((await client.settled('j1')).state).toBe('done');
  expect(readFileSync(join(dir.path, 'done'), 'utf8')).toBe('done\n');
  run.kill('SIGINT');
  for (let said = ''; !said.includes('again to leave it'); ) said += String(await once(run.stderr, 'data'));
  run.kill('SIGINT');
  expect(await ended).toEqual([130, null]);
});
