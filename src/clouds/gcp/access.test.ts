/** How onejob signs in to Google Cloud, against the stand-in's token endpoint, in virtual time. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';
import type { Ended } from '../../system/run.ts';

const anywhere = { places: [], everywhere: false };
const signIns = (requests: readonly { url: URL }[]): number => requests.filter(({ url }) => url.pathname === '/token').length;
const printed = (stdout: string): Ended => ({ code: 0, error: null, stdout: Buffer.from(stdout), stderr: '' });

function fileWith(text: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'onejob-gcp-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, 'key.json'), text, { mode: 0o600 });
  return join(folder, 'key.json');
}

test('a token is asked for once, for all callers, and again shortly before it ends', async () => {
  const { cloud, gcp, done, pass } = await gcpWorld();
  await done(Promise.all([cloud.list('lab-7', anywhere, never), cloud.list('lab-7', anywhere, never)]));
  expect([signIns(gcp.requests), cloud.credential]).toEqual([1, 'service account onejob@acme-ci.iam.gserviceaccount.com']);
  await pass(54 * 60_000);
  await done(cloud.list('lab-7', anywhere, never));
  expect(signIns(gcp.requests)).toBe(1);
  await pass(2 * 60_000);
  await done(cloud.list('lab-7', anywhere, never));
  expect(signIns(gcp.requests)).toBe(2);
});

test('a token that is refused is renewed once, in the middle of a destroy too', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const { id, place } = await done(cloud.create(order(), never));
  gcp.revoke();
  await done(cloud.destroy({ kind: 'machine', id, place }, never));
  await pass(30_000);
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual({ things: [], unknown: [] });
  // When the new one is refused as well, it does not ask for a third.
  const before = signIns(gcp.requests);
  gcp.fail({ path: /aggregated/ }, { status: 401, reason: 'authError' });
  const lists = () => gcp.requests.filter(({ url }) => url.pathname.includes('aggregated')).length;
  const listed = lists();
  const { unknown } = await done(cloud.list('lab-7', anywhere, never));
  expect(unknown).toHaveLength(3);
  expect([signIns(gcp.requests) - before, lists() - listed]).toEqual([1, 6]);
});

test('what Google says of a key it does not know is told, and the key is not', async () => {
  const { gcp, done, another } = await gcpWorld();
  const key = JSON.parse(gcp.keyFile());
  const cloud = await another(
    {},
    { variables: { GCP_KEY: JSON.stringify({ ...key, client_email: 'gone@acme-ci.iam.gserviceaccount.com' }) } },
  );
  const error: unknown = await done(cloud.list('lab-7', anywhere, never)).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({
    code: 'E_CLOUD_CREDENTIAL',
    reason: 'invalid_grant',
    message:
      'Cannot sign in to Google Cloud as gone@acme-ci.iam.gserviceaccount.com: invalid_grant (Invalid JWT: wrong issuer or audience.).',
  });
  expect(JSON.stringify(error) + String(error)).not.toContain(key.private_key.slice(40, 80));
});

test.each([
  ['{}', 'E_CLOUD_CREDENTIAL', 'does not contain the key of a service account'],
  ['{"type":"authorized_user","client_email":"a","private_key":"b"}', 'E_CLOUD_CREDENTIAL', 'does not contain the key'],
  [
    '{"type":"service_account","client_email":"a@b","private_key":"secret-text"}',
    'E_SECRET',
    'The key of a@b does not contain an RSA key in PEM format.',
  ],
  [
    '{"type":"service_account","client_email":"a@b","private_key":"c","token_uri":"http://example.org/token"}',
    'E_CLOUD_CREDENTIAL',
    '"token_uri" in the key of a@b is not an https address',
  ],
])('a key file that contains %s is refused', async (text, code, why) => {
  const { gcp, done, another } = await gcpWorld();
  const cloud = await another({}, { variables: { GCP_KEY: text } });
  await expect(done(cloud.list('lab-7', anywhere, never))).rejects.toMatchObject({ code, message: expect.stringContaining(why) });
  expect(gcp.requests).toEqual([]);
});

test('a token endpoint that fails says nothing about the credential', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  gcp.fail({ path: /^\/token/ }, { status: 503 });
  await expect(done(cloud.list('lab-7', anywhere, never))).rejects.toMatchObject({ code: 'E_CLOUD_UNREACHABLE', retry: true });
});

test('a command prints the token, and runs again after minutes', async () => {
  const { gcp, done, pass, another } = await gcpWorld();
  const ran: string[] = [];
  const cloud = await another(
    { credential: { kind: 'command', command: ['my-token', '--for', 'ci'] } },
    {
      run: async (program, args) => {
        ran.push([program, ...args].join(' '));
        return printed(`${gcp.issue()}\n`);
      },
    },
  );
  await done(cloud.list('lab-7', anywhere, never));
  await pass(5 * 60_000);
  await done(cloud.list('lab-7', anywhere, never));
  expect([ran, cloud.credential]).toEqual([['my-token --for ci', 'my-token --for ci'], 'command my-token']);
});

test('output of a command other than a token is refused, and not shown', async () => {
  const { done, another } = await gcpWorld();
  const credential = { kind: 'command', command: ['my-token'] } as const;
  const cloud = await another({ credential }, { run: async () => printed('first secret\nsecond secret\n') });
  await expect(done(cloud.list('lab-7', anywhere, never))).rejects.toMatchObject({
    code: 'E_CLOUD_CREDENTIAL',
    message: 'Cannot sign in to Google Cloud: "my-token" did not print one access token.',
  });
});

test('the metadata server of the machine that onejob runs on gives a token', async () => {
  const { gcp, done, another } = await gcpWorld();
  const cloud = await another({ credential: { kind: 'metadata' } }, { variables: { GCE_METADATA_HOST: 'localhost:8080' } });
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual({ things: [], unknown: [] });
  expect(cloud.credential).toBe('service account of this machine');
  expect(gcp.requests[0]?.url.href).toBe('http://localhost:8080/computeMetadata/v1/instance/service-accounts/default/token');
  gcp.fail({ path: /computeMetadata/ }, { status: 404 });
  gcp.revoke();
  await expect(done(cloud.list('lab-7', anywhere, never)).then(({ unknown }) => unknown)).resolves.toHaveLength(3);
});

test('as Google does it: the file that GOOGLE_APPLICATION_CREDENTIALS names, else gcloud', async () => {
  const { gcp, done, another } = await gcpWorld();
  const ran: string[] = [];
  const run = async (program: string, args: readonly string[]): Promise<Ended> => {
    ran.push([program, ...args].join(' '));
    return printed(gcp.issue());
  };
  const names: string[] = [];
  for (const text of [null, gcp.keyFile(), '{"type":"external_account"}']) {
    const variables = text === null ? {} : { GOOGLE_APPLICATION_CREDENTIALS: fileWith(text) };
    const cloud = await another({ credential: { kind: 'usual' } }, { variables, run });
    expect(await done(cloud.list('lab-7', anywhere, never))).toEqual({ things: [], unknown: [] });
    names.push(cloud.credential);
  }
  expect(ran).toEqual(['gcloud auth print-access-token', 'gcloud auth application-default print-access-token']);
  expect(names).toEqual([
    'account of gcloud',
    'service account onejob@acme-ci.iam.gserviceaccount.com',
    expect.stringMatching(/^key in file \/.*key\.json$/),
  ]);
});

test('without gcloud, the message says what to install or write', async () => {
  const { done, another } = await gcpWorld();
  const error = Object.assign(new Error('spawn gcloud ENOENT'), { code: 'ENOENT' });
  const cloud = await another(
    { credential: { kind: 'usual' } },
    { variables: {}, run: async () => ({ code: 'ENOENT', error, stdout: Buffer.alloc(0), stderr: '' }) },
  );
  await expect(done(cloud.list('lab-7', anywhere, never))).rejects.toThrow(
    'Cannot get a credential from "gcloud": it is not installed.',
  );
});

test('a caller that gives up does not take the token from the others', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  const stop = new AbortController();
  const one = cloud.list('lab-7', anywhere, stop.signal).catch((error: unknown) => error);
  const other = cloud.list('lab-7', anywhere, never);
  stop.abort(new Error('enough'));
  expect(await done(one)).toMatchObject({ message: 'enough' });
  expect(await done(other)).toEqual({ things: [], unknown: [] });
  expect(signIns(gcp.requests)).toBe(1);
});
