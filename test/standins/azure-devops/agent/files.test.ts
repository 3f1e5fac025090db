/** The scripted agent's files: read strictly, written by `config.sh`, and packed as the real agent's are. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type AzureDevOps, startAzureDevOps } from '../standin.ts';
import { agentVersion, packAgent } from './pack.ts';
import { type AgentHome, agentHome, listening, makeKey, register, setup, writeFiles } from './testing.ts';

const key = makeKey();
const otherKey = makeKey();

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
    ['nothing is configured', (home) => rmSync(join(home.path, '.agent')), 'Not configured'],
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
    await using at = await setup(key);
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
