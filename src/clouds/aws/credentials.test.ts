import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { awsBench } from '../../../test/kit/aws.ts';
import { testKey } from '../../../test/standins/aws/standin.ts';
import type { Ended } from '../../system/run.ts';
import type { AwsCredentialSource } from './config.ts';
import { wordsOf } from './profile.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onejob-aws-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

const temporary = { id: 'ASIATEMPORARYKEY0001', secret: 'temporary-secret', session: 'temporary-session' };
const keysInFile = (name: string, { id, secret, session }: { id: string; secret: string; session?: string }) =>
  `[${name}]\naws_access_key_id = ${id}\naws_secret_access_key=${secret}\n${session === undefined ? '' : `aws_session_token = ${session}\n`}`;

interface Given {
  readonly shared?: string;
  readonly config?: string;
  /** What programs print. */
  readonly prints?: () => string;
  readonly variables?: Readonly<Record<string, string>>;
}

function bench(credentials: AwsCredentialSource, { shared = '', config = '', prints, variables = {} }: Given) {
  const [sharedFile, configFile] = [join(folder, 'credentials'), join(folder, 'config')];
  writeFileSync(sharedFile, shared);
  writeFileSync(configFile, config);
  const ran: string[] = [];
  const found = awsBench({
    keys: [testKey, temporary],
    config: { credentials },
    parts: {
      variables: { AWS_SHARED_CREDENTIALS_FILE: sharedFile, AWS_CONFIG_FILE: configFile, ...variables },
      run: async (program, args): Promise<Ended> => {
        ran.push([program, ...args].join(' '));
        const stdout = Buffer.from(prints?.() ?? '');
        return { code: 0, error: null, stdout, stderr: '' };
      },
    },
  });
  return { ...found, ran, sharedFile };
}

const printed = (more: object = {}, { id, secret, session } = temporary) =>
  JSON.stringify({ Version: 1, AccessKeyId: id, SecretAccessKey: secret, SessionToken: session, ...more });

describe('a profile', () => {
  it('with static keys is read from either file, and again when it changes', async () => {
    const one = bench({ kind: 'profile', profile: 'ci' }, { shared: `# mine\n${keysInFile('ci', testKey)}\n[other]\nx = y\n` });
    expect((await one.list()).unknown).toEqual([]);
    writeFileSync(one.sharedFile, keysInFile('ci', { ...testKey, secret: 'wrong' }));
    expect((await one.list()).unknown).toHaveLength(6);
    const two = bench({ kind: 'profile', profile: 'ci' }, { config: keysInFile('profile ci', temporary) });
    expect((await two.list()).unknown).toEqual([]);
    expect([...one.ran, ...two.ran]).toEqual([]);
    await expect.poll(() => two.cloud.credential).toBe('profile ci (arn:aws:iam::123456789012:user/onejob)');
  });

  it('with credential_process runs it, once for many calls, and again shortly before the end', async () => {
    let end = 0;
    const { list, ran, clock } = bench(
      { kind: 'profile', profile: 'ci' },
      {
        config: '[profile ci]\ncredential_process = /opt/bin/sign-in --as "the ci role"\n',
        prints: () => printed({ Expiration: new Date(end).toISOString() }),
      },
    );
    end = clock.wall() + 3_600_000;
    await list();
    await list();
    expect(ran).toEqual(['/opt/bin/sign-in --as the ci role']);
    clock.advance(56 * 60_000);
    end = clock.wall() + 3_600_000;
    expect((await list()).unknown).toEqual([]);
    expect(ran).toHaveLength(2);
  });

  it.each([
    ['with SSO', '[profile ci]\nsso_session = corp\nsso_account_id = 1\n'],
    ['that assumes a role', '[profile ci]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = base\n'],
  ])('%s is asked of the AWS CLI', async (_, config) => {
    const { list, ran } = bench({ kind: 'profile', profile: 'ci' }, { config, prints: () => printed() });
    expect((await list()).unknown).toEqual([]);
    expect(ran).toEqual(['aws configure export-credentials --profile ci --format process']);
  });

  it('that is in neither file is an error', async () => {
    const { cloud, error, never } = bench({ kind: 'profile', profile: 'ci' }, {});
    expect(await error(cloud.zones('g5.xlarge', never))).toMatchObject({
      code: 'E_CLOUD_CREDENTIAL',
      message: expect.stringContaining('no profile "ci"'),
    });
  });
});

describe('other ways to sign in', () => {
  it('are the usual variables, before the profile "default"', async () => {
    const { id, secret, session } = temporary;
    const variables = { AWS_ACCESS_KEY_ID: id, AWS_SECRET_ACCESS_KEY: secret, AWS_SESSION_TOKEN: session };
    const one = bench({ kind: 'usual' }, { variables, shared: keysInFile('default', { ...testKey, secret: 'wrong' }) });
    expect((await one.list()).unknown).toEqual([]);
    const two = bench({ kind: 'usual' }, { shared: keysInFile('default', testKey) });
    expect((await two.list()).unknown).toEqual([]);
    const three = bench({ kind: 'usual' }, { variables: { AWS_PROFILE: 'ci' }, shared: keysInFile('ci', testKey) });
    expect((await three.list()).unknown).toEqual([]);
  });

  it('are keys by reference', async () => {
    const reference = (variable: string) => ({ kind: 'env', variable, expires: null }) as const;
    const source = { kind: 'keys', id: temporary.id, secret: reference('S'), session: reference('T') } as const;
    const { list, cloud } = bench(source, { variables: { S: temporary.secret, T: temporary.session } });
    expect((await list()).unknown).toEqual([]);
    expect(cloud.credential).toContain(`access key ${temporary.id}`);
    const lacks = bench(source, { variables: { S: temporary.secret } });
    await expect(lacks.cloud.zones('g5.xlarge', lacks.never)).rejects.toMatchObject({ code: 'E_SECRET' });
  });

  it('are a program, which is asked again when AWS refuses what it printed', async () => {
    let secret = 'old';
    const { list, ran } = bench(
      { kind: 'command', command: ['sign-in', 'x'] },
      { prints: () => printed({ SecretAccessKey: secret }) },
    );
    expect((await list()).unknown).toHaveLength(6);
    secret = temporary.secret;
    expect((await list()).unknown).toEqual([]);
    await list();
    expect(ran).toEqual(['sign-in x', 'sign-in x']);
  });

  it.each(['', '{}', 'not JSON', '{"Version":2,"AccessKeyId":"a","SecretAccessKey":"b"}'])(
    'do not work with a program that prints %j',
    async (text) => {
      const { cloud, error, never } = bench({ kind: 'command', command: ['sign-in'] }, { prints: () => text });
      const found = await error(cloud.zones('g5.xlarge', never));
      const message = expect.stringContaining('"sign-in"');
      expect(found).toMatchObject({ code: 'E_CLOUD_CREDENTIAL', retry: false, message });
    },
  );

  it('are the role of the machine, by IMDSv2', async () => {
    const asked: string[] = [];
    const { aws, clock } = bench({ kind: 'metadata' }, {});
    const metadata: typeof fetch = async (input, init) => {
      const url = new URL(String(input));
      if (url.hostname !== '169.254.169.254') return aws.fetch(input, init);
      asked.push(`${init?.method} ${url.pathname}`);
      const headers = new Headers(init?.headers);
      if (init?.method === 'PUT')
        return new Response(headers.has('X-aws-ec2-metadata-token-ttl-seconds') ? 'token' : '', { status: 200 });
      if (headers.get('X-aws-ec2-metadata-token') !== 'token') return new Response('', { status: 401 });
      if (url.pathname.endsWith('/')) return new Response('ci-role');
      const { id: AccessKeyId, secret: SecretAccessKey, session: Token } = temporary;
      const Expiration = new Date(clock.wall() + 3_600_000).toISOString();
      return Response.json({ Code: 'Success', AccessKeyId, SecretAccessKey, Token, Expiration });
    };
    const on = awsBench({ config: { credentials: { kind: 'metadata' } }, parts: { fetch: metadata } });
    expect((await on.list()).unknown).toEqual([]);
    expect(asked).toEqual([
      'PUT /latest/api/token',
      'GET /latest/meta-data/iam/security-credentials/',
      'GET /latest/meta-data/iam/security-credentials/ci-role',
    ]);
  });
});

it.each([
  [404, false],
  [403, false],
  [503, true],
])('a metadata service that answers %i: another try may help: %s', async (status, retry) => {
  const metadata: typeof fetch = async () => new Response('', { status });
  const { cloud, error, never } = awsBench({ config: { credentials: { kind: 'metadata' } }, parts: { fetch: metadata } });
  expect(await error(cloud.zones('g5.xlarge', never))).toMatchObject({ code: 'E_CLOUD_CREDENTIAL', retry });
});

it('a call that is aborted does not fail another that waits for the same credential', async () => {
  const first = new AbortController();
  const held = Promise.withResolvers<void>();
  let runs = 0;
  const { cloud, never } = awsBench({
    keys: [temporary],
    config: { credentials: { kind: 'command', command: ['sign-in'] } },
    parts: {
      run: async () => {
        runs += 1;
        await held.promise;
        return { code: 0, error: null, stdout: Buffer.from(printed()), stderr: '' };
      },
    },
  });
  const one = cloud.zones('g5.xlarge', first.signal);
  const two = cloud.zones('g5.xlarge', never);
  first.abort(new Error('no longer needed'));
  held.resolve();
  await expect(one).rejects.toThrow('no longer needed');
  expect(await two).toContain('us-west-2a');
  expect(runs).toBe(1);
});

it.each([
  ['/bin/x a  b', ['/bin/x', 'a', 'b']],
  [`x "a b" 'c "d"' e`, ['x', 'a b', 'c "d"', 'e']],
  ['x "a \\"b\\"" --k="v w"', ['x', 'a "b"', '--k=v w']],
])('the words of %s', (text, words) => {
  expect(wordsOf(text)).toEqual(words);
});
