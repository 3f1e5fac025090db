import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, owner, patient } from '../../../test/kit/azure-cloud.ts';
import { client, clientSecret, subscription } from '../../../test/standins/azure-cloud/azure-cloud.ts';
import type { Ended } from '../../system/run.ts';
import type { CloudParts } from '../kit/caller.ts';

const scope = { places: [], everywhere: false };
const logins = (one: ReturnType<typeof azureWorld>) => one.azure.calls.filter((call) => call.includes('/oauth2/'));
const ended = (stdout: string, more: Partial<Ended> = {}): Ended => ({
  code: 0,
  error: null,
  stdout: Buffer.from(stdout),
  stderr: '',
  ...more,
});

/** A world whose credential is a program; `print` is told how often it ran. */
function withProgram(
  print: (azure: ReturnType<typeof azureWorld>['azure'], nth: number) => Ended,
  command: readonly string[] | null = null,
) {
  const asked: string[][] = [];
  const runs: CloudParts['run'] = async (program, args) => {
    asked.push([program, ...args]);
    return print(one.azure, asked.length);
  };
  const one = azureWorld({ config: { credentials: { kind: 'command', command } }, run: runs });
  return { ...one, asked, list: () => one.settled(one.cloud.list(owner, scope, patient)) };
}

describe('an Entra application', () => {
  it('has one token for many calls, and renews it early', async () => {
    const one = azureWorld();
    const list = () => one.settled(one.cloud.list(owner, scope, patient));
    expect((await list()).unknown).toEqual([]);
    await list();
    expect([logins(one).length, one.cloud.credential]).toEqual([1, `Entra application ${client}`]);
    one.clock.advance(3_300_000);
    await list();
    expect(logins(one).length).toBe(2);
  });

  it('that Entra does not accept', async () => {
    const one = azureWorld();
    one.azure.lock();
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous, error.retry]).toEqual(['E_CLOUD_CREDENTIAL', false, false]);
    expect(error.message).toContain('AADSTS7000215');
  });

  it('whose authority is away', async () => {
    const one = azureWorld();
    one.azure.fail({ at: /oauth2/, how: 'lost' });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous, one.world.groups.size]).toEqual(['E_CLOUD_UNREACHABLE', false, 0]);
    expect((await one.settled(one.cloud.list(owner, scope, patient))).unknown).toEqual([]);
  });

  it('neither its secret nor its token is in an error', async () => {
    const one = azureWorld();
    const seen: string[] = [];
    for (const at of [/oauth2/, /resourceGroups/, /virtualMachines/])
      for (const how of [
        'lost',
        'silent',
        { status: 500, code: 'Oops', message: `no ${clientSecret}` },
        { status: 401, code: 'Bad' },
      ] as const) {
        one.azure.fail({ at, how });
        const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient))).catch(() => null);
        seen.push(inspect(error, { depth: 9, showHidden: true }));
        // A secret that Entra refused is held back.
        one.clock.advance(600_001);
      }
    expect(seen.join()).toContain('E_CLOUD_');
    const tokens = one.azure.sent.flatMap((text) => /authorization: Bearer (\S+)/.exec(text)?.[1] ?? []);
    expect(tokens.length).toBeGreaterThan(0);
    for (const secret of [clientSecret, encodeURIComponent(clientSecret), ...tokens]) expect(seen.join()).not.toContain(secret);
  });
});

describe('a program', () => {
  it('is az, for the audience and the subscription', async () => {
    const one = withProgram((azure) =>
      ended(JSON.stringify({ accessToken: azure.token(), expiresOn: '2030-01-01 02:00:00', tokenType: 'Bearer' })),
    );
    expect((await one.list()).unknown).toEqual([]);
    expect([one.asked, one.cloud.credential]).toEqual([
      [
        [
          'az',
          'account',
          'get-access-token',
          '--resource',
          'https://management.azure.com',
          '--subscription',
          subscription,
          '--output',
          'json',
        ],
      ],
      'program az',
    ]);
  });

  it('or any other, which may print the token alone; its own end tells how long it is good', async () => {
    const one = withProgram((azure) => ended(`${azure.token(1200)}\n`), ['/usr/local/bin/token', '--for', 'ci']);
    await one.list();
    one.clock.advance(890_000);
    await one.list();
    expect(one.asked).toEqual([['/usr/local/bin/token', '--for', 'ci']]);
    one.clock.advance(20_000);
    await one.list();
    expect(one.asked.length).toBe(2);
  });

  it('runs again when Azure refuses its token', async () => {
    const one = withProgram((azure) => ended(azure.token()));
    await one.list();
    one.azure.expireTokens();
    const first = await one.list().catch(() => null);
    expect([first?.unknown.length ?? 0, (await one.list()).unknown]).toEqual([1, []]);
  });

  it.each([
    [ended('', { code: 'ENOENT', error: new Error('x') as never }), 'it is not installed'],
    [ended('', { code: 1, error: new Error('x') as never, stderr: 'a\nPlease run az login' }), 'Please run az login'],
    [ended('{"error": "s3cret-of-the-output"}'), 'neither a token nor JSON'],
    [ended('short'), 'neither a token nor JSON'],
    [ended('two words of more than sixteen'), 'neither a token nor JSON'],
  ])('that does not work: %#', async (print, why) => {
    const one = withProgram(() => print);
    const error = await cloudErrorOf(one.list());
    expect([error.code, error.retry, error.message]).toEqual(['E_CLOUD_CREDENTIAL', false, expect.stringContaining(why)]);
    expect(error.message + error.hint).not.toContain('s3cret');
  });
});

it('a program whose next token is refused, too: no other try helps', async () => {
  const one = withProgram((_, nth) => ended(`a-token-of-somebody-else-${nth}`));
  const error = await cloudErrorOf(one.list());
  expect([error.code, error.retry, error.hint]).toEqual(['E_CLOUD_CREDENTIAL', false, expect.stringContaining('tenant')]);
});

describe('a managed identity', () => {
  it('is asked for at the metadata service', async () => {
    const one = azureWorld({ config: { credentials: { kind: 'metadata', client } } });
    expect((await one.settled(one.cloud.list(owner, scope, patient))).unknown).toEqual([]);
    expect([one.azure.sent[0], one.cloud.credential]).toEqual([
      expect.stringContaining(`client_id=${client}`),
      `managed identity ${client}`,
    ]);
  });

  it('that the machine does not have', async () => {
    const one = azureWorld({ config: { credentials: { kind: 'metadata', client: null } } });
    one.azure.fail({ at: /identity/, how: { status: 400, code: 'invalid_request' }, times: 9 });
    const error = await cloudErrorOf(one.settled(one.cloud.list(owner, scope, patient)));
    expect([error.code, error.hint]).toEqual(['E_CLOUD_CREDENTIAL', expect.stringContaining('managed identity')]);
  });

  it('outside of Azure', async () => {
    const one = azureWorld({ config: { credentials: { kind: 'metadata', client: null } } });
    one.azure.fail({ at: /identity/, how: 'reset' });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous]).toEqual(['E_CLOUD_UNREACHABLE', false]);
  });
});
