/** The adapter of a program, with a program in memory. Processes are in `program.test.ts`. */
import { describe, expect, test } from 'vitest';
import { orderOf } from '../../../test/kit/azure-cloud.ts';
import { commandConfig, commandWorld, ended } from '../../../test/kit/command-cloud.ts';
import { planOf } from '../../../test/kit/gcp.ts';
import { type CloudError, type Order, tagKeys } from '../../ports/cloud.ts';
import { strict } from '../../schema/strict.ts';
import { commandKeys } from './schema.ts';
import { command } from './type.ts';

const signal = new AbortController().signal;
const never = { place: 'lab', zone: null, id: 'vm-1' };

const order = ({ cloud, clock }: ReturnType<typeof commandWorld>, more: Partial<Order> = {}): Order =>
  orderOf(cloud, Math.floor(clock.wall() / 1000), { offer: { type: 'gpu-large', spot: false, zone: null }, ...more });

const failure = async (promise: Promise<unknown>): Promise<CloudError> =>
  promise.then(
    () => Promise.reject(new Error('It succeeded.')),
    (error: CloudError) => error,
  );

test('a request says what the page says, and nothing more', async () => {
  const world = commandWorld({
    config: { secrets: { password: { kind: 'env', variable: 'PW', expires: null } } },
    variables: { PW: 'hunter2' },
  });
  const wanted = order(world);
  const made = await world.cloud.create(wanted, signal);
  expect(made).toEqual({ id: `vm-${wanted.run}`, place: 'lab', zone: null });
  expect(world.calls).toEqual([
    {
      version: 1,
      verb: 'create',
      name: wanted.run,
      type: 'gpu-large',
      spot: false,
      image: { from: 'auto', has: 'nothing' },
      disk_gib: 128,
      expires: wanted.expires,
      tags: {
        [tagKeys.owner]: wanted.owner,
        [tagKeys.run]: wanted.run,
        [tagKeys.host]: wanted.host,
        [tagKeys.born]: String(wanted.born),
        [tagKeys.expires]: String(wanted.expires),
      },
      user_data: wanted.userData,
      options: { remote: 'lab' },
      secrets: { password: 'hunter2' },
    },
  ]);
});

test('a second create of the same name makes no second machine', async () => {
  const world = commandWorld();
  const wanted = order(world);
  expect(await world.cloud.create(wanted, signal)).toEqual(await world.cloud.create(wanted, signal));
  expect((await world.cloud.list(wanted.owner, { places: [], everywhere: true }, signal)).things).toHaveLength(1);
});

describe('the end', () => {
  test('is what the program confirms', async () => {
    const world = commandWorld();
    const wanted = order(world);
    expect(await world.cloud.setEnd(wanted, await world.cloud.create(wanted, signal), signal)).toBe(
      `/etc/onejob/provider ends it at ${new Date(wanted.expires * 1000).toISOString()}`,
    );
  });

  test.each([
    ['later', '{"ends": 99999999999}', 'E_CLOUD_END'],
    ['a duration', '{"ends": 21600}', 'E_CLOUD_END'],
    ['missing', '{}', 'E_CLOUD_ANSWER'],
  ])('that is %s does not count', async (_, text, code) => {
    const world = commandWorld({ instead: () => ended(0, text) });
    expect((await failure(world.cloud.setEnd(order(world), never, signal))).code).toBe(code);
  });

  test('with "manager-only" is not asked for', async () => {
    const world = commandWorld({ config: { deathDate: 'manager-only' } });
    expect(await world.cloud.setEnd(order(world), never, signal)).toContain('onejob alone');
    expect(world.calls).toEqual([]);
  });
});

describe('a list', () => {
  const listed = (answer: unknown) => {
    const { cloud } = commandWorld({ instead: () => ended(0, JSON.stringify(answer)) });
    return cloud.list('lab-1', { places: [], everywhere: true }, signal);
  };
  const ours = { id: 'a', state: 'running', tags: { [tagKeys.owner]: 'lab-1' } };

  test('leaves out what has another owner, and takes what it cannot read for unknown', async () => {
    const strange = [{ ...ours, id: 'b', tags: { [tagKeys.owner]: 'lab-2' } }, { ...ours, id: '\u0007' }, { id: 'c' }, 7];
    expect(await listed({ things: [ours, ...strange] })).toEqual({
      things: [
        { kind: 'machine', id: 'a', place: 'lab', run: null, host: null, born: null, expires: null, state: 'running', offer: null },
      ],
      unknown: Array(3).fill('an entry that cannot be read'),
    });
  });

  test('says what the program could not list', async () => {
    expect((await listed({ things: [], unknown: ['host b\n(away)'] })).unknown).toEqual(['host b (away)']);
  });

  test.each([
    ['nothing', {}],
    ['a text', 'x'],
    ['null', null],
    ['things of another shape', { things: {} }],
  ])('that is %s does not count as a list', async (_, answer) => {
    const error = await failure(listed(answer));
    expect([error.code, error.retry]).toEqual(['E_CLOUD_ANSWER', true]);
  });
});

describe('a program that fails', () => {
  test.each([
    [64, 'E_CLOUD_REQUEST', false, false],
    [69, 'E_CLOUD_CAPACITY', true, false],
    [73, 'E_CLOUD_QUOTA', false, false],
    [75, 'E_CLOUD_UNREACHABLE', true, false],
    [77, 'E_CLOUD_DENIED', false, false],
    [1, 'E_CLOUD_ANSWER', true, true],
    [255, 'E_CLOUD_ANSWER', true, true],
  ])('with %i says whether something may exist', async (code, kind, retry, isAmbiguous) => {
    const world = commandWorld({ instead: () => ended(code, '', 'first\nNo GPU is free.\n') });
    const error = await failure(world.cloud.create(order(world), signal));
    expect(error).toMatchObject({
      code: kind,
      retry,
      isAmbiguous,
      message: expect.stringMatching(/provider .* It said: No GPU is free\.$/),
    });
  });

  test.each([
    ['garbage', 'hello'],
    ['half of an answer', '{"id": "x'],
    ['no id', '{}'],
    ['an id of two lines', '{"id":"a\\nb"}'],
  ])('to create with %s may have created', async (_, text) => {
    const world = commandWorld({ instead: () => ended(0, text) });
    expect(await failure(world.cloud.create(order(world), signal))).toMatchObject({ code: 'E_CLOUD_ANSWER', isAmbiguous: true });
  });

  test('shows nobody what it was given', async () => {
    const secret = { password: { kind: 'env', variable: 'PW', expires: null } } as const;
    const token = 'Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4';
    const world = commandWorld({
      config: { secrets: secret },
      variables: { PW: 'hunter2' },
      instead: () => ended(1, '', `+ curl -u hunter2 ${token}\n`),
    });
    const { message } = await failure(world.cloud.create(order(world, { userData: `token: ${token}` }), signal));
    expect(message).toMatch(/It said: \+ curl -u \*\*\* \*\*\*\.$/);
  });

  test.each([
    ['in a longer word', (token: string) => `TOKEN=${token}`],
    ['cut off', (token: string) => `"${token.slice(0, 25)}…`],
    ['as JSON', () => JSON.stringify({ password: 'hun"ter\\2' })],
  ])('shows nobody a secret %s', async (_, said) => {
    const token = 'Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4';
    const world = commandWorld({
      config: { secrets: { password: { kind: 'env', variable: 'PW', expires: null } } },
      variables: { PW: 'hun"ter\\2' },
      instead: () => ended(1, '', said(token)),
    });
    const { message } = await failure(world.cloud.create(order(world, { userData: `token: ${token}` }), signal));
    expect(message).toContain('***');
    expect(message).not.toMatch(/Zm9v|ter/);
  });

  test('without its secret is not run', async () => {
    const world = commandWorld({ config: { secrets: { password: { kind: 'env', variable: 'PW', expires: null } } } });
    expect((await failure(world.cloud.console(never, signal))).code).toBe('E_SECRET');
    expect(world.calls).toEqual([]);
  });
});

test('the time of its cloud counts, to the second', async () => {
  const world = commandWorld({
    instead: () => ended(0, JSON.stringify({ things: [], now: Math.floor(Date.UTC(2030, 0, 1, 1) / 1000) })),
  });
  expect(world.cloud.skew()).toBeNull();
  await world.cloud.list('lab-1', { places: [], everywhere: true }, signal);
  expect(world.cloud.skew()).toBe(3_600_000);
});

test('a time in milliseconds is refused: every machine would be over', async () => {
  const world = commandWorld({ instead: () => ended(0, JSON.stringify({ things: [], now: Date.UTC(2030, 0, 1) })) });
  const error = await failure(world.cloud.list('lab-1', { places: [], everywhere: true }, signal));
  expect([error.code, world.cloud.skew()]).toEqual(['E_CLOUD_ANSWER', null]);
});

test('what it finds in a check is shown, with what onejob itself knows', async () => {
  const findings = [{ level: 'error', message: 'There is no image\nx.', hint: 'Import it.' }];
  const { cloud } = commandWorld({ config: { deathDate: 'manager-only' }, instead: () => ended(0, JSON.stringify({ findings })) });
  const plan = { ...planOf('gpu-large', 'never'), image: cloud.usualImage };
  expect(await cloud.preflight(plan, signal)).toMatchObject([
    { level: 'error', subject: 'lab: program', message: 'There is no image x.', hint: 'Import it.' },
    { level: 'warning', subject: 'burst: end of life' },
    { level: 'warning', subject: 'burst: price', message: 'The price of gpu-large is unknown.' },
  ]);
});

test('as the config writes it', () => {
  const keys = strict(commandKeys);
  expect(command.resolve('lab', keys.parse({ program: '/p' }))).toEqual({
    ...commandConfig,
    program: '/p',
    options: {},
    timeout: 120_000,
  });
  const whole = command.resolve(
    'lab',
    keys.parse({
      program: '/p',
      options: { remote: 'lab', size: 3 },
      secrets: { password: { file: '/etc/onejob/pw' } },
      timeout: '5m',
      death_date: 'manager-only',
      shutdown_removes: true,
    }),
  );
  const password = { kind: 'file', path: '/etc/onejob/pw', expires: null };
  expect(whole).toMatchObject({
    options: { remote: 'lab', size: '3' },
    secrets: { password },
    timeout: 300_000,
    shutdownRemoves: true,
  });
  expect(whole === null ? [] : command.secrets(whole)).toEqual([['secrets.password', password]]);
  expect(keys.safeParse({ program: 'provider' }).success).toBe(false);
  expect(keys.safeParse({ program: '/p', secrets: { password: 'hunter2' } }).success).toBe(false);
});
