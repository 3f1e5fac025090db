/** The real agent on a good day: what it does is what the stand-in and onejob are held against. */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '../../../support/require.ts';
import { asking, handAgent } from '../hand-agent.ts';
import { setup } from './testing.ts';

describe.skipIf(lacks('buildkiteAgent'))('the real buildkite-agent', { timeout: 120_000 }, () => {
  test('takes one job, tells all that a job tells, and leaves', async () => {
    await using at = await setup();
    const { bk } = at;
    bk.addSecret('API', 'correct horse battery');
    const lines = [
      'echo "in $(pwd) as $BUILDKITE_AGENT_NAME"',
      'buildkite-agent meta-data set colour blue; echo "it is $(buildkite-agent meta-data get colour)"',
      'buildkite-agent meta-data exists taste || echo "no taste: $?"',
      'mkdir up down; echo payload > up/x.txt; buildkite-agent artifact upload "up/*.txt"',
      'buildkite-agent artifact download "up/*" down; cat down/up/x.txt',
      'buildkite-agent annotate "**well**" --context c --style info',
      'echo "secret $(buildkite-agent secret get API) told"',
      'exit 3',
    ];
    const id = bk.queueJob({ command: lines.join('\n'), pipeline: 'things' });
    const agent = at.start();
    const job = await bk.jobEnded(id);
    expect(job).toMatchObject({
      exit: 3,
      state: 'finished',
      signal: '',
      chunksFailed: 0,
      logMissing: 0,
      metaData: { colour: 'blue' },
    });
    expect(job.log).toContain(`in ${join(at.home, 'one/builds/one/acme/things')} as one\n`);
    expect(job.log).toContain('it is blue\n');
    expect(job.log).toContain('no taste: 100\n');
    expect(job.log).toMatch(/^payload$/m);
    expect(job.log).toContain('secret [REDACTED] told\n');
    expect(job.rawLog.toString()).not.toContain('horse');
    expect(job.annotations).toEqual([{ context: 'c', style: 'info', body: '**well**' }]);
    expect(job.artifacts).toMatchObject([
      {
        path: 'up/x.txt',
        size: 8,
        state: 'finished',
        received: { sha1: job.artifacts[0]?.sha1, content: Buffer.from('payload\n') },
      },
    ]);
    // Also when the job failed.
    expect((await agent.ended).code).toBe(0);
    expect(bk.agents()).toMatchObject([{ name: 'one', state: 'disconnected', ignored: true, version: '3.137.0' }]);
    expect(bk.census()).toEqual({ agents: [], jobs: [] });
  });

  test('shows each token where it belongs, and the job none but its own', async () => {
    await using at = await setup();
    const { bk } = at;
    const id = bk.queueJob({
      command:
        'env; cat /proc/$PPID/environ /proc/$PPID/cmdline | tr "\\0" "\\n"; echo "mine: ${BUILDKITE_AGENT_ACCESS_TOKEN:0:5}"',
    });
    await at.start().ended;
    const { log, rawLog } = bk.job(id);
    expect(log).toContain('BUILDKITE_JOB_ID=');
    expect(log).toContain('mine: bkaj_');
    expect(rawLog.includes(bk.token)).toBe(false);
    expect(bk.requests.some(({ leaked }) => leaked)).toBe(false);
    const order = bk.requests
      .filter(({ route }) => !['heartbeat', 'jobs/:id/chunks', 'jobs/:id'].includes(route))
      .map(({ route, token }) => `${route} ${token}`);
    expect(order).toEqual([
      'register registration',
      'connect session',
      'ping session',
      'jobs/:id/accept session',
      'jobs/:id/start job',
      'jobs/:id/finish job',
      'ping session',
      'disconnect session',
    ]);
  });

  test('fills a variable of the job with a secret of its step, and hides it in the log', async () => {
    await using at = await setup();
    at.bk.addSecret('DEPLOY', 'open sesame please');
    const id = at.bk.queueJob({
      command: 'echo "it says $DEPLOY_WORD"; test "$DEPLOY_WORD" = "open sesame please"',
      stepSecrets: [{ key: 'DEPLOY', variable: 'DEPLOY_WORD' }],
    });
    at.start();
    expect(await at.bk.jobEnded(id)).toMatchObject({ exit: 0, log: expect.stringContaining('it says [REDACTED]\n') });
  });

  test('does the rest of what jobs ask of it', async () => {
    await using at = await setup();
    const lines = [
      'buildkite-agent meta-data set b 2; printf "[%s]" $(buildkite-agent meta-data keys); echo',
      'buildkite-agent annotate x --context gone; buildkite-agent annotation remove --context gone',
      `echo '{"steps": [{"command": "true"}]}' | buildkite-agent pipeline upload`,
      'buildkite-agent oidc request-token --audience here | cut -c1-2',
      'echo data > f; buildkite-agent artifact upload f; echo "sum $(buildkite-agent artifact shasum f)"',
      'buildkite-agent step update label done; buildkite-agent step get label',
    ];
    const id = at.bk.queueJob({ command: lines.join('\n') });
    at.start();
    const job = await at.bk.jobEnded(id);
    expect(job.exit, job.log).toBe(0);
    expect(job.annotations).toEqual([]);
    expect(job.log).toContain('[b]\n');
    expect(job.log).toContain(`sum ${job.artifacts[0]?.sha1}\n`);
    const refused = at.bk.requests.filter(({ status }) => status >= 400);
    expect(refused.map(({ method, route, status }) => `${method} ${route} ${status}`)).toEqual([]);
  });

  test('checks out where it is told to, and uploads what the step names', async () => {
    await using at = await setup();
    const git = (...args: string[]) =>
      execFileSync('git', ['-c', 'user.name=x', '-c', 'user.email=x@example.org', '-C', join(at.home, 'repo'), ...args]);
    mkdirSync(join(at.home, 'repo'));
    git('init', '--quiet', '--initial-branch', 'main');
    writeFileSync(join(at.home, 'repo', 'README'), 'read me\n');
    git('add', '.');
    git('commit', '--quiet', '-m', 'first');
    const id = at.bk.queueJob({ command: 'cat README', checkout: true, repo: join(at.home, 'repo'), artifactPaths: 'REA*' });
    at.start();
    expect(await at.bk.jobEnded(id)).toMatchObject({
      exit: 0,
      log: expect.stringMatching(/^read me$/m),
      artifacts: [{ path: 'README', state: 'finished', received: { size: 8 } }],
    });
  });

  test('stops a job that a person cancels', async () => {
    await using at = await setup();
    const id = at.bk.queueJob({
      command: 'trap "echo stopping; exit 7" TERM; echo ready; while [ -d "$HOME" ]; do sleep 0.1; done',
    });
    const agent = at.start();
    await at.bk.next('log', ({ text }) => /^ready$/m.test(text));
    at.bk.cancel(id);
    const job = await at.bk.jobEnded(id);
    expect(job).toMatchObject({ state: 'canceled', signalReason: 'cancel' });
    expect(job.exit).not.toBe(0);
    expect(job.log).toContain('stopping');
    expect((await agent.ended).code).toBe(0);
  });

  test('streams a long log whole, and a large artifact without the stand-in keeping it', async () => {
    await using at = await setup();
    const file = join(at.home, 'big.bin');
    writeFileSync(file, randomBytes(48 * 1024 * 1024));
    const id = at.bk.queueJob({ command: `seq -f "line %.0f" 200000; cd ${at.home}; buildkite-agent artifact upload big.bin` });
    at.start();
    const job = await at.bk.jobEnded(id);
    expect(job).toMatchObject({ exit: 0, logMissing: 0, chunksFailed: 0 });
    expect(job.chunks.received).toBeGreaterThan(20);
    expect(job.log.match(/^line \d+$/gm)?.length).toBe(200_000);
    const [artifact] = job.artifacts;
    expect(artifact).toMatchObject({
      state: 'finished',
      received: { size: 48 * 1024 * 1024, sha1: artifact?.sha1, content: null },
    });
  });

  test('uploads in parts where it is told to', async () => {
    await using at = await setup({ partBytes: 5 * 1024 * 1024 });
    writeFileSync(join(at.home, 'big.bin'), randomBytes(11 * 1024 * 1024));
    const id = at.bk.queueJob({ command: `cd ${at.home}; buildkite-agent artifact upload big.bin` });
    at.start();
    const job = await at.bk.jobEnded(id);
    expect(job).toMatchObject({ exit: 0, artifacts: [{ state: 'finished', received: { size: 11 * 1024 * 1024 } }] });
    expect(at.bk.requests.filter(({ route }) => route === 'artifact-host/parts/:id/:part')).toHaveLength(3);
  });

  test('of two, the one with the higher priority gets the job', async () => {
    await using at = await setup();
    const flags = (priority: number) => ['--disconnect-after-job', '--ping-mode', 'poll-only', '--priority', String(priority)];
    const two = [at.start({ name: 'low', flags: flags(1) }), at.start({ name: 'high', flags: flags(9) })];
    await expect.poll(() => at.bk.agents().filter(({ state }) => state === 'idle')).toHaveLength(2);
    const id = at.bk.queueJob();
    expect(await at.bk.jobEnded(id)).toMatchObject({ exit: 0, agent: { name: 'high' } });
    two[0]?.signal('SIGTERM');
    expect((await Promise.all(two.map(({ ended }) => ended))).map(({ code }) => code)).toEqual([0, 0]);
    expect(at.bk.census()).toEqual({ agents: [], jobs: [] });
  });

  test('acquires the one job that it is told, and says so by 27 when that is refused', async () => {
    await using at = await setup();
    const { bk } = at;
    const other = await handAgent(bk, 'other');
    const id = bk.queueJob({ queue: 'gpu' });
    const flags = (job: string) => ['--acquire-job', job];
    expect((await at.start({ flags: flags(id) }).ended).code).toBe(0);
    expect(bk.job(id)).toMatchObject({ exit: 0, agent: { name: 'one' } });
    const taken = bk.queueJob();
    await other.accept(taken);
    expect((await at.start({ flags: flags(taken) }).ended).code).toBe(27);
    expect(bk.census().agents).toEqual(['other']);
  });

  test('acquires with a token that is for this job alone', async () => {
    await using at = await setup();
    const { bk } = at;
    const ask = asking(bk, bk.token);
    const id = bk.queueJob({ command: 'echo acquired' });
    await ask('POST', 'stacks/register', { key: 'lab', type: 'custom', queue_key: 'default', metadata: {} });
    await ask('PUT', 'stacks/lab/scheduled-jobs/batch-reserve', { job_uuids: [id] });
    const { json } = await ask('POST', 'stacks/lab/job-acquisition-tokens', { job_uuids: [id] });
    const token = /bkjat_[\w-]+/.exec(JSON.stringify(json))?.[0] ?? '';
    const agent = at.start({ token, flags: ['--acquire-job', id, '--reflect-exit-status'] });
    expect((await agent.ended).code).toBe(0);
    expect(bk.job(id).log).toContain('acquired\n');
    expect(bk.agents()).toMatchObject([{ token: 'acquisition' }]);
  });
});
