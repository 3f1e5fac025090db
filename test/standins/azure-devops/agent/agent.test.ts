/** The scripted agent against the stand-in on a good day, as a plain process: what it does is what tests of onejob rely on. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../support/scratch.ts';
import { startAzureDevOps } from '../standin.ts';
import { agentEntries, agentVersion } from './pack.ts';

/** The package in a folder of its own, and what has its agent make itself known. */
async function setup() {
  await using stack = new AsyncDisposableStack();
  const service = stack.use(await startAzureDevOps({ pollHoldMs: 2_000 }));
  const pool = service.addPool('gpus');
  const folder = stack.use(scratch());
  const path = (name: string) => join(folder.path, name);
  for (const { path: name, body, mode } of await agentEntries()) {
    if (body === null) mkdirSync(path(name), { recursive: true });
    else writeFileSync(path(name), body, { mode });
  }
  const running = new Set<ReturnType<typeof spawn>>();
  /** Starts `Agent.Listener` with these words. Its environment is `env`, PATH, and leave to be root. */
  const start = (words: readonly string[], env: Readonly<Record<string, string>> = {}) => {
    const child = spawn(path('bin/Agent.Listener'), words, {
      cwd: folder.path,
      env: { PATH: `${dirname(process.execPath)}:${process.env.PATH}`, AGENT_ALLOW_RUNASROOT: '1', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    running.add(child);
    let said = '';
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => {
        said += chunk.toString();
      });
    return { child, said: () => said, ended: once(child, 'close').then(([code]) => code as number | null) };
  };
  stack.defer(() => {
    for (const child of running) child.kill('SIGKILL');
  });
  const asManager = ['--unattended', '--auth', 'pat', '--token', service.pat];
  const made = start(['configure', ...asManager, '--url', service.url, '--pool', 'gpus', '--agent', 'agent-1', '--acceptTeeEula']);
  expect(await made.ended, made.said()).toBe(0);
  const all = stack.move();
  return { service, pool, path, start, asManager, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

test('makes itself known, takes one job, streams it, tells its end, leaves, and is removed', async () => {
  await using at = await setup();
  const { service, pool, path } = at;
  expect(service.agents(pool)).toMatchObject([{ name: 'agent-1', everOnline: false }]);
  expect(readFileSync(path('.credentials'), 'utf8')).not.toContain(service.pat);
  const running = at.start(['run', '--once'], { AGENT_DIAGLOGPATH: path('logs') });
  const script = 'echo "in $(pwd)"; echo "of $BUILD_REPOSITORY_NAME by $AGENT_NAME"; echo "token ${SYSTEM_ACCESSTOKEN:-hidden}"';
  const job = service.queue(pool, { name: 'Build it', script, repository: 'acme/things' });
  const { result, log } = await job.finished;
  expect(result).toBe('succeeded');
  expect(log).toContain(`in ${path('_work/1/s')}`);
  // With its time, as in the log that is uploaded at the end; the feed has none.
  expect(log).toMatch(/^\d{4}-\d\d-\d\dT[\d:.]+Z of acme\/things by agent-1$/m);
  expect(log).toContain('token hidden');
  expect(service.lines(job.requestId).join('\n')).toContain('of acme/things');
  expect(await running.ended).toBe(0);
  expect(running.said()).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ: Listening for Jobs$/m);
  expect(running.said()).toMatch(/Z: Running job: Build it$/m);
  expect(running.said()).toMatch(/Z: Job Build it completed with result: Succeeded$/m);
  expect(service.agents(pool)[0]).toMatchObject({ online: false, everOnline: true, request: null });
  expect(readdirSync(path('logs')).sort()).toEqual([
    expect.stringMatching(/^Agent_.*-utc\.log$/),
    expect.stringMatching(/^Worker_/),
  ]);
  expect(await at.start(['remove', ...at.asManager]).ended).toBe(0);
  expect([service.agents(pool), existsSync(path('.agent'))]).toEqual([[], false]);
});

test('says what it can do: environment, tools, .env, .capabilities, and itself', async () => {
  await using at = await setup();
  writeFileSync(at.path('.env'), 'with.dots=yes\nLANG=C\n');
  writeFileSync(at.path('.capabilities'), 'cuda=12.4\nfrom=file\n');
  const [long, short] = ['x'.repeat(1024), 'x'.repeat(1023)];
  at.start(['run', '--once'], { VSO_AGENT_IGNORE: 'secret', SECRET: 'x', from: 'environment', LONG: long, SHORT: short });
  await at.service.next('sessionOpened');
  const seen = at.service.agents(at.pool)[0]?.systemCapabilities ?? {};
  expect(seen).toMatchObject({
    'with.dots': 'yes',
    LANG: 'C',
    cuda: '12.4',
    from: 'file',
    sh: expect.stringContaining('/sh'),
    SHORT: short,
    'Agent.Name': 'agent-1',
    'Agent.Version': agentVersion,
    'Agent.OS': 'Linux',
    'Agent.HomeDirectory': at.path(''),
  });
  for (const hidden of ['SECRET', 'LONG', 'VSO_AGENT_IGNORE']) expect(seen).not.toHaveProperty(hidden);
});

test.each(['its service', 'TERM'])('a job that is cancelled by %s has that result, and its agent exits 0', async (by) => {
  await using at = await setup();
  const { service, pool } = at;
  const running = at.start(['run', '--once']);
  const job = service.queue(pool, { script: 'echo begun; sleep 60' });
  await expect.poll(() => service.lines(job.requestId), { timeout: 10_000 }).toContain('begun');
  if (by === 'TERM') running.child.kill('SIGTERM');
  else service.cancel(job.requestId);
  expect((await job.finished).result).toBe('canceled');
  expect(await running.ended).toBe(0);
});
