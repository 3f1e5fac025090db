/** The scripted agent against the stand-in on a good day: what it does is what tests of onejob rely on. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { isAlive } from '../../../support/child.ts';
import { agentVersion } from './pack.ts';
import { listening, makeKey, setup } from './testing.ts';

const key = makeKey();
/** A job that ends once the test writes `go`. */
const untilGo = 'until [ -e "$AGENT_HOMEDIRECTORY/go" ]; do sleep 0.02; done';

describe('run --once', () => {
  test('takes one job, streams it, tells its end, and leaves', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    expect(at.service.agents(at.pool)[0]).toMatchObject({ online: true, name: 'agent-1' });
    const script = 'echo "in $(pwd)"; echo "of $BUILD_REPOSITORY_NAME by $AGENT_NAME"; echo "token ${SYSTEM_ACCESSTOKEN:-hidden}"';
    const job = at.service.queue(at.pool, { name: 'Build it', script, repository: 'acme/things' });
    const { result, log } = await job.finished;
    expect(result).toBe('succeeded');
    expect(log).toContain(`in ${join(at.home.path, '_work/1/s')}`);
    // With its time, as in the log that is uploaded at the end; the feed has none.
    expect(log).toMatch(/^\d{4}-\d\d-\d\dT[\d:.]+Z of acme\/things by agent-1$/m);
    expect(log).toContain('token hidden');
    expect(at.service.lines(job.requestId).join('\n')).toContain('of acme/things');
    expect(await running.ended).toBe(0);
    expect(running.said()).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ: Listening for Jobs$/m);
    expect(running.said()).toMatch(/Z: Running job: Build it$/m);
    expect(running.said()).toMatch(/Z: Job Build it completed with result: Succeeded$/m);
    expect(at.service.agents(at.pool)[0]).toMatchObject({ online: false, session: null, request: null });
    expect(at.home.diag('Agent')).toContain('agent-1');
    expect(at.home.diag('Worker')).toContain('result: succeeded');
  });

  test('says what it can do: environment, tools, .env, .capabilities, and itself', async () => {
    await using at = await setup(key);
    at.home.write('.env', 'with.dots=yes\nLANG=C\n');
    at.home.write('.capabilities', 'cuda=12.4\nfrom=file\n');
    await listening(at, {
      VSO_AGENT_IGNORE: 'secret',
      SECRET: 'x',
      from: 'environment',
      LONG: 'x'.repeat(1024),
      SHORT: 'x'.repeat(1023),
    });
    const seen = at.service.agents(at.pool)[0]?.systemCapabilities ?? {};
    expect(seen).toMatchObject({
      'with.dots': 'yes',
      LANG: 'C',
      cuda: '12.4',
      from: 'file',
      sh: expect.stringContaining('/sh'),
      SHORT: expect.any(String),
      'Agent.Name': 'agent-1',
      'Agent.Version': agentVersion,
      'Agent.OS': 'Linux',
      'Agent.HomeDirectory': at.home.path,
    });
    expect(Object.keys(seen)).not.toEqual(expect.arrayContaining(['SECRET']));
    expect(Object.keys(seen)).not.toEqual(expect.arrayContaining(['LONG']));
    expect(Object.keys(seen)).not.toEqual(expect.arrayContaining(['VSO_AGENT_IGNORE']));
  });

  test('exits 0 after a failed job, too', async () => {
    await using at = await setup(key);
    const job = at.service.queue(at.pool, { script: 'echo dying >&2; exit 3' });
    const running = at.home.start(['run', '--once']);
    expect(await job.finished).toMatchObject({ result: 'failed', log: expect.stringContaining('dying') });
    expect(await running.ended).toBe(0);
    expect(running.said()).toContain('completed with result: Failed');
  });

  test('ends a job with a PATCH where the plan is old', async () => {
    await using at = await setup(key, { planVersion: 7 });
    const job = at.service.queue(at.pool);
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
    expect(at.service.log.some((entry) => entry.route === 'events')).toBe(false);
  });

  test('works with a server in a virtual directory whose tokens name another host', async () => {
    await using at = await setup(key, { collectionPath: 'tfs/DefaultCollection' });
    // As onejob writes it on-premises: the audience as it came, the address with the configured host.
    const file = join(at.home.path, '.credentials');
    const credentials = JSON.parse(readFileSync(file, 'utf8')) as { data: { authorizationUrl: string; oauthEndpointUrl: string } };
    const endpoint = new URL(credentials.data.authorizationUrl);
    endpoint.host = new URL(at.service.url).host;
    credentials.data.oauthEndpointUrl = endpoint.href;
    at.home.write('.credentials', credentials);
    const job = at.service.queue(at.pool);
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
  });

  test('renews its lock while the job runs', async () => {
    await using at = await setup(key, { lockMs: 9000 });
    const job = at.service.queue(at.pool, { script: 'sleep 10' });
    const running = at.home.start(['run', '--once']);
    expect((await job.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
  });

  test('leaves a second job alone', async () => {
    await using at = await setup(key, { requeueUnreceived: true });
    at.service.faults.secondJob = 'while-busy';
    const running = await listening(at);
    const first = at.service.queue(at.pool, { script: untilGo });
    await running.says('Running job');
    const second = at.service.queue(at.pool);
    await expect.poll(() => at.home.diag('Agent')).toContain('second job');
    at.home.write('go', '');
    expect((await first.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
    expect(second.view()).toMatchObject({ receiveTime: null, result: null });
  });

  test('does not wait for what a script leaves in the background', async () => {
    await using at = await setup(key);
    const job = at.service.queue(at.pool, { script: 'sleep 120 & echo $! >"$AGENT_HOMEDIRECTORY/left"; echo left it' });
    const running = at.home.start(['run', '--once']);
    expect(await job.finished).toMatchObject({ result: 'succeeded', log: expect.stringContaining('left it') });
    expect(await running.ended).toBe(0);
    const left = Number(readFileSync(join(at.home.path, 'left'), 'utf8'));
    const isLeft = isAlive(left);
    if (isLeft) process.kill(left, 'SIGKILL');
    expect(isLeft).toBe(true);
  });

  test('keeps its own logs where AGENT_DIAGLOGPATH says', async () => {
    await using at = await setup(key);
    at.service.queue(at.pool);
    const elsewhere = join(at.home.path, 'logs', 'here');
    expect(await at.home.start(['run', '--once'], { AGENT_DIAGLOGPATH: elsewhere }).ended).toBe(0);
    expect(readdirSync(elsewhere).sort()).toEqual([
      expect.stringMatching(/^Agent_\d{8}-\d{6}-utc\.log$/),
      expect.stringMatching(/^Worker_.*-utc\.log$/),
    ]);
    expect(existsSync(join(at.home.path, '_diag'))).toBe(false);
  });

  test('is cancelled by the service, and still exits 0', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    const job = at.service.queue(at.pool, { script: 'echo begun; sleep 60' });
    await expect.poll(() => at.service.lines(job.requestId)).toContain('begun');
    at.service.cancel(job.requestId);
    expect((await job.finished).result).toBe('canceled');
    expect(await running.ended).toBe(0);
  });

  test('cancels its job when it is terminated', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    const job = at.service.queue(at.pool, { script: 'echo begun; sleep 60' });
    await expect.poll(() => at.service.lines(job.requestId)).toContain('begun');
    running.child.kill('SIGTERM');
    expect((await job.finished).result).toBe('canceled');
    expect(await running.ended).toBe(0);
    expect(running.said()).toContain('Exiting...');
  });

  test('is terminated while it waits: session closed, exit 0', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    running.child.kill('SIGTERM');
    expect(await running.ended).toBe(0);
    expect(at.service.agents(at.pool)[0]?.online).toBe(false);
  });

  test('is told to update: exit 4, or 3 without --once', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    at.service.updateAgents(at.pool, '5.300.0');
    expect(await running.ended).toBe(4);
    expect(running.said()).toContain('Downloading 5.300.0 agent');
    const again = at.home.start(['run']);
    await again.says('Listening for Jobs');
    at.service.updateAgents(at.pool, '5.300.0');
    expect(await again.ended).toBe(3);
  });

  test('does not update when it is told not to', async () => {
    await using at = await setup(key);
    at.home.write('.env', 'agent.disableupdate=1\n');
    const running = await listening(at);
    at.service.updateAgents(at.pool, '5.300.0');
    await expect.poll(() => at.home.diag('Agent')).toContain('told not to');
    expect(running.child.exitCode).toBeNull();
  });
});
