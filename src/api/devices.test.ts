/** Devices in the API: server and client together, over a real socket. */
import http from 'node:http';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkAnswer } from '../../test/support/answers.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { OnejobError } from '../base/errors.ts';
import type { DeviceView } from '../contract/schema.ts';
import { type Client, createClient } from './client.ts';
import { type ApiServer, startApi } from './server.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let client: Client;
let path: string;

const view: DeviceView = {
  uuid: 'MIG-GPU-5eed/7/0',
  kind: 'mig',
  model: 'NVIDIA A100-SXM4-40GB',
  pciId: '0000:01:00.0',
  index: 0,
  memoryMiB: 4_864,
  profile: '1g.5gb',
  parent: 'GPU-5eed',
  state: 'reserved',
  slot: null,
  agents: ['a7'],
  why: 'MIG-GPU-5eed/7/0 is reserved by alice',
  since: 1,
  until: null,
  retryAt: null,
  hint: null,
  use: null,
};

beforeEach(async () => {
  dir = scratch();
  path = join(dir.path, 'onejob.sock');
  manager = createFakeManager();
  manager.deviceViews = [view];
  server = await startApi({ onAnswer: checkAnswer, manager, socket: { path, access: 'owner' }, version: '1.0.0' });
  client = createClient({ socket: path, version: '1.0.0' });
});

afterEach(async () => {
  await manager.end();
  await server.close();
  dir[Symbol.dispose]();
});

/** One request by hand, for what the client would never send. */
function raw(method: string, target: string, body?: unknown): Promise<{ status: number; body: unknown }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; body: unknown }>();
  const headers = body === undefined ? {} : { 'content-type': 'application/json' };
  const request = http.request({ socketPath: path, method, path: target, headers }, async (response) =>
    resolve({ status: response.statusCode ?? 0, body: await json(response) }),
  );
  request.on('error', reject);
  request.end(body === undefined ? undefined : JSON.stringify(body));
  return promise;
}

test('devices come as they are, with all there is to say', async () => {
  expect(await client.devices()).toEqual([view]);
});

describe('their use', () => {
  const sample = (at: number) => ({ memoryUsedMiB: 12, utilization: 99, temperature: 61, powerW: 300.5, at });

  test('comes with the device, and over time since a time', async () => {
    manager.deviceViews = [{ ...view, use: sample(5) }];
    manager.uses.set(view.uuid, [sample(1), sample(2), sample(3)]);
    expect((await client.devices())[0]?.use).toEqual(sample(5));
    const use = (since: number) => client.call('GET /v1/devices/:device/use', { params: { device: view.uuid }, query: { since } });
    expect(await use(0)).toEqual([sample(1), sample(2), sample(3)]);
    expect(await use(2)).toEqual([sample(2), sample(3)]);
  });

  test.each(['since=-1', 'since=now', 'until=1'])('%s is refused', async (query) => {
    expect((await raw('GET', `/v1/devices/0/use?${query}`)).status).toBe(400);
  });
});

describe('changes', () => {
  test('each reaches the device it names, also one with slashes in its name', async () => {
    const name = view.uuid;
    const reserve = { act: 'reserve', for: 4 * 3_600_000, by: 'alice' } as const;
    expect(await client.changeDevice(name, reserve)).toEqual({ uuid: name, changed: true, device: view });
    await client.changeDevice(name, { act: 'return' });
    await client.changeDevice(name, { act: 'quarantine', reason: 'fan' });
    await client.changeDevice(name, { act: 'clear' });
    expect(await client.changeDevice(name, { act: 'forget' })).toEqual({ uuid: name, changed: true, device: null });
    expect(manager.calls).toEqual([
      `reserve ${name} {"act":"reserve","for":14400000,"by":"alice"}`,
      `return ${name} {"act":"return"}`,
      `quarantine ${name} {"act":"quarantine","reason":"fan"}`,
      `clear ${name} {"act":"clear"}`,
      `forget ${name} {"act":"forget"}`,
    ]);
  });

  test('without a time or a name it is for as long as it takes, for nobody in particular', async () => {
    const target = `/v1/devices/${encodeURIComponent(view.uuid)}/reserve`;
    expect((await raw('POST', target)).status).toBe(200);
    expect(manager.calls).toEqual([`reserve ${view.uuid} {"act":"reserve","for":null,"by":null}`]);
  });

  test('what is refused comes with its hint and a status of its own', async () => {
    await expect(client.changeDevice('nope', { act: 'clear' })).rejects.toMatchObject({
      code: 'E_DEVICE_UNKNOWN',
      message: 'There is no device "nope".',
      hint: '"onejob gpus" lists all.',
    });
    expect((await raw('POST', '/v1/devices/nope/clear')).status).toBe(404);
    manager.changeDevice = () => {
      throw new OnejobError('E_DEVICE_IN_USE', 'Cannot forget it.');
    };
    expect((await raw('POST', '/v1/devices/0/forget')).status).toBe(409);
  });

  test.each([
    ['reserve', { for: 0 }, 'for'],
    ['reserve', { for: -1 }, 'for'],
    ['reserve', { for: 1.5 }, 'for'],
    ['reserve', { for: 4e11 }, 'for'],
    ['reserve', { for: '4h' }, 'for'],
    ['reserve', { by: 'x'.repeat(65) }, 'by'],
    ['reserve', { until: 1 }, 'until'],
    ['reserve', [], 'object'],
    ['reserve', 5, 'object'],
    ['quarantine', {}, 'reason'],
    ['quarantine', { reason: '' }, 'reason'],
  ])('%s with %j is refused', async (act, body, field) => {
    expect(await raw('POST', `/v1/devices/0/${act}`, body)).toMatchObject({
      status: 400,
      body: { code: 'E_API_REQUEST', message: expect.stringContaining(field) },
    });
    expect(manager.calls).toEqual([]);
  });
});

describe('proofs', () => {
  const proof = (device: string, at: number) => ({
    device,
    slot: 'lab/1',
    agent: 'a1',
    verdict: 'clean',
    evidence: { checks: [{ check: 'memory', result: 'ok', saw: '0 MiB', before: '0 MiB' }], message: null },
    took: 312,
    at,
  });

  test('come whole, of all devices or of one, as many as asked for', async () => {
    manager.proofViews = [proof('GPU-1', 3), proof('GPU-2', 2), proof('GPU-1', 1)];
    expect(await client.proofs({ limit: 2 })).toEqual([proof('GPU-1', 3), proof('GPU-2', 2)]);
    expect((await client.proofs({ device: 'GPU-1', limit: 9 })).map(({ at }) => at)).toEqual([3, 1]);
  });

  test.each(['limit=0', 'limit=10001', 'limit=many', 'device=', 'slot=lab'])('%s is refused', async (query) => {
    expect((await raw('GET', `/v1/proofs?${query}`)).status).toBe(400);
  });
});

test('an answer that is not understood names the daemon that gave it', async () => {
  await server.close();
  server = await startApi({ manager, socket: { path, access: 'owner' }, version: '1.0.0' });
  manager.devices = () => [{ ...view, state: 'on fire' as never }];
  await expect(client.devices()).rejects.toMatchObject({ code: 'E_API_ANSWER', message: expect.stringContaining('state') });
  const older = createClient({ socket: path, version: '2.0.0' });
  await expect(older.devices()).rejects.toMatchObject({ code: 'E_API_VERSION' });
});
