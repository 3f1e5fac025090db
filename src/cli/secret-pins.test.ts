/** `onejob secret pins`, `allow` and `forget` against a store behind a real API. */
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ageKey, rsaKey } from '../../test/kit/secrets.ts';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { createSecretPins } from '../manager/services/secret-pins.ts';
import { createPinStore, type PinStore } from '../secrets/job-secrets.ts';
import { secretFingerprint } from '../secrets/open.ts';
import { seal } from '../secrets/sealed-format.ts';
import { encryptSeed } from '../secrets/seed-format.ts';
import { openStore, type Store } from '../store/store.ts';
import { readVersion } from './session.ts';

const value = await encryptSeed(rsaKey().publicPem, 'hunter2');
const fingerprint = secretFingerprint(value);
const other = '0'.repeat(32);

let dir: Scratch;
let store: Store;
let server: ApiServer;
let book: PinStore;
beforeEach(async () => {
  dir = scratch();
  store = openStore(join(dir.path, 'state'));
  const clock = { wall: () => new Date(2026, 10, 20, 12).getTime() };
  book = createPinStore(store, clock);
  const socket = { path: join(dir.path, 'onejob.sock'), access: 'owner' } as const;
  server = await startApi({
    manager: createFakeManager(),
    secrets: createSecretPins({ store, clock }),
    socket,
    version: readVersion(),
  });
});
afterEach(async () => {
  await server.close();
  store.close();
  dir[Symbol.dispose]();
});

async function secret(input: string, ...args: string[]) {
  const stdin = new PassThrough();
  stdin.end(input);
  const { context, stdout, stderr } = testContext(['secret', ...args], dir.path, { stdin: () => stdin });
  const code = await runCli(context);
  return { code, stdout: stdout(), stderr: stderr() };
}

test('what the first use pinned is listed, and more pipelines are allowed at once', async () => {
  expect(await secret('', 'pins')).toEqual({
    code: 0,
    stdout: '',
    stderr: 'onejob: no value in the old format has been used yet\n',
  });
  expect(await book.first(fingerprint, 'acme/solver', 'TOKEN')).toEqual(['acme/solver']);
  expect(await book.first(fingerprint, 'evil/solver', 'TOKEN')).toEqual(['acme/solver']);
  expect(await secret('', 'allow', '--pipeline', 'acme/docs', fingerprint.slice(0, 8))).toMatchObject({
    code: 0,
    stdout: `${fingerprint} may be used by acme/docs and acme/solver.\n`,
  });
  expect(await book.of(fingerprint)).toContain('acme/docs');
  const { stdout } = await secret('', 'pins');
  expect(stdout.split('\n')[0]).toBe(`${fingerprint}  SECRET_TOKEN`);
  expect(stdout).toMatch(/\n {2}acme\/solver {2}used it first, .*\n/);
  expect(stdout).toMatch(/\n {2}acme\/docs {2}was allowed, .*\n/);
  expect(JSON.parse((await secret('', 'pins', '--json')).stdout)).toMatchObject({ fingerprint, name: 'TOKEN' });
});

test('a value can be given to its owner before any job uses it', async () => {
  const said = await secret(`"${value}"\n`, 'allow', '--value-from-stdin', '--organization', 'acme', '--pipeline', '*');
  expect(said).toEqual({ code: 0, stdout: `${fingerprint} may be used by acme/*.\n`, stderr: '' });
  expect(await book.first(fingerprint, 'evil/solver', 'TOKEN')).toEqual(['acme/*']);
});

test('forgets one pipeline of a value, or all', async () => {
  await secret('', 'allow', '--pipeline', 'a/b', '--pipeline', 'a/c', fingerprint);
  expect((await secret('', 'forget', '--pipeline', 'a/c', fingerprint)).stdout).toBe(`${fingerprint} is no longer for a/c.\n`);
  expect((await secret('', 'forget', fingerprint)).stdout).toBe(
    `${fingerprint} is forgotten: the next pipeline that uses it becomes its owner.\n`,
  );
  expect((await secret('', 'forget', fingerprint)).stdout).toBe(`${fingerprint} is not pinned to anything.\n`);
  expect(await book.of(fingerprint)).toEqual([]);
});

test('the only pipeline of a value is not taken from it by name: the next to use it could be that one again', async () => {
  await book.first(fingerprint, 'acme/evil', 'TOKEN');
  expect(await secret('', 'forget', '--pipeline', 'acme/evil', fingerprint)).toEqual({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(/no other pipeline may use .*acme\/evil.*\n.*onejob secret allow --pipeline/s),
  });
  expect(await book.of(fingerprint)).toEqual(['acme/evil']);
  expect((await secret('', 'forget', '--pipeline', 'acme/docs', fingerprint)).stdout).toBe(
    `${fingerprint} is not pinned to acme/docs.\n`,
  );
  await secret('', 'allow', '--pipeline', 'acme/solver', fingerprint);
  expect((await secret('', 'forget', '--pipeline', 'acme/evil', fingerprint)).stdout).toBe(
    `${fingerprint} is no longer for acme/evil.\n`,
  );
  expect(await book.first(fingerprint, 'acme/evil', 'TOKEN')).toEqual(['acme/solver']);
});

test('a beginning must belong to a known fingerprint', async () => {
  expect(await secret('', 'allow', '--pipeline', 'a/b', fingerprint.slice(0, 9))).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('No pinned value has a fingerprint that begins with'),
  });
  for (const end of ['1', '2']) await book.first(other.slice(0, 31) + end, 'a/b', 'X');
  expect((await secret('', 'forget', '00000000')).stderr).toContain(
    'Several pinned values have a fingerprint that begins with 00000000.',
  );
});

test('the value is found in a line of the pipeline, too', async () => {
  for (const line of [`SECRET_TOKEN: "${value}"\n`, `env:\n  SECRET_TOKEN: ${value}\n`]) {
    expect(await secret(line, 'allow', '--pipeline', 'acme/docs', '--value-from-stdin')).toMatchObject({
      code: 0,
      stderr: '',
      stdout: `${fingerprint} may be used by acme/docs.\n`,
    });
  }
});

test('refuses invalid combinations', async () => {
  const key = (await ageKey()).key;
  const sealed = await seal(key, { name: 'X', pipelines: ['a/b'], value: 'hunter2' });
  for (const [input, args, text] of [
    ['', ['allow', fingerprint], '--pipeline is missing'],
    ['', ['allow', '--pipeline', 'a/b'], 'The value is missing'],
    ['', ['allow', '--pipeline', 'a/b', 'XYZ'], 'Invalid fingerprint'],
    ['', ['allow', '--pipeline', 'a/b', fingerprint, '--value-from-stdin'], 'exclude each other'],
    ['hunter2', ['allow', '--pipeline', 'a/b', '--value-from-stdin'], 'no encrypted value on standard input'],
    [
      `SECRET_A: "${value}"\nSECRET_B: "${sealed}"`,
      ['allow', '--pipeline', 'a/b', '--value-from-stdin'],
      'There are 2 encrypted values',
    ],
    [`SECRET_A: "${sealed}"`, ['allow', '--pipeline', 'a/b', '--value-from-stdin'], 'itself says which pipelines it is for'],
    [sealed, ['allow', '--pipeline', 'a/b', '--value-from-stdin'], 'itself says which pipelines it is for'],
  ] as const) {
    const said = await secret(input, ...args);
    expect(said).toMatchObject({ code: 2, stdout: '', stderr: expect.stringContaining(text) });
    expect(said.stderr).not.toContain('hunter2');
  }
});

test('reports the beginning of a fingerprint that is too short', async () => {
  expect(await secret('', 'allow', '--pipeline', 'acme/docs', fingerprint.slice(0, 5))).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('A fingerprint needs at least 8 digits; got 5.'),
  });
});
