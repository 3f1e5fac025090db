/** What is said of jobs after their end, and how several are ended at once, over a daemon in this process. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { JobView } from '../api/schema.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { readVersion } from './version.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
const job: JobView = {
  ...{ id: '0123456789ab', service: 'own', pool: 'lab', command: ['make'], about: null, state: 'done', priority: 0, attempt: 1 },
  ...{ agent: 'a1', result: { kind: 'lost', reason: 'onejob was stopped while the job ran' }, reason: null, cold: false },
  ...{ artifacts: [], submittedAt: 1, startedAt: 2, endedAt: 3 },
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

test('why a job was lost is said by jobs and behind its log', async () => {
  manager.elsewhere = [job];
  manager.agentOutput.set('a1', 'half of it\n');
  expect((await onejob('jobs', '--all')).stdout).toContain('onejob was stopped while the job ran');
  expect(await onejob('logs', job.id)).toEqual({
    ...{ code: 0, stdout: 'half of it\n' },
    stderr: `onejob: job ${job.id} was lost: onejob was stopped while the job ran\n`,
  });
});

test('why a job could not be started, too', async () => {
  const failure = { code: 'E_IMAGE', message: 'No such image.', retry: false };
  manager.elsewhere = [{ ...job, agent: null, result: { kind: 'unstartable', failure } }];
  expect((await onejob('jobs', '--all')).stdout).toContain('No such image.');
  expect((await onejob('logs', job.id)).stderr).toContain(`job ${job.id} could not be started: No such image.`);
});

test('an artifact outside of the workspace is a mistake on the command line', async () => {
  for (const artifact of ['../x', '/etc/passwd', '!(a)']) {
    const { code, stderr } = await onejob('run', '--no-workspace', '--artifact', artifact, '--', 'true');
    expect([code, stderr]).toEqual([2, expect.stringContaining(`--artifact ${artifact}: `)]);
  }
});

async function waiting(times: number): Promise<string[]> {
  manager.open = false;
  const ids: string[] = [];
  for (let at = 0; at < times; at += 1) ids.push((await onejob('run', '-d', '--no-workspace', '--', 'true')).stdout.trim());
  return ids;
}

test('several jobs are told to end by their ids, and one that is not there keeps none of the others', async () => {
  const [one = '', two = ''] = await waiting(2);
  const { code, stdout, stderr } = await onejob('cancel', one, 'ffffffffffff', two);
  expect([code, stderr]).toEqual([1, expect.stringContaining('There is no job ffffffffffff.')]);
  expect(stdout.trim().split('\n')).toEqual([expect.stringContaining(one), expect.stringContaining(two)]);
});

test('all that wait are told to end, and with --pool only those of one', async () => {
  await waiting(3);
  expect(await onejob('cancel', '--waiting', '--pool', 'other')).toMatchObject({ code: 0, stdout: 'No such jobs.\n' });
  expect(await onejob('cancel', '--waiting')).toMatchObject({ code: 0, stdout: '3 jobs were cancelled before they began.\n' });
  expect((await onejob('cancel', '--all')).stdout).toBe('No such jobs.\n');
});

test('which jobs are to end must be said in one way', async () => {
  for (const args of [[], ['--pool', 'lab'], ['0123456789ab', '--waiting'], ['--waiting', '--all']])
    expect((await onejob('cancel', ...args)).code).toBe(2);
});
