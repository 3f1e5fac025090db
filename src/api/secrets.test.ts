/** Requests about pins that the API refuses; valid ones are in `src/cli/secret-pins.test.ts`. */
import http from 'node:http';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkAnswer } from '../../test/support/answers.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createSecretPins } from '../manager/services/secret-pins.ts';
import { openStore, type Store } from '../store/store.ts';
import { type ApiServer, startApi } from './server.ts';

const fingerprint = 'a'.repeat(32);
let dir: Scratch;
let store: Store;
let server: ApiServer;
let path: string;
beforeEach(async () => {
  dir = scratch();
  path = join(dir.path, 'onejob.sock');
  store = openStore(join(dir.path, 'state'));
  const secrets = createSecretPins({ store, clock: { wall: () => 7 } });
  server = await startApi({
    onAnswer: checkAnswer,
    manager: createFakeManager(),
    secrets,
    socket: { path, access: 'owner' },
    version: '1.0.0',
  });
});
afterEach(async () => {
  await server.close();
  store.close();
  dir[Symbol.dispose]();
});

function post(target: string, body: unknown): Promise<{ status: number; body: unknown }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; body: unknown }>();
  const headers = { 'content-type': 'application/json' };
  const request = http.request({ socketPath: path, method: 'POST', path: target, headers }, async (response) =>
    resolve({ status: response.statusCode ?? 0, body: await json(response) }),
  );
  request.on('error', reject);
  request.end(JSON.stringify(body));
  return promise;
}

test('a pin is answered as it is now', async () => {
  expect(await post(`/v1/secret-pins/${fingerprint}/allow`, { pipelines: ['acme/solver'] })).toEqual({
    status: 200,
    body: { fingerprint, name: null, pipelines: [{ pipeline: 'acme/solver', origin: 'allowed', at: 7 }] },
  });
  expect(await post(`/v1/secret-pins/${fingerprint}/forget`, {})).toEqual({ status: 200, body: { fingerprint, forgotten: 1 } });
});

test('the last pin is taken with all of them only', async () => {
  await post(`/v1/secret-pins/${fingerprint}/allow`, { pipelines: ['acme/solver'] });
  expect(await post(`/v1/secret-pins/${fingerprint}/forget`, { pipeline: 'acme/solver' })).toMatchObject({
    status: 409,
    body: { code: 'E_SECRET_LAST' },
  });
  expect(await post(`/v1/secret-pins/${fingerprint}/forget`, {})).toEqual({ status: 200, body: { fingerprint, forgotten: 1 } });
});

test.each([
  ['no fingerprint', '/v1/secret-pins/xyz/allow', { pipelines: ['a/b'] }, 400, 'E_API_REQUEST'],
  ['too short a beginning', '/v1/secret-pins/aaaaaaa/allow', { pipelines: ['a/b'] }, 400, 'E_API_REQUEST'],
  ['the beginning of none', '/v1/secret-pins/aaaaaaaa/allow', { pipelines: ['a/b'] }, 404, 'E_SECRET_UNKNOWN'],
  ['no pipeline', `/v1/secret-pins/${fingerprint}/allow`, { pipelines: [] }, 400, 'E_API_REQUEST'],
  ['a pipeline without organisation', `/v1/secret-pins/${fingerprint}/allow`, { pipelines: ['solver'] }, 400, 'E_API_REQUEST'],
  ['something unknown', `/v1/secret-pins/${fingerprint}/allow`, { pipelines: ['a/b'], more: 1 }, 400, 'E_API_REQUEST'],
  ['another act', `/v1/secret-pins/${fingerprint}/open`, {}, 404, 'E_API_ROUTE'],
] as const)('%s is refused', async (_name, target, body, status, code) => {
  expect(await post(target, body)).toMatchObject({ status, body: { code } });
  expect(store.secretPins.all()).toEqual([]);
});
