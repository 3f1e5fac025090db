/** Each kind of call on bad days: it is bounded, its error says what was tried, where and what came back, and has no token in it. */
import { inspect } from 'node:util';
import { expect, test } from 'vitest';
import { fakeKubernetes, token, toldClock } from '../../../test/kit/fake-kubernetes.ts';
import { KubeClient } from './client.ts';

async function calling() {
  const api = await fakeKubernetes();
  const clock = toldClock();
  const client = new KubeClient(api.access, clock);
  const at = `the Kubernetes API at ${api.access.server.origin} (from test)`;
  const { signal } = new AbortController();
  const kinds = {
    ask: ['get', () => client.ask({ path: client.path('pods', 'p'), doing: 'try it', signal })],
    flow: [
      'follow',
      () => client.flow({ path: client.path('pods', 'p', 'log'), query: { follow: true }, doing: 'try it', signal }),
    ],
    socket: ['exec', () => client.socket({ path: client.path('pods', 'p', 'exec'), doing: 'try it', signal })],
  } as const;
  return {
    api,
    clock,
    at,
    client,
    kinds,
    async [Symbol.asyncDispose]() {
      client.close();
      await api[Symbol.asyncDispose]();
    },
  };
}

const kinds = ['ask', 'flow', 'socket'] as const;

test.each(kinds)('%s: a refusal', async (kind) => {
  await using here = await calling();
  const [what, call] = here.kinds[kind];
  const hints = {
    401: 'Renew the credentials of the kubeconfig.',
    403: 'Give it the rights of docs/runtimes/kubernetes.md#rights.',
  };
  for (const [status, code, retry] of [
    [400, 'E_RECIPE', false],
    [401, 'E_ENGINE_PERMISSION', true],
    [403, 'E_ENGINE_PERMISSION', true],
    [404, 'E_ENGINE_FAILED', false],
    [409, 'E_ENGINE_FAILED', true],
    [410, 'E_ENGINE_FAILED', false],
    [422, 'E_RECIPE', false],
    [429, 'E_ENGINE_FAILED', true],
    [500, 'E_ENGINE_FAILED', true],
    [503, 'E_ENGINE_FAILED', true],
  ] as const) {
    here.api.answer(what, { status, message: 'the reason.' });
    const error = await call().catch((failed: unknown) => failed);
    expect(error).toMatchObject({ code, retry, message: `Cannot try it: ${here.at} answered ${status}: the reason.` });
    if (status === 401 || status === 403) expect(error).toMatchObject({ hint: hints[status] });
    expect(inspect(error, { depth: 9 })).not.toContain(token);
  }
});

test.each(kinds)('%s: an API below a path, as Rancher has it', async (kind) => {
  await using here = await calling();
  const [what, call] = here.kinds[kind];
  Object.assign(here.api.access, { server: new URL('/k8s/clusters/c-1', here.api.access.server) });
  here.api.answer(what, { status: 404 });
  await expect(call()).rejects.toMatchObject({ code: 'E_ENGINE_FAILED' });
  expect(here.api.calls[0]?.url.pathname).toMatch(/^\/k8s\/clusters\/c-1\/api\/v1\/namespaces\/ci\/pods\/p/);
});

test.each(kinds)('%s: credentials that were refused are asked for anew, once', async (kind) => {
  await using here = await calling();
  const [what, call] = here.kinds[kind];
  const asked: unknown[] = [];
  Object.assign(here.api.access, { token: async (isRefused: unknown) => `token-${asked.push(isRefused)}` });
  here.api.answer(what, { status: 401 }, { status: 503 }, { status: 503 });
  for (let n = 0; n < 3; n += 1) await expect(call()).rejects.toThrow();
  expect(asked).toEqual([false, true, false]);
});

test.each(kinds)('%s: silence is given up after 30 s', async (kind) => {
  await using here = await calling();
  const [what, call] = here.kinds[kind];
  here.api.answer(what, 'silent');
  const failed = call().catch((error: unknown) => error);
  await here.api.called(what);
  await here.clock.pass(30_000);
  const error = await failed;
  expect(error).toMatchObject({
    code: 'E_ENGINE_UNREACHABLE',
    retry: true,
    message: `Cannot try it with ${here.at}: it did not answer within 30 s.`,
    hint: 'Check whether "kubectl cluster-info" answers.',
  });
  expect(inspect(error, { depth: 9 })).not.toContain(token);
});

test.each(kinds)('%s: a connection that dies', async (kind) => {
  await using here = await calling();
  const [what, call] = here.kinds[kind];
  here.api.answer(what, 'cut');
  const error = await call().catch((failed: unknown) => failed);
  expect(error).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
  expect(`${error}`).toMatch(/: Cannot try it with .+: (other side closed|socket hang up|read ECONNRESET)\.$/);
  expect(inspect(error, { depth: 9 })).not.toContain(token);
});

test.each(kinds)('%s: nothing listens there', async (kind) => {
  await using here = await calling();
  await here.api[Symbol.asyncDispose]();
  await expect(here.kinds[kind][1]()).rejects.toThrow(`Cannot try it with ${here.at}: nothing listens there.`);
});

test('a proxy that refuses streams', async () => {
  await using here = await calling();
  here.api.answer('exec', { status: 400, body: '<html>no upgrade here</html>' });
  await expect(here.kinds.socket[1]()).rejects.toThrow(`answered 400: <html>no upgrade here</html>.`);
});

test('an answer that is cut in the middle', async () => {
  await using here = await calling();
  here.api.answer('get', ({ reply }) => {
    reply.writeHead(200, { 'content-length': '1000' });
    reply.write('{"half":', () => reply.destroy());
  });
  await expect(here.kinds.ask[1]()).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
});
