/** Commands about jobs and registrations at CI services, over a daemon in this process. */
import { once } from 'node:events';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import type { LogPiece } from '../contract/manager.ts';
import type { JobView } from '../contract/schema.ts';
import { openStore } from '../store/store.ts';
import { readVersion } from './session.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
const job: JobView = {
  id: 'azure-7',
  service: 'azure',
  pool: 'lab',
  command: [],
  state: 'running',
  priority: 0,
  attempt: 1,
  agent: 'a1',
  result: null,
  reason: null,
  cold: false,
  artifacts: [],
  submittedAt: 1,
  startedAt: 2,
  endedAt: null,
  about: {
    title: 'app-ci #7 build',
    definition: 'app-ci',
    build: '7',
    repository: null,
    branch: null,
    reason: null,
    demands: [],
    link: 'https://dev.azure.com/acme/app/_build/results?buildId=7',
  },
};

beforeEach(async () => {
  dir = scratch();
  manager = createFakeManager();
  manager.elsewhere = [job];
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

test('jobs lists them with their title, and with --json their link', async () => {
  expect((await onejob('jobs')).stdout).toMatch(/^azure-7 +lab +running .* app-ci #7 build$/m);
  expect(JSON.parse((await onejob('jobs', '--json')).stdout)).toMatchObject([{ about: { link: job.about?.link } }]);
});

test('cancel says where such a job can be cancelled', async () => {
  const { code, stderr } = await onejob('cancel', 'azure-7');
  expect(code).toBe(1);
  expect(stderr).toContain('"azure", and only that service can cancel it.');
  expect(stderr).toContain('Cancel it there: https://dev.azure.com/acme/app/_build/results?buildId=7');
});

test('logs of a job that never had an agent say why, with and without --follow', async () => {
  const reason = 'onejob refused this job: its branch wip does not match "trust.branches".';
  manager.elsewhere = [{ ...job, agent: null, state: 'done', result: { kind: 'reported', word: 'refused' }, reason }];
  for (const more of [[], ['--follow']])
    expect(await onejob('logs', 'azure-7', ...more)).toEqual({
      code: 0,
      stdout: '',
      stderr: `onejob: job azure-7 has no output: ${reason}\n`,
    });
  manager.elsewhere = [{ ...job, reason: 'it has no secrets' }];
  manager.agentOutput.set('a1', 'hello\n');
  expect(await onejob('logs', 'azure-7')).toEqual({ code: 0, stdout: 'hello\n', stderr: '' });
});

test('jobs and logs say where the output of such a job is, unless it is here', async () => {
  manager.elsewhere = [{ ...job, outputElsewhere: true }];
  manager.agentOutput.set('a1', 'hello\n');
  const link = job.about?.link;
  expect((await onejob('jobs', 'azure-7')).stdout).toContain(
    `\noutput: ${link}; "onejob logs azure-7" shows what its agent said\n`,
  );
  const said = 'onejob: this is what the agent of job azure-7 said;';
  expect((await onejob('logs', 'azure-7')).stderr).toBe(`${said} the output of the job is at ${link}\n`);
  if (job.about === null) throw new RangeError('a job of a service has words of it');
  manager.elsewhere = [{ ...job, outputElsewhere: true, about: { ...job.about, link: null } }];
  expect((await onejob('logs', 'azure-7')).stderr).toBe(`${said} its CI service has the output of the job\n`);
  expect((await onejob('jobs', 'azure-7')).stdout).toContain('\noutput: its CI service has it; ');
  manager.elsewhere = [job];
  expect((await onejob('jobs', 'azure-7')).stdout).not.toContain('output:');
  expect((await onejob('logs', 'azure-7')).stderr).toBe('');
});

describe('a job by the beginning of its id', () => {
  const ids = [
    '2c3b9d4c-1111-4000-8000-000000000001',
    '2c3b9d4c-2222-4000-8000-000000000002',
    'ffee0000-3333-4000-8000-000000000003',
  ];
  beforeEach(() => {
    manager.elsewhere = ids.map((id) => ({ ...job, id, state: 'done', agent: id.slice(9, 13) }));
    for (const id of ids) manager.agentOutput.set(id.slice(9, 13), `output of ${id}\n`);
  });

  test('is found when there is one of them', async () => {
    for (const start of ['ffee', 'FFEE0000', 'ffee0000-3'])
      expect(await onejob('logs', start)).toMatchObject({ code: 0, stdout: `output of ${ids[2]}\n` });
    expect((await onejob('jobs', 'ffee')).stdout).toMatch(/^ffee0000-3333\S+ +lab +/m);
  });

  test('is meant by cancel, too', async () => {
    const { code, stderr } = await onejob('cancel', 'FFEE0000');
    expect({ code, stderr }).toMatchObject({ code: 1, stderr: expect.stringContaining('and only that service can cancel it') });
    expect((await onejob('cancel', '2c3b9d4c')).stderr).toContain('2 jobs begin with 2c3b9d4c');
    expect((await onejob('cancel', '0123')).stderr).toContain('There is no job 0123.');
  });

  test('is told with all there are when there are several', async () => {
    const { code, stderr } = await onejob('logs', '2c3b9d4c');
    expect([code, stderr]).toEqual([2, expect.stringContaining(`2 jobs begin with 2c3b9d4c: ${ids[0]}, ${ids[1]}.`)]);
    expect(JSON.parse((await onejob('jobs', '2c3b9d4c', '--json')).stdout)).toHaveLength(2);
  });

  test('needs four letters', async () => {
    expect(await onejob('logs', 'ffe')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('There is no job or agent ffe.'),
    });
    expect(await onejob('jobs', 'ffe')).toMatchObject({ code: 1, stderr: expect.stringContaining('at least 4 letters') });
  });
});

describe('logs of an agent', () => {
  test('by the name that its slot gives it, which the page of a service shows', async () => {
    const slot = {
      key: 'lab/1',
      name: 'vm-lab-1',
      devices: [],
      leaving: [],
      note: null,
      held: null,
      standby: { state: 'none', agent: null, since: null },
      agent: { state: 'busy', agent: 'a1', job: null, about: null, online: null, since: 0 },
    } as const;
    manager.statusOverride = {
      pools: [
        {
          name: 'lab',
          service: 'bk',
          runtime: 'docker',
          agents: 1,
          waiting: null,
          paused: [],
          draining: false,
          leaving: false,
          backoff: null,
          devices: null,
          slots: [{ ...slot, devices: [], leaving: [] }],
        },
      ],
    };
    const said = await onejob('logs', 'vm-lab-1');
    expect(said).toEqual(await onejob('logs', 'lab/1'));
    expect(said.stderr).not.toContain('no job or agent');
  });

  test('by its id, and by the name that the service shows', async () => {
    manager.agentOutput.set('b78a0cfbf7', 'Listening for Jobs\n');
    for (const name of ['b78a0cfbf7', 'vm_0-66a0547d-b78a0cfbf7'])
      expect(await onejob('logs', name)).toMatchObject({ code: 0, stdout: 'Listening for Jobs\n' });
  });

  test('reports what is neither a job nor an agent, as it was typed', async () => {
    for (const name of ['azure-9999', 'vm_0-66a0547d-0123456789'])
      expect(await onejob('logs', name)).toMatchObject({
        code: 1,
        stderr: expect.stringContaining(`There is no job or agent ${name}.`),
      });
  });
});

describe('logs --agent', () => {
  const say = (...texts: (string | Uint8Array)[]): LogPiece[] =>
    texts.map((text) => ({ stream: 'stdout', bytes: typeof text === 'string' ? Buffer.from(text) : text }));

  test('shows what the agent logged, and nothing in it can move the cursor', async () => {
    const [first, second] = [Buffer.from('grün').subarray(0, 3), Buffer.from('grün').subarray(3)];
    const note: LogPiece = { stream: 'note', bytes: Buffer.from('there was more') };
    manager.ownLogs.set('azure-7', [...say('==> a <==\r\n\u001b[2J\u009bx\ty\n', first, second, '\n'), note]);
    const { code, stdout, stderr } = await onejob('logs', '--agent', 'azure-7');
    expect([code, stdout]).toEqual([0, '==> a <==\n [2J x\ty\ngrün\n']);
    expect(stderr).toContain('onejob: there was more');
    expect(JSON.parse((await onejob('logs', '--agent', 'azure-7', '--json')).stdout.split('\n')[0] ?? '')).toMatchObject({
      event: 'output',
      text: expect.stringContaining('\u001b[2J'),
    });
  });

  test('says why there is nothing, and does not follow', async () => {
    expect(await onejob('logs', '--agent', 'azure-7')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('no logs of its own'),
    });
    expect((await onejob('logs', '--agent', '-f', 'azure-7')).code).toBe(2);
  });
});

describe('down with jobs that run', () => {
  const slot = (n: number, running: string | null) => ({
    key: `lab/${n}`,
    name: `vm-lab-${n}`,
    devices: [],
    leaving: [],
    note: null,
    held: null,
    standby: { state: 'none' as const, agent: null, since: null },
    agent: { state: 'busy' as const, agent: `a${n}`, job: running, about: null, online: null, since: 0 },
  });

  test.each([
    [
      [],
      'It ended 2 running jobs.',
      'ending 2 running jobs, each within the "stop_grace" of its pool; "onejob down --now" kills them',
    ],
    [['--now'], 'It ended 2 running jobs.', null],
    [['--drain'], 'It waited for 2 running jobs.', null],
    [
      ['--leave'],
      'It left 2 running jobs.\nThey continue without a daemon; "onejob up" takes them over, and then "onejob down --end" ends them.',
      null,
    ],
  ])('%j says how many there are', async (args, line, before) => {
    const pool = {
      name: 'lab',
      service: 'bk',
      runtime: 'docker',
      agents: 3,
      waiting: null,
      paused: [],
      draining: false,
      leaving: false,
    };
    manager.statusOverride = {
      pid: 999_999_999,
      pools: [{ ...pool, backoff: null, devices: null, slots: [slot(1, 'j1'), slot(2, 'j2'), slot(3, null)] }],
    };
    const [{ stdout, stderr }] = await Promise.all([
      onejob('down', ...args),
      once(manager.events, 'down').then(() => server.close()),
    ]);
    expect(stdout).toBe(`The daemon has ended.\n${line}\n`);
    expect(stderr).toBe(before === null ? '' : `onejob: ${before}\n`);
  });
});

describe('down --forget', () => {
  /** The daemon ends as one does. */
  async function down(...args: string[]): ReturnType<typeof onejob> {
    const [ended] = await Promise.all([onejob('down', ...args), once(manager.events, 'down').then(() => server.close())]);
    return ended;
  }

  test('names what was removed', async () => {
    manager.forgottenViews = [
      { service: 'azure', removed: ['onejob-placeholder-1'], left: [], problem: null },
      { service: 'other', removed: [], left: [], problem: null },
    ];
    manager.statusOverride = { pid: 999_999_999 };
    const { code, stdout } = await down('--forget');
    expect([code, stdout]).toEqual([
      0,
      'The daemon has ended.\nazure: removed onejob-placeholder-1.\nother: nothing was left to remove.\n',
    ]);
    expect(manager.calls).toContain('down end null forget');
  });

  test('exits with 1 when something is left, and says what and why', async () => {
    manager.forgottenViews = [{ service: 'azure', removed: [], left: ['p1', 'p2'], problem: 'Cannot reach https://a.' }];
    manager.statusOverride = { pid: 999_999_999 };
    const { code, stdout } = await down('--forget');
    expect([code, stdout]).toEqual([1, 'The daemon has ended.\nazure: still there: p1, p2 (Cannot reach https://a).\n']);
  });

  test('says so when the daemon ended without a word', async () => {
    manager.forgotten = (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    manager.statusOverride = { pid: 999_999_999 };
    const { code, stderr } = await down('--forget');
    expect(code).toBe(1);
    expect(stderr).toContain('the daemon did not report what it removed');
  });

  test('is needed to remove anything, and excludes --leave', async () => {
    manager.statusOverride = { pid: 999_999_999 };
    expect((await down()).stdout).toBe('The daemon has ended.\n');
    expect(manager.calls).toEqual(['down end null']);
    expect((await onejob('down', '--forget', '--leave')).code).toBe(2);
  });

  test('without a daemon names what it would have removed', async () => {
    await server.close();
    expect(await onejob('down', '--forget')).toMatchObject({ code: 1, stdout: 'No daemon runs here, so nothing was ended.\n' });
    const store = openStore(dir.path);
    store.transaction({ durable: false }, () => {
      store.registrations.intend({ agent: 'p1', service: 'azure', place: '1', name: 'onejob-placeholder-1', placeholder: true }, 1);
    });
    store.close();
    const { code, stdout, stderr } = await onejob('down', '--forget');
    expect([code, stdout]).toEqual([
      1,
      'No daemon runs here, so nothing was ended.\nazure: still there: onejob-placeholder-1 (no daemon runs here).\n',
    ]);
    expect(stderr).toMatch(/start one the same way as before .*"onejob azure …".* then type "onejob down --forget"/);
    expect((await onejob('down')).code).toBe(1);
  });
});
