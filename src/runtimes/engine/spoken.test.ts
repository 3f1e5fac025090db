/** The version of the API that onejob speaks with an Engine, by what the Engine says in its answer to a ping. */
import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import { type FakeOptions, fakeEngine } from '../../../test/kit/fake-engine.ts';
import { probeDocker } from './probe.ts';

const never = new AbortController().signal;
let made = 0;
const old = { code: 'E_ENGINE_VERSION', retry: false } as const;

/** An Engine that keeps the whole path of each call; `refuses`: no version is right. */
async function over(options: FakeOptions, { refuses = false } = {}) {
  const said = { api: options.api ?? '1.41' };
  const urls: (string | undefined)[] = [];
  made += 1;
  const fake = fakeEngine(
    `spoken${made}`,
    (path, request, reply) => {
      reply.setHeader('Api-Version', said.api);
      if (path === '/_ping') return void reply.end('OK');
      urls.push(request.url);
      const words = 'client version 1.55 is too old. Minimum supported API version is 1.60, please upgrade your client';
      if (refuses) reply.writeHead(400).end(JSON.stringify({ message: words }));
      else reply.end(path === '/networks' ? '[]' : '{}');
    },
    { ...options, pings: options.api === null },
  );
  const engine = await fake.connect();
  return { engine, said, urls, endpoint: fake.endpoint, [Symbol.asyncDispose]: fake.stop };
}

test.each([
  ['1.41', '1.41'],
  ['1.43', '1.43'],
  ['1.55', '1.55'],
  ['1.99', '1.55'],
  ['2.0', '1.55'],
])('an Engine with API %s is spoken to in %s', async (api, spoken) => {
  await using here = await over({ api });
  await here.engine.info(never);
  await here.engine.networks('a', never);
  expect(here.urls.map((url) => url?.split('?')[0])).toEqual([`/v${spoken}/info`, `/v${spoken}/networks`]);
  await expect(here.engine.upgrade('/exec/1/start', 'run', never)).rejects.toThrow();
  expect(here.urls.at(-1)).toBe(`/v${spoken}/exec/1/start`);
});

test('an Engine that is older than the oldest is told in words, by every call and by the probe', async () => {
  await using here = await over({ api: '1.40' });
  const message = expect.stringMatching(
    /^Cannot list networks: the Engine at unix:\S+ has version 1\.40 of the API, and onejob needs 1\.41, which Docker Engine 20\.10 and Podman 4\.3 and newer have\.$/,
  );
  await expect(here.engine.networks('a', never)).rejects.toMatchObject({ ...old, message });
  const file = Readable.from(['some']);
  await expect(here.engine.putArchive('c1', '/', file, never)).rejects.toMatchObject(old);
  expect(file.destroyed).toBe(true);
  expect(await probeDocker(here.endpoint, never)).toMatchObject({ reachable: false, error: old });
  expect(here.urls).toEqual([]);
});

test('so is Podman, which has its own versions', async () => {
  await using here = await over({ api: '1.40', podman: '3.4.4' });
  const message = expect.stringContaining('is Podman 3.4.4, and onejob needs 4.3 or newer.');
  await expect(here.engine.isPodman(never)).rejects.toMatchObject({ ...old, message });
  await using newer = await over({ api: '1.41', podman: '4.3.1' });
  expect(await newer.engine.isPodman(never)).toBe(true);
});

test('what answers a ping without a version of an API does not count as an Engine', async () => {
  await using here = await over({ api: null });
  const message = expect.stringContaining('it answered a ping without the version of its API');
  await expect(here.engine.info(never)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', message });
});

test('one that has been updated is asked again, once its connections have ended', async () => {
  await using here = await over({ api: '1.41' });
  await here.engine.info(never);
  here.said.api = '1.52';
  await here.engine.info(never);
  here.engine.interrupted();
  await here.engine.info(never);
  expect(here.urls).toEqual(['/v1.41/info', '/v1.41/info', '/v1.52/info']);
});

test('one that refuses the version that was agreed on is asked again by the next call', async () => {
  await using here = await over({ api: '1.99' }, { refuses: true });
  const message = expect.stringMatching(
    /^Cannot list networks: .* does not accept version 1\.55 of its API: client version 1\.55 is too old/,
  );
  await expect(here.engine.networks('a', never)).rejects.toMatchObject({ code: 'E_ENGINE_VERSION', retry: true, message });
  here.said.api = '1.43';
  await expect(here.engine.networks('a', never)).rejects.toMatchObject({ code: 'E_ENGINE_VERSION' });
  expect(here.urls.map((url) => url?.split('?')[0])).toEqual(['/v1.55/networks', '/v1.43/networks']);
});
