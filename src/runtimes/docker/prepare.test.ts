/** Making a sandbox with an Engine whose failures a real one cannot produce at the right moment. */
import { expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { OnejobError } from '../../base/errors.ts';
import { Images } from '../engine/image.ts';
import { Containers } from './containers.ts';
import { noGrant } from './grants.ts';
import { createPrepare } from './prepare.ts';

const never = new AbortController().signal;
const quiet = () => {};
/** A body, or a status with what the Engine says of it. */
type Reply = () => object | { readonly status: number; readonly message: string };
const done = { status: 204, message: '' };

/** An Engine with one image whose user is root; `replies` by method and path say otherwise. */
async function over(
  replies: Readonly<Record<string, Reply>>,
  verify: (id: string) => void = quiet,
  engineStart: () => string | null = () => null,
) {
  const asked: string[] = [];
  const usual: Readonly<Record<string, Reply>> = {
    [`GET /images/${recipe.image}/json`]: () => ({ Id: 'sha256:i', Config: { User: '' } }),
    'GET /version': () => ({}),
    'POST /containers/create': () => ({ Id: 'c1' }),
    'POST /containers/c1/start': () => done,
    'GET /containers/json': () => [],
    'DELETE /containers/c1': () => done,
  };
  const fake = fakeEngine('prepare', (path, { method }, reply) => {
    const call = `${method} ${path}`;
    asked.push(call);
    const answer = (replies[call] ?? usual[call] ?? (() => ({ status: 404, message: 'no' })))();
    if (!('status' in answer)) return reply.end(JSON.stringify(answer));
    return reply.writeHead(answer.status).end(answer === done ? undefined : JSON.stringify(answer));
  });
  const engine = await fake.connect();
  const containers = new Containers(engine, 'me', quiet);
  const networks: string[] = [];
  const prepare = createPrepare({
    engine,
    owner: 'me',
    boot: null,
    log: { maxSize: 2 ** 20, maxFile: 2 },
    containers,
    images: new Images(engine, '/nowhere', () => 0),
    networks: {
      resolve: async (network) => {
        networks.push(network);
        return network;
      },
      forget: () => void networks.push('forgotten'),
    },
    devices: { grant: async () => noGrant, retreat: () => false, verify: async (_, id) => verify(id) },
    exits: { engineStart: async () => engineStart(), sawAlive: () => {} },
    givers: { give: async () => {} },
  });
  return {
    prepare,
    containers,
    asked,
    networks,
    count: (call: string) => asked.filter((one) => one === call).length,
    [Symbol.asyncDispose]: fake.stop,
  };
}

test('a sandbox that is aborted while the Engine creates it is removed, and never started', async () => {
  const abort = new AbortController();
  await using here = await over({
    'POST /containers/create': () => {
      abort.abort(new Error('not wanted'));
      return { Id: 'c1' };
    },
  });
  await expect(here.prepare(specOf(recipe), quiet, abort.signal)).rejects.toThrow('not wanted');
  expect(here.asked.slice(-2)).toEqual(['POST /containers/create', 'DELETE /containers/c1']);
});

test('an Engine that is restarted between the making of a sandbox and its start: the sandbox is removed', async () => {
  const starts = ['one', 'two', 'two', 'two'];
  await using here = await over({}, quiet, () => starts.shift() ?? null);
  const restarted = { code: 'E_ENGINE_FAILED', retry: true, message: expect.stringContaining('was restarted meanwhile') };
  await expect(here.prepare(specOf(recipe), quiet, never)).rejects.toMatchObject(restarted);
  expect(here.asked.slice(-2)).toEqual(['POST /containers/c1/start', 'DELETE /containers/c1']);
  await here.prepare(specOf(recipe), quiet, never);
  expect(here.count('DELETE /containers/c1')).toBe(1);
});

/** An Engine that has a container of an earlier attempt, made at that start of it. */
function withEarlier(spec: ReturnType<typeof specOf>, start: string) {
  const Labels = { 'onejob.owner': 'me', 'onejob.agent': spec.agent, 'onejob.engine': start };
  const State = { Status: 'created', Running: false, ExitCode: 0, FinishedAt: '', OOMKilled: false, Pid: 0 };
  return {
    'POST /containers/create': () => ({ status: 409, message: 'in use' }),
    'GET /containers/json': () => [{ Id: 'c1', State: 'created', Labels }],
    'GET /containers/c1/json': () => ({ Id: 'c1', Name: '/c', Image: 'sha256:i', State, Config: { User: '', Labels } }),
  };
}

test('one of an Engine that tells no start, as Podman, is continued', async () => {
  const spec = specOf(recipe);
  await using here = await over(withEarlier(spec, ''), quiet, () => 'network');
  await here.prepare(spec, quiet, never);
  expect(here.count('DELETE /containers/c1')).toBe(0);
});

test('one that an earlier attempt made before the restart is removed, too', async () => {
  const spec = specOf(recipe);
  await using here = await over(withEarlier(spec, 'one'), quiet, () => 'two');
  await expect(here.prepare(spec, quiet, never)).rejects.toMatchObject({ code: 'E_ENGINE_FAILED' });
  expect(here.asked.at(-1)).toBe('DELETE /containers/c1');
});

test('its image is told before it exists, since it may end at once', async () => {
  const refused = { status: 400, message: 'unable to find user nobody' };
  await using here = await over({ 'POST /containers/create': () => refused });
  const told: (readonly [string | undefined, boolean])[] = [];
  const made = await here
    .prepare(specOf(recipe), quiet, never, ({ imageId }) => told.push([imageId, here.asked.includes('POST /containers/create')]))
    .catch(({ code }: OnejobError) => code);
  expect([made, told]).toEqual(['E_USER_UNKNOWN', [['sha256:i', false]]]);
});

test('a sandbox with foreign devices is removed before it is reported', async () => {
  const others = new OnejobError('E_DEVICES_GRANTED', 'It holds GPU-9.');
  await using here = await over({}, () => {
    throw others;
  });
  const spec = specOf(recipe);
  await expect(here.prepare(spec, quiet, never)).rejects.toBe(others);
  expect(here.asked.at(-1)).toBe('DELETE /containers/c1');
  expect(here.containers.recall(spec.agent)).toBeNull();
});

const lost = { status: 404, message: 'network onejob-me not found' };

test('a missing network is looked up again', async () => {
  let tries = 0;
  await using here = await over({ 'POST /containers/c1/start': () => (++tries === 1 ? lost : done) });
  const made = await here.prepare(specOf(recipe), quiet, never);
  expect(made.fingerprint).toMatch(/^[0-9a-f]{32}$/);
  expect(here.networks).toEqual(['none', 'forgotten', 'none']);
  expect([here.count('POST /containers/create'), here.count('DELETE /containers/c1')]).toEqual([2, 1]);
});

test('but only once', async () => {
  await using here = await over({ 'POST /containers/c1/start': () => lost });
  await expect(here.prepare(specOf(recipe), quiet, never)).rejects.toMatchObject({ code: 'E_NETWORK_NOT_FOUND' });
  expect(here.count('POST /containers/create')).toBe(2);
});

test('the result of an earlier attempt is used', async () => {
  const spec = specOf(recipe);
  await using here = await over({
    'POST /containers/create': () => ({ status: 409, message: 'the name is in use' }),
    'GET /containers/json': () => [{ Id: 'c1', State: 'created', Labels: { 'onejob.owner': 'me', 'onejob.agent': spec.agent } }],
  });
  await here.prepare(spec, quiet, never);
  expect(here.containers.recall(spec.agent)).toBe('c1');
  expect(here.asked.at(-1)).toBe('POST /containers/c1/start');
});
