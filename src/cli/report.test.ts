/** `onejob report`: what it writes is useful, and no secret, no variable of a job and no name of a person is anywhere in it. */
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { gunzipSync } from 'node:zlib';
import { extract } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { fakeTools } from '../../test/support/fake-tools/fake-tools.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { createOwnQueue } from '../ci/own-queue/own-queue.ts';
import type { QueuePool } from '../ci/own-queue/request.ts';
import { runCli } from '../cli.ts';
import { jobRequest } from '../contract/job.ts';
import type { JobView } from '../contract/schema.ts';
import { createLogFolder } from '../logs/log-file.ts';
import { openStore } from '../store/store.ts';

/** In places where people and programs put them. None may be in a report, in any part of it. */
const secrets = [
  'zephyrium-9',
  'hunter2',
  'correct-horse-battery-staple',
  'ghp_0123456789abcdefghijABCDEFGHIJ012345',
  'glpat-abcdefghij0123456789',
  'AGE-SECRET-KEY-1QQPQQ',
  'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl',
  'qL7/vN+3xkWZ==',
  '4711815',
  'wiLhelmina',
  'quagmire.example',
  'acme-rocket',
];
const [plain, weak, phrase, github, gitlab, age, jwt, base64, pin, person, host, project] = secrets as [string, ...string[]] &
  string[];

/** What a job that prints everything prints. */
const noisy = [
  `+ export API_TOKEN=${plain} PASSWORD=${weak}`,
  `Password: ${phrase}`,
  `{"token":"${github}","nested":["${gitlab}",{"k":"${age}"}]}`,
  `Authorization: Bearer ${jwt}`,
  `GET https://${person}:${weak}@${host}/${project}.git?access_token=${base64}`,
  `Author: ${person} Doe <${person}@${host}>`,
  `/home/${person}/${project}/train.py:12: pin ${pin}, 10.7.8.9`,
  `\u001b[31m${weak?.slice(0, 3)}\u001b[0m${weak?.slice(3)}\u001b[0m`,
  'RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB',
  'ONEJOB_SECRET=***',
].join('\n');

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const at = (name: string) => join(dir.path, name);

async function onejob(args: readonly string[], { terminal = false, typed = '' } = {}) {
  const tools = existsSync(at('tools')) ? { path: `${at('tools')}:/usr/bin:/bin` } : fakeTools(dir.path);
  writeFileSync(at('q.xml'), nvidia);
  writeFileSync(join(at('tools'), 'nvidia-smi'), `#!/bin/sh\ncat '${at('q.xml')}'\n`, { mode: 0o755 });
  const cli = testContext(['report', ...args], dir.path, { variables: { PATH: tools.path, API_TOKEN: plain } });
  if (terminal) {
    for (const stream of [cli.context.stdin(), cli.context.stdout, cli.context.stderr])
      Object.assign(stream, { isTTY: true, columns: 100 });
    cli.type(typed);
  }
  const code = await runCli(cli.context);
  return { code, stdout: cli.stdout(), stderr: cli.stderr() };
}

const nvidia = readFileSync(join(import.meta.dirname, '../../test/fixtures/gpu/nvidia-smi/xml/r570-rtx3060.xml'), 'utf8').replace(
  '<processes>',
  `<processes><process_info><process_name>/home/${person}/run --key ${plain}</process_name></process_info>`,
);

/** The files of an archive, after a search for what must not be in its bytes. */
async function opened(path: string): Promise<Map<string, string>> {
  const bytes = gunzipSync(readFileSync(path)).toString('latin1');
  const { username, homedir } = userInfo();
  const people = username === 'root' ? [] : [username, homedir];
  for (const secret of [...secrets, ...people, hostname(), dir.path])
    expect(bytes.toLowerCase()).not.toContain(secret.toLowerCase());
  const files = new Map<string, string>();
  const reader = extract();
  const done = (async () => {
    for await (const entry of reader) files.set(entry.header.name.replace('onejob-report/', ''), await text(entry));
  })();
  Readable.from([gunzipSync(readFileSync(path))]).pipe(reader);
  await done;
  return files;
}

describe('with a daemon', () => {
  let manager: FakeManager;
  let server: ApiServer;
  beforeEach(async () => {
    manager = createFakeManager();
    server = await startApi({ manager, socket: { path: at('onejob.sock'), access: 'owner' }, version: '0' });
    manager.elsewhere = [job('f00dfeedcafe')];
    manager.endedJobs = () => ({ jobs: manager.elsewhere, next: null });
    manager.agentOutput.set('a1', noisy);
    manager.statusOverride = {
      problems: [`Cannot reach https://${person}:${weak}@${host}: connection refused`],
      stateDir: `/home/${person}/state`,
      hostName: host ?? '',
      config: `/home/${person}/${project}.yml`,
    };
  });
  afterEach(async () => {
    await manager.end();
    await server.close();
  });

  test('it has the ends of jobs that went wrong, what doctor says, the status and the GPUs', async () => {
    writeFileSync(at('config.yml'), config);
    const { code, stdout, stderr } = await onejob(['--yes', '-o', 'r.tar.gz', '--config', at('config.yml')]);
    expect([code, stderr]).toEqual([0, expect.stringContaining(`wrote ${at('r.tar.gz')}`)]);
    expect(stdout).toMatch(/FILE +SIZE +WHAT[\s\S]*gpus\/nvidia\.xml[\s\S]*Left out:\n {2}secrets/);
    expect(statSync(at('r.tar.gz')).mode & 0o777).toBe(0o600);
    const files = await opened(at('r.tar.gz'));
    // This host may have a service of its own.
    expect([...files.keys()].filter((file) => file !== 'daemon.log')).toEqual([
      'README.txt',
      'about.json',
      'config.json',
      'status.json',
      'doctor.json',
      'jobs/1.json',
      'gpus/nvidia.xml',
      'gpus/nvidia-list.txt',
    ]);
    const { job: told, output } = JSON.parse(files.get('jobs/1.json') ?? '');
    expect(told).toMatchObject({
      state: 'done',
      result: { kind: 'code', code: 3 },
      verdict: { kind: 'infrastructure' },
      startedAt: 2,
    });
    expect(Object.keys(told)).not.toContain('command');
    expect(output).toContainEqual(expect.stringMatching(/CUDA out of memory\. Tried to allocate 20\.00 GiB$/));
    expect(files.get('status.json')).toMatch(/Cannot reach <hidden-\d+> connection refused/);
    expect(files.get('doctor.json')).toContain('not reachable');
    expect(files.get('gpus/nvidia.xml')).toContain('NVIDIA GeForce RTX 3060');
  });

  test('a script gets the list, and no file until it says --yes', async () => {
    const { code, stdout } = await onejob(['--json', '-o', 'r.tar.gz']);
    const list = JSON.parse(stdout);
    expect([code, list.written, existsSync(at('r.tar.gz'))]).toEqual([0, null, false]);
    expect(list.files.map(({ file }: { file: string }) => file)).toContain('doctor.json');
    expect(list.leftOut).toContainEqual({ what: expect.stringContaining('variables of jobs'), why: expect.any(String) });
    expect(await onejob(['-o', 'r.tar.gz'])).toMatchObject({ code: 1, stderr: expect.stringContaining('add --yes') });
    expect(existsSync(at('r.tar.gz'))).toBe(false);
  });

  test('at a terminal it asks after the list; the usual answer writes nothing', async () => {
    expect(await onejob(['-o', 'r.tar.gz'], { terminal: true, typed: '\n' })).toMatchObject({ code: 1 });
    expect(existsSync(at('r.tar.gz'))).toBe(false);
    expect(await onejob(['-o', 'r.tar.gz'], { terminal: true, typed: 'yes\n' })).toMatchObject({ code: 0 });
    await opened(at('r.tar.gz'));
  });

  test('a file that exists stays as it is', async () => {
    writeFileSync(at('r.tar.gz'), 'mine');
    expect(await onejob(['--yes', '-o', 'r.tar.gz'])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('the file exists'),
    });
    expect(readFileSync(at('r.tar.gz'), 'utf8')).toBe('mine');
  });

  test('a job that nobody knows is an error, not a report without it', async () => {
    expect(await onejob(['--yes', 'f00dfeedcafe', '-o', 'r.tar.gz'])).toMatchObject({ code: 0 });
    expect((await opened(at('r.tar.gz'))).has('jobs/1.json')).toBe(true);
    expect((await onejob(['--yes', 'nonesuch'])).code).toBe(1);
  });
});

test('without a daemon it reads the store: of a job, neither command nor variables nor secrets', async () => {
  const state = at('state');
  const store = openStore(state);
  const pool = { name: 'p', timeout: null, recipe: { image: null, mounts: [] }, devices: { count: 0 } } as unknown as QueuePool;
  const queue = createOwnQueue({ store, pools: [pool] });
  const command = ['sh', '-c', `curl -u ${person}:${weak} https://${host}`];
  queue.submit(
    jobRequest.parse({ id: 'aaaaaaaaaaaa', command, name: project, user: person, env: { error: 'open', API_TOKEN: plain } }),
  );
  store.transaction({ durable: false }, () => {
    queue.jobs.record({ change: 'assigned', job: 'aaaaaaaaaaaa', agent: 'a1' });
    queue.jobs.record({ change: 'started', job: 'aaaaaaaaaaaa', agent: 'a1' });
    store.history.made({ agent: 'a1', pool: 'p', slot: 'p/1', name: 'a1', madeAt: 1 });
    store.history.released('a1', 'aaaaaaaaaaaa', 2);
  });
  queue.jobs.committed();
  await queue.close();
  store.close();
  mkdirSync(join(state, 'logs'), { recursive: true });
  writeFileSync(join(state, 'daemon.log'), `{"level":"error","path":"/home/${person}/${project}","event":"cannot start agent"}\n`);
  const log = createLogFolder(join(state, 'logs')).open('a1');
  const bytes = Buffer.from(noisy);
  log.append({ stream: 'stdout', time: 1n, bytes }, bytes);
  log.close();
  writeFileSync(at('config.yml'), config);
  const { code } = await onejob(['aaaa', '--yes', '-o', 'r.tar.gz', '--state-dir', state, '--config', at('config.yml')]);
  expect(code).toBe(0);
  const files = await opened(at('r.tar.gz'));
  expect(files.get('jobs/1.json')).toContain('CUDA out of memory');
  expect(files.get('README.txt')).toContain('the status: no daemon is running');
  expect(files.get('daemon.log')).toMatch(/"level":"error","path":"<hidden-\d+>","event":"cannot start agent"/);
  const { shown } = JSON.parse(files.get('config.json') ?? '');
  expect(shown).toContainEqual({ key: 'pools.lab.agents', value: '3', isWritten: true });
  expect(shown).toContainEqual({ key: 'pools.lab.env', value: null, isWritten: true });
  expect(shown).toContainEqual({ key: 'services.forge.type', value: 'gitea', isWritten: true });
  expect(files.get('config.json')).not.toMatch(/agents_too|swordfish/);
});

const config = `
services:
  forge: { type: gitea, url: "https://${host}", token: { file: /home/${person}/gitea.token } }
notify: { webhook: "https://${host}/${base64}" }
pools:
  lab:
    agents: 3
    env: { agents: 42, agents_too: open, API_TOKEN: ${plain}, PIN: "${pin}" }
    image: ${host}/${project}:1
    volumes: ["/home/${person}:/data"]
  forge: { service: forge, queue: ${project}, password: swordfish }
`;

function job(id: string): JobView {
  return {
    id,
    service: 'forge',
    pool: 'lab',
    command: ['curl', '-H', `Authorization: Bearer ${jwt}`],
    name: project,
    user: person,
    about: {
      title: `Fix by ${person}`,
      definition: project ?? '',
      build: null,
      repository: `${host}/${project}`,
      branch: `${person}/fix`,
      reason: null,
      link: `https://${host}/1`,
      demands: [],
    },
    state: 'done',
    priority: 0,
    attempt: 1,
    agent: 'a1',
    result: { kind: 'code', code: 3 },
    outcome: 'failed',
    reason: `pulling ${host}/${project}:1 as ${person} failed: ${github}`,
    cold: false,
    artifacts: [`${person}.txt`],
    submittedAt: 1,
    startedAt: 2,
    endedAt: Date.now(),
    image: `${host}/${project}:1`,
    verdict: { kind: 'infrastructure', why: `the registry ${host} did not answer`, evidence: [`exit code 3`, `token ${gitlab}`] },
  };
}
