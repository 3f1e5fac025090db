/** Jobs after their end, and cancelling several at once, over a daemon in this process. */
import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import type { JobView } from '../contract/schema.ts';
import { fetchArtifacts } from './artifacts.ts';
import { createOutput } from './output.ts';
import { createRemote } from './remote.ts';
import { readVersion } from './session.ts';
import { parseSshUrl } from './ssh.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
const job: JobView = {
  id: '0123456789ab',
  service: 'own',
  pool: 'lab',
  command: ['make'],
  about: null,
  state: 'done',
  priority: 0,
  attempt: 1,
  agent: 'a1',
  result: { kind: 'lost', reason: 'onejob was stopped while the job ran' },
  reason: null,
  cold: false,
  artifacts: [],
  submittedAt: 1,
  startedAt: 2,
  endedAt: 3,
};

beforeEach(async () => {
  dir = scratch();
  manager = createFakeManager();
  server = await startApi({ manager, socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' }, version: readVersion() });
});
afterEach(async () => {
  await manager.end();
  await server.close();
  dir[Symbol.dispose]();
});

async function onejob(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const cli = testContext(args, dir.path);
  const code = await runCli(cli.context);
  return { code, stdout: cli.stdout(), stderr: cli.stderr() };
}

test('jobs and logs say why a job was lost', async () => {
  manager.elsewhere = [job];
  manager.agentOutput.set('a1', 'half of it\n');
  expect((await onejob('jobs', '--all')).stdout).toContain('onejob was stopped while the job ran');
  expect(await onejob('logs', job.id)).toEqual({
    code: 0,
    stdout: 'half of it\n',
    stderr: `onejob: job ${job.id} was lost: onejob was stopped while the job ran\n`,
  });
});

test('why a job could not be started, too', async () => {
  const failure = { code: 'E_IMAGE', message: 'No such image.', retry: false };
  manager.elsewhere = [{ ...job, agent: null, result: { kind: 'unstartable', failure } }];
  expect((await onejob('jobs', '--all')).stdout).toContain('No such image.');
  expect((await onejob('logs', job.id)).stderr).toContain(`job ${job.id} could not be started: No such image.`);
});

const neverRan = { agent: null, startedAt: null };
const queued: JobView = { ...job, ...neverRan, state: 'queued', result: null, endedAt: null };

test('jobs says why a job waits, also if only agents are busy', async () => {
  manager.elsewhere = [queued, { ...queued, id: 'ba9876543210', reason: 'the pool drains' }];
  expect((await onejob('jobs')).stdout).toMatch(/make — all agents are busy\n.*make — the pool drains\n/);
  expect((await onejob('jobs', job.id)).stdout).toMatch(/make — all agents are busy\n/);
});

test('jobs and wait say why a job was cancelled that needs another one', async () => {
  const reason = 'It was cancelled because job ffffffffffff, which it needs, did not pass.';
  const cancelled: JobView = { ...job, ...neverRan, result: { kind: 'cancelled' }, reason };
  manager.elsewhere = [cancelled];
  manager.settled = async () => cancelled;
  expect((await onejob('jobs', job.id)).stdout).toContain(`\n\n${reason}\n`);
  expect((await onejob('wait', job.id)).stdout).toBe(`${job.id}: cancelled — ${reason}\n`);
});

test('wait says why a job was lost', async () => {
  manager.elsewhere = [job];
  manager.settled = async () => job;
  expect((await onejob('wait', job.id)).stdout).toBe(`${job.id}: lost after 0s — onejob was stopped while the job ran\n`);
});

test('jobs lists the jobs of an array', async () => {
  const member = (index: number): JobView => ({ ...job, id: `${index}`.repeat(12), array: { id: 'aaaaaaaaaaaa', index } });
  manager.arrayJobs = (id) => (id === 'aaaaaaaaaaaa' ? [member(0), member(1)] : []);
  expect((await onejob('jobs', 'aaaaaaaaaaaa')).stdout).toMatch(/^000000000000 .*\[0\] make.*\n111111111111 .*\[1\] make/m);
  expect(await onejob('jobs', 'bbbbbbbbbbbb')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('There is no job or array bbbbbbbbbbbb.'),
  });
});

test('logs name missing artifacts, also later', async () => {
  const reason = 'Failed to keep its artifacts: the job was cancelled while onejob read them.';
  manager.elsewhere = [{ ...job, result: { kind: 'code', code: 6 }, reason }];
  manager.agentOutput.set('a1', 'done\n');
  expect(await onejob('logs', job.id)).toEqual({ code: 0, stdout: 'done\n', stderr: `onejob: ${reason}\n` });
});

test('an unknown state is wrong usage', async () => {
  const { code, stderr } = await onejob('jobs', '--state', 'foo');
  expect([code, stderr]).toEqual([2, expect.stringMatching(/Invalid --state "foo"[\s\S]*States are waiting, queued, .*, lost/)]);
  expect((await onejob('jobs', '--state', 'oom')).code).toBe(0);
});

test('an artifact outside of the workspace is wrong usage', async () => {
  for (const artifact of ['../x', '/etc/passwd', '!(a)']) {
    const { code, stderr } = await onejob('run', '--no-workspace', '--artifact', artifact, '--', 'true');
    expect([code, stderr]).toEqual([2, expect.stringContaining(`--artifact ${artifact}: `)]);
  }
});

test('artifacts of a job on another host need a pattern from here, which decides', async () => {
  const tar = pack();
  for (const name of ['out.txt', '.envrc']) tar.entry({ name }, 'sent');
  tar.finalize();
  const bytes = await buffer(tar);
  manager.artifactsOf = () => bytes;
  manager.elsewhere = [{ ...job, artifacts: ['**'] }];
  const { context, stderr } = testContext(['artifacts', job.id], dir.path);
  // Its daemon is reached through a pipe, which is this socket here.
  const remote = createRemote({
    host: parseSshUrl('ssh://gpuci'),
    variables: {},
    interactive: false,
    progress: () => {},
  });
  remote.dial = async () => () => connect(join(dir.path, 'onejob.sock'));
  const place = async () => Promise.reject(new Error('nothing is here'));
  const session = { context, output: createOutput(context, false), version: readVersion(), flags: {}, remote, place };
  const hint = `type "onejob --host ssh://gpuci artifacts ${job.id} --artifact '**'"`;
  await expect(fetchArtifacts(session, job.id, {})).rejects.toMatchObject({ code: 'E_USAGE', hint: expect.stringContaining(hint) });
  expect(existsSync(join(dir.path, 'out.txt'))).toBe(false);
  expect(await fetchArtifacts(session, job.id, { artifact: ['*.txt'] })).toBe(0);
  expect(stderr()).toContain('did not bring back .envrc: nobody asked for it');
  expect([existsSync(join(dir.path, 'out.txt')), existsSync(join(dir.path, '.envrc'))]).toEqual([true, false]);
  expect(await onejob('artifacts', job.id)).toMatchObject({ code: 0, stderr: 'onejob: brought back 2 files\n' });
});

async function waiting(times: number): Promise<string[]> {
  manager.open = false;
  const ids: string[] = [];
  for (let at = 0; at < times; at += 1) ids.push((await onejob('run', '-d', '--no-workspace', '--', 'true')).stdout.trim());
  return ids;
}

test('cancels several jobs by their ids, even if one does not exist', async () => {
  const [one = '', two = ''] = await waiting(2);
  const { code, stdout, stderr } = await onejob('cancel', one, 'ffffffffffff', two);
  expect([code, stderr]).toEqual([1, expect.stringContaining('There is no job ffffffffffff.')]);
  expect(stdout.trim().split('\n')).toEqual([expect.stringContaining(one), expect.stringContaining(two)]);
});

test('cancels all waiting jobs, with --pool only those of a pool', async () => {
  await waiting(3);
  expect(await onejob('cancel', '--waiting', '--pool', 'other')).toMatchObject({
    code: 0,
    stdout: 'No job waits in pool other.\n',
  });
  expect(await onejob('cancel', '--waiting')).toMatchObject({ code: 0, stdout: '3 jobs were cancelled before they began.\n' });
  expect((await onejob('cancel', '--all')).stdout).toBe('No job waits or runs.\n');
});

test('moves waiting jobs to another pool, by their ids or all of a pool', async () => {
  const [one = ''] = await waiting(3);
  expect(await onejob('move', one, '--to', 'next')).toMatchObject({ code: 0, stdout: `Job ${one} now waits in pool next.\n` });
  expect((await onejob('move', '--waiting', '--pool', 'default', '--to', 'next')).stdout).toBe('2 jobs now wait in pool next.\n');
  expect((await onejob('move', '--waiting', '--pool', 'default', '--to', 'next')).stdout).toBe('No job waits in pool default.\n');
  expect((await onejob('jobs', '--pool', 'next', '--json')).stdout.match(/"pool":"next"/g)).toHaveLength(3);
  manager.open = true;
  manager.startWaiting();
  await onejob('wait', one);
  expect(await onejob('move', one, '--to', 'default')).toMatchObject({ code: 1, stderr: expect.stringContaining('it has begun') });
  for (const args of [[], [one], [one, '--waiting', '--to', 'next'], [one, '--pool', 'a', '--to', 'next']])
    expect((await onejob('move', ...args)).code).toBe(2);
});

test('which jobs are to end must be said in one way', async () => {
  for (const args of [[], ['--pool', 'lab'], ['0123456789ab', '--waiting'], ['--waiting', '--all']])
    expect((await onejob('cancel', ...args)).code).toBe(2);
});

test('jobs says whose they are, what they are called and how long they took, and lists some of them', async () => {
  manager.statusOverride = { pools: [] };
  const now = Date.now();
  const mine = { ...job, user: 'ada', name: 'nightly', startedAt: now - 90_000, endedAt: now - 30_000 };
  const theirs: JobView = { ...job, id: 'ba9876543210', user: 'bob', state: 'running', result: null, endedAt: null };
  const good: JobView = { ...mine, id: 'cccccccccccc', name: null, result: { kind: 'code', code: 0 } };
  manager.elsewhere = [mine, theirs, good];
  const { stdout } = await onejob('jobs', '--all');
  expect(stdout).toMatch(/^JOB +POOL +USER +STATE +SINCE +TOOK +COMMAND$/m);
  expect(stdout).toMatch(/^0123456789ab +lab +ada +lost +30s +1m.* nightly: make — /m);
  const ids = async (...args: string[]) => (await onejob('jobs', ...args)).stdout.match(/^[0-9a-f]{12}/gm);
  expect(await ids('--all', '--user', 'ada')).toEqual([mine.id, good.id]);
  expect(await ids('--state', 'lost')).toEqual([mine.id]);
  expect(await ids('--state', 'ok')).toEqual([good.id]);
  expect(await ids('--state', 'running')).toEqual([theirs.id]);
  // The same in the words of a CI service.
  const told = ['dddddddddddd success', 'eeeeeeeeeeee failure'].map((line): JobView => {
    const [id = '', word = ''] = line.split(' ');
    const outcome = word === 'success' ? 'passed' : 'failed';
    return { ...job, id, result: { kind: 'reported', word }, outcome };
  });
  manager.elsewhere = told;
  expect(await ids('--state', 'passed')).toEqual(['dddddddddddd']);
  expect(await ids('--state', 'ok')).toEqual(['dddddddddddd']);
  expect(await ids('--state', 'failed')).toEqual(['eeeeeeeeeeee']);
  manager.elsewhere = [mine, theirs, good];
  expect((await onejob('jobs', '--pool', 'other')).stdout).toBe('No jobs.\n');
});

test('jobs and history refuse a pool that neither is there nor was', async () => {
  const idle = {
    paused: [],
    draining: false,
    leaving: false,
    backoff: null,
    devices: null,
    waiting: null,
    agents: 1,
    slots: [],
  };
  const pools = ['lab', 'gpu'].map((name) => ({ ...idle, name, service: 'own', runtime: 'docker' }) as const);
  manager.statusOverride = { pools };
  const sums = {
    jobs: 1,
    passed: 1,
    cancelled: 0,
    code: 0,
    infrastructure: 0,
    configuration: 0,
    unknown: 0,
    waitMs: null,
    runMs: null,
    longestMs: 0,
  };
  manager.history = ({ pool, since }) => (pool === 'former' && since === null ? [{ value: 'former', ...sums }] : []);
  for (const command of ['jobs', 'history']) {
    expect(await onejob(command, '--pool', 'lba')).toEqual({
      code: 1,
      stdout: '',
      stderr: 'onejob: There is no pool "lba".\n  The pools are: lab, gpu.\n',
    });
    for (const pool of ['lab', 'former'])
      expect(await onejob(command, '--pool', pool)).toMatchObject({ code: 0, stdout: expect.stringMatching(/^No jobs/) });
  }
});

test('jobs --wide says in which slot a job is, and with which devices', async () => {
  manager.elsewhere = [{ ...job, state: 'running', result: null, endedAt: null }];
  const nothing = { paused: [], draining: false, leaving: false, backoff: null, devices: null, waiting: null, agents: 1 };
  const agent = { state: 'busy', agent: 'a1', job: job.id, about: null, online: null, since: 0 } as const;
  const standby = { state: 'none', agent: null, since: null } as const;
  const slot = { key: 'lab/1', name: 'vm', devices: ['GPU-1', 'GPU-2'], leaving: [], note: null, held: null, agent, standby };
  manager.statusOverride = { pools: [{ ...nothing, name: 'lab', service: 'own', runtime: 'docker', slots: [slot] }] };
  expect((await onejob('jobs', '--wide')).stdout).toMatch(/SLOT +DEVICES +COMMAND\n.* lab\/1 +GPU-1,GPU-2 +make/);
});

test('run sends the user, a name and limits', async () => {
  const handed: unknown[] = [];
  const { submit } = manager;
  manager.submit = (request) => {
    handed.push(request);
    return submit(request);
  };
  const flags = ['--name', 'nightly', '--memory', '1GiB', '--cpus', '1.5'];
  await onejob('run', '-d', '--no-workspace', ...flags, '--', 'true');
  expect(handed).toEqual([expect.objectContaining({ user: userInfo().username, name: 'nightly', memory: 2 ** 30, cpus: 1.5 })]);
  expect((await onejob('run', '--memory', '8', '--', 'true')).code).toBe(2);
  expect((await onejob('run', '--memory', '1MiB', '--', 'true')).code).toBe(2);
  expect((await onejob('run', '--cpus', '0', '--', 'true')).code).toBe(2);
});
