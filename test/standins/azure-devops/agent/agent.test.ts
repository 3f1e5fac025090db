/** The scripted agent against the stand-in: what it does is what tests of onejob rely on. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../standin.ts';
import { agentVersion, packAgent } from './pack.ts';
import { type AgentHome, agentHome, makeKey, register, writeFiles } from './testing.ts';

const key = makeKey();
const otherKey = makeKey();

/** A job that ends once the test writes `go`. */
const untilGo = 'until [ -e "$AGENT_HOMEDIRECTORY/go" ]; do sleep 0.02; done';

interface Setup extends AsyncDisposable {
  readonly service: AzureDevOps;
  readonly home: AgentHome;
  readonly pool: number;
  /** The agent's registration, whose files are written. */
  readonly agent: number;
  /** Answered requests by the agent's own token, as "METHOD route". */
  calls(): string[];
}

async function setup(options: StandInOptions & { readonly more?: Record<string, unknown> } = {}): Promise<Setup> {
  const { more, ...rest } = options;
  const service = await startAzureDevOps({ pollHoldMs: 2000, ...rest });
  const home = await agentHome();
  const pool = service.addPool('gpus');
  const agent = await register(service, pool, 'agent-1', key);
  writeFiles(home, service, { id: pool, name: 'gpus' }, { ...agent, name: 'agent-1' }, key, more);
  return {
    service,
    home,
    pool,
    agent: agent.id,
    calls: () => service.log.filter((entry) => entry.identity === 'agent').map((entry) => `${entry.method} ${entry.route}`),
    [Symbol.asyncDispose]: async () => {
      home[Symbol.dispose]();
      await service[Symbol.asyncDispose]();
    },
  };
}

/** The agent is online, and nothing is queued. */
async function listening(at: Setup, env: Record<string, string> = {}): Promise<ReturnType<AgentHome['start']>> {
  const running = at.home.start(['run', '--once'], env);
  await running.says('Listening for Jobs');
  return running;
}

describe('run --once', () => {
  test('takes one job, streams it, tells its end, and leaves', async () => {
    await using at = await setup();
    const running = await listening(at);
    expect(at.service.agents(at.pool)[0]).toMatchObject({ online: true, name: 'agent-1' });
    const script = 'echo "in $(pwd)"; echo "of $BUILD_REPOSITORY_NAME by $AGENT_NAME"; echo "token ${SYSTEM_ACCESSTOKEN:-hidden}"';
    const job = at.service.queue(at.pool, { name: 'Build it', script, repository: 'acme/things' });
    const { result, log } = await job.finished;
    expect(result).toBe('succeeded');
    expect(log).toContain(`in ${join(at.home.path, '_work/1/s')}`);
    expect(log).toContain('of acme/things by agent-1');
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
    await using at = await setup();
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
    await using at = await setup();
    const job = at.service.queue(at.pool, { script: 'echo dying >&2; exit 3' });
    const running = at.home.start(['run', '--once']);
    expect(await job.finished).toMatchObject({ result: 'failed', log: expect.stringContaining('dying') });
    expect(await running.ended).toBe(0);
    expect(running.said()).toContain('completed with result: Failed');
  });

  test('ends a job with a PATCH where the plan is old', async () => {
    await using at = await setup({ planVersion: 7 });
    const job = at.service.queue(at.pool);
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
    expect(at.service.log.some((entry) => entry.route === 'events')).toBe(false);
  });

  test('works with a server in a virtual directory whose tokens name another host', async () => {
    await using at = await setup({ collectionPath: 'tfs/DefaultCollection' });
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
    await using at = await setup({ lockMs: 600 });
    const job = at.service.queue(at.pool, { script: 'sleep 1.2' });
    const running = at.home.start(['run', '--once']);
    expect((await job.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
  });

  test('leaves a second job alone', async () => {
    await using at = await setup({ requeueUnreceived: true });
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

  test('is cancelled by the service, and still exits 0', async () => {
    await using at = await setup();
    const running = await listening(at);
    const job = at.service.queue(at.pool, { script: 'echo begun; sleep 60' });
    await expect.poll(() => at.service.lines(job.requestId)).toContain('begun');
    at.service.cancel(job.requestId);
    expect((await job.finished).result).toBe('canceled');
    expect(await running.ended).toBe(0);
  });

  test('cancels its job when it is terminated', async () => {
    await using at = await setup();
    const running = await listening(at);
    const job = at.service.queue(at.pool, { script: 'echo begun; sleep 60' });
    await expect.poll(() => at.service.lines(job.requestId)).toContain('begun');
    running.child.kill('SIGTERM');
    expect((await job.finished).result).toBe('canceled');
    expect(await running.ended).toBe(0);
    expect(running.said()).toContain('Exiting...');
  });

  test('is terminated while it waits: session closed, exit 0', async () => {
    await using at = await setup();
    const running = await listening(at);
    running.child.kill('SIGTERM');
    expect(await running.ended).toBe(0);
    expect(at.service.agents(at.pool)[0]?.online).toBe(false);
  });

  test('is told to update: exit 4, or 3 without --once', async () => {
    await using at = await setup();
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
    await using at = await setup();
    at.home.write('.env', 'agent.disableupdate=1\n');
    const running = await listening(at);
    at.service.updateAgents(at.pool, '5.300.0');
    await expect.poll(() => at.home.diag('Agent')).toContain('told not to');
    expect(running.child.exitCode).toBeNull();
  });
});

describe('what the service does to it', () => {
  test('the registration is gone: exit 2 while it waits', async () => {
    await using at = await setup();
    const running = await listening(at);
    const answer = await fetch(`${at.service.url}/_apis/distributedtask/pools/${at.pool}/agents/${at.agent}?api-version=7.1`, {
      method: 'DELETE',
      headers: { authorization: `Basic ${Buffer.from(`:${at.service.pat}`).toString('base64')}` },
    });
    expect(answer.ok).toBe(true);
    expect(await running.ended).toBe(2);
  });

  test('somebody else has the session: it waits, and then gives up with exit 1', async () => {
    await using at = await setup();
    const first = await listening(at);
    const second = at.home.start(['run', '--once']);
    expect(await second.ended).toBe(1);
    expect(second.said()).toContain('A session for this agent already exists.');
    expect(first.child.exitCode).toBeNull();
  });

  test('a clock that differs: it says so, and comes online once the clock is right', async () => {
    await using at = await setup();
    at.service.faults.skew = 3_600_000;
    const running = at.home.start(['run', '--once']);
    await running.says('The local clock may be out of sync with the server time.');
    at.service.faults.skew = 0;
    await running.says('Listening for Jobs');
  });

  test('it is down for a while: the agent comes back, and does its job', async () => {
    await using at = await setup();
    const running = await listening(at);
    await at.service.faults.down();
    await running.says('Retrying until reconnected.');
    await at.service.faults.up();
    const job = at.service.queue(at.pool);
    expect((await job.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
  });

  test('its session ran out while it was stopped: a new one, unless .agent says no', async () => {
    for (const skipSessionRecover of [false, true]) {
      await using at = await setup({ sessionMs: 300, pollHoldMs: 100, more: { skipSessionRecover } });
      const running = await listening(at);
      const gone = at.service.next('sessionClosed');
      running.child.kill('SIGSTOP');
      expect((await gone).why).toBe('expired');
      const back = at.service.next('sessionOpened');
      running.child.kill('SIGCONT');
      if (skipSessionRecover) expect(await running.ended).toBe(2);
      else {
        await back;
        const job = at.service.queue(at.pool);
        expect((await job.finished).result).toBe('succeeded');
        expect(await running.ended).toBe(0);
      }
    }
  });

  test('its token was revoked: it leaves without a word, exit 0', async () => {
    await using at = await setup();
    const revoked = { kind: 'error', status: 401, typeKey: 'TaskAgentAccessTokenExpiredException' } as const;
    at.service.faults.add(revoked, { route: 'messages' });
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
  });

  test('the end of a job is told again when it was not heard', async () => {
    await using at = await setup();
    at.service.faults.add({ kind: 'reset' }, { method: 'POST', route: 'events', times: 2 });
    const job = at.service.queue(at.pool);
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
  });

  test('a PAT is never shown to any route of an agent', async () => {
    await using at = await setup();
    at.service.queue(at.pool);
    await at.home.start(['run', '--once']).ended;
    expect(at.calls()).toEqual(expect.arrayContaining(['POST sessions', 'GET messages']));
    expect(at.service.log.filter((entry) => entry.leaked)).toEqual([]);
  });
});

describe('its files are read strictly', () => {
  const cases: readonly [string, (home: AgentHome) => void, string][] = [
    [
      'a key value is a byte short',
      (home) => home.write('.credentials_rsaparams', { ...key.parameters, dp: short(key.parameters.dp) }),
      '"dp" must be 128 bytes, not 127',
    ],
    [
      'a key value is base64url',
      (home) => home.write('.credentials_rsaparams', { ...key.parameters, d: '_-'.repeat(171) }),
      '"d" must be standard base64',
    ],
    [
      'a key has another casing',
      (home) => home.write('.credentials_rsaparams', { ...key.parameters, inverseQ: undefined, InverseQ: key.parameters.inverseQ }),
      '"inverseQ" must be',
    ],
    [
      'its primes are of another key',
      (home) => home.write('.credentials_rsaparams', { ...key.parameters, p: otherKey.parameters.p }),
      '"modulus" must be the product',
    ],
    ['others may read the key', (home) => home.write('.credentials_rsaparams', key.parameters, 0o644), 'mode is 644'],
    ['the pool id is a text', (home) => home.write('.agent', { ...settings(home), poolId: '1' }), '"poolId" must be a positive'],
    ['there is no work folder', (home) => home.write('.agent', { ...settings(home), workFolder: '' }), '"workFolder" must be'],
    ['a setting is unknown', (home) => home.write('.agent', { ...settings(home), PoolId: 1 }), '"PoolId" must be absent'],
    ['the scheme is another', (home) => home.write('.credentials', { scheme: 'PAT', data: {} }), '"scheme" must be "OAuth"'],
    ['nothing is configured', (home) => execFileSync('rm', [join(home.path, '.agent')]), 'Not configured'],
  ];
  const short = (value: string | undefined): string =>
    Buffer.from(value ?? '', 'base64')
      .subarray(1)
      .toString('base64');
  const settings = (home: AgentHome): Record<string, unknown> => JSON.parse(readFileSync(join(home.path, '.agent'), 'utf8'));

  test.each(cases)('%s: exit 1 with a sentence', async (_, spoil, sentence) => {
    using home = await agentHome();
    const authorization = { clientId: '0b1d5c1e-2d7c-4a7b-9d43-5b2f6f0c9a11', authorizationUrl: 'http://127.0.0.1:9/token' };
    writeFiles(home, { url: 'http://127.0.0.1:9' }, { id: 1, name: 'gpus' }, { id: 7, name: 'agent-1', authorization }, key);
    spoil(home);
    const running = home.start(['run', '--once']);
    expect(await running.ended).toBe(1);
    expect(running.said()).toContain(sentence);
  });

  test('a byte order mark does no harm', async () => {
    await using at = await setup();
    const file = join(at.home.path, '.agent');
    at.home.write('.agent', `\uFEFF${readFileSync(file, 'utf8')}`);
    await listening(at);
  });

  test('root needs leave', async () => {
    using home = await agentHome();
    const running = home.start(['run', '--once'], { AGENT_ALLOW_RUNASROOT: '' });
    expect(await running.ended).toBe(1);
    expect(running.said()).toMatch(process.getuid?.() === 0 ? /Must not run as root/ : /Not configured/);
  });
});

describe('misbehaves as it is told', () => {
  test('fail: a script that would have been fine', async () => {
    await using at = await setup();
    const job = at.service.queue(at.pool, { script: '# standin-agent: fail\necho fine' });
    const running = at.home.start(['run', '--once']);
    expect((await job.finished).result).toBe('failed');
    expect(await running.ended).toBe(0);
  });

  test('hang: until it is cancelled', async () => {
    await using at = await setup();
    const running = at.home.start(['run', '--once'], { STANDIN_AGENT: 'hang' });
    const job = at.service.queue(at.pool, { script: 'touch ran' });
    await running.says('Running job');
    running.child.kill('SIGTERM');
    expect((await job.finished).result).toBe('canceled');
    expect(existsSync(join(at.home.path, '_work/1/s/ran'))).toBe(false);
  });

  test('crash and vanish: the request stays unfinished', async () => {
    for (const [name, end] of [
      ['crash', 'SIGKILL'],
      ['vanish', 0],
    ] as const) {
      await using at = await setup();
      const job = at.service.queue(at.pool);
      expect(await at.home.start(['run', '--once'], { STANDIN_AGENT: name }).ended).toBe(end);
      expect(job.view()).toMatchObject({ state: 'running', result: null });
      expect(at.service.agents(at.pool)[0]?.session).not.toBeNull();
    }
  });

  test('second: takes the job that it should have left', async () => {
    await using at = await setup();
    at.service.faults.secondJob = 'while-busy';
    const running = await listening(at, { STANDIN_AGENT: 'second' });
    const first = at.service.queue(at.pool, { name: 'one', script: untilGo });
    await running.says('Running job: one');
    const second = at.service.queue(at.pool, { name: 'two' });
    at.home.write('go', '');
    expect((await first.finished).result).toBe('succeeded');
    expect((await second.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
  });

  test('end, exit3, exit4, never-online, slow-start, ignore-term', async () => {
    await using at = await setup();
    const run = (list: string) => at.home.start(['run', '--once'], { STANDIN_AGENT: list });
    expect(await run('end=7').ended).toBe(7);
    expect(at.service.agents(at.pool)[0]?.everOnline).toBe(false);
    expect(await run('exit3').ended).toBe(3);
    expect(await run('exit4').ended).toBe(4);
    const silent = run('never-online');
    await silent.says('Connecting to the server.');
    silent.child.kill('SIGTERM');
    expect(await silent.ended).toBe(0);
    expect(silent.said()).not.toContain('Listening');
    const slow = run('slow-start=300,ignore-term');
    await slow.says('Listening for Jobs');
    slow.child.kill('SIGTERM');
    await expect.poll(() => at.home.diag('Agent')).toContain('SIGTERM ignored');
    expect(slow.child.exitCode).toBeNull();
    expect(await run('typo').ended).toBe(2);
  });
});

describe('config.sh', () => {
  const words = (service: AzureDevOps, ...more: string[]): string[] => [
    'configure',
    '--unattended',
    '--url',
    service.url,
    '--auth',
    'pat',
    '--token',
    service.pat,
    '--pool',
    'gpus',
    '--acceptTeeEula',
    ...more,
  ];

  test('adds the agent, which then runs with the files that it wrote', async () => {
    await using service = await startAzureDevOps({ pollHoldMs: 2000 });
    const pool = service.addPool('gpus');
    using home = await agentHome();
    const configuring = home.start(words(service, '--agent', 'by-hand'));
    expect(await configuring.ended, configuring.said()).toBe(0);
    expect(configuring.said()).toContain('Settings Saved.');
    expect(service.agents(pool)).toMatchObject([{ name: 'by-hand', everOnline: false }]);
    for (const file of ['.credentials', '.credentials_rsaparams']) {
      expect(statSync(join(home.path, file)).mode & 0o777).toBe(0o600);
      expect(readFileSync(join(home.path, file), 'utf8')).not.toContain(service.pat);
    }
    const job = service.queue(pool);
    expect(await home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
    const removing = home.start(['remove', '--unattended', '--auth', 'pat', '--token', service.pat]);
    expect(await removing.ended, removing.said()).toBe(0);
    expect(service.agents(pool)).toEqual([]);
    expect(existsSync(join(home.path, '.agent'))).toBe(false);
  });

  test('replaces only when told to; takes VSTS_AGENT_INPUT_…; refuses what is wrong with exit 1', async () => {
    await using service = await startAzureDevOps({ pollHoldMs: 2000 });
    const pool = service.addPool('gpus');
    await register(service, pool, 'taken', key);
    using home = await agentHome();
    const refused = home.start(words(service, '--agent', 'taken'));
    expect(await refused.ended).toBe(1);
    expect(refused.said()).toContain('already contains an agent with name taken');
    const env = { VSTS_AGENT_INPUT_AGENT: 'taken', VSTS_AGENT_INPUT_WORK: 'elsewhere' };
    expect(await home.start(words(service, '--replace'), env).ended).toBe(0);
    expect(service.agents(pool)).toHaveLength(1);
    expect(Object.keys(service.agents(pool)[0]?.systemCapabilities ?? {})).not.toContain('VSTS_AGENT_INPUT_AGENT');
    expect(readFileSync(join(home.path, '.agent'), 'utf8')).toContain('"workFolder":"elsewhere"');
    expect(await home.start(words(service)).ended).toBe(1);
    using other = await agentHome();
    const noPool = other.start([...words(service), '--pool', 'nowhere']);
    expect(await noPool.ended).toBe(1);
    expect(noPool.said()).toContain("Agent pool not found: 'nowhere'");
  });
});

describe('the package', () => {
  test('has the same bytes each time, another version other bytes, and is laid out as the real one', async () => {
    const [one, two, newer] = [await packAgent(), await packAgent(), await packAgent('5.300.1')];
    expect(one).toEqual(two);
    expect(one.file).toMatch(/vsts-agent-linux-x64-5\.278\.0\.tar\.gz$/);
    expect(newer.sha256).not.toBe(one.sha256);
    const names = execFileSync('tar', ['-tzf', one.file], { encoding: 'utf8' }).split('\n');
    expect(names).toEqual(expect.arrayContaining(['./bin/Agent.Listener', './run.sh', './config.sh', './env.sh', './externals/']));
  });

  test('prints its version without being configured', async () => {
    using home = await agentHome();
    const running = home.start(['--version']);
    expect(await running.ended).toBe(0);
    expect(running.said()).toBe(`${agentVersion}\n`);
    expect(await home.start(['warmup']).ended).toBe(0);
  });
});
