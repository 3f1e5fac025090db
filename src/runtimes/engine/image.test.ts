/** Pulls by the real Engine from a small registry on this host, and how its refusals are translated. */
import { createHash, randomUUID } from 'node:crypto';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcp } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { recipe, settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { engineAt } from '../../../test/support/engine-http.ts';
import { lacks } from '../../../test/support/require.ts';
import { Engine } from './engine.ts';
import { Images, parseReference } from './image.ts';

test('references are read as Docker reads them', () => {
  expect(parseReference('debian')).toEqual({ name: 'debian', tag: 'latest', registry: 'docker.io' });
  expect(parseReference('debian:stable-slim')).toEqual({ name: 'debian', tag: 'stable-slim', registry: 'docker.io' });
  expect(parseReference('nvidia/cuda:13.3.0')).toEqual({ name: 'nvidia/cuda', tag: '13.3.0', registry: 'docker.io' });
  expect(parseReference('ghcr.io/a/b')).toEqual({ name: 'ghcr.io/a/b', tag: 'latest', registry: 'ghcr.io' });
  expect(parseReference('EVIL/a:1')).toEqual({ name: 'EVIL/a', tag: '1', registry: 'EVIL' });
  expect(parseReference('localhost:5000/a:1')).toEqual({ name: 'localhost:5000/a', tag: '1', registry: 'localhost:5000' });
  expect(parseReference('a.b/c:1@sha256:ff')).toEqual({ name: 'a.b/c', tag: 'sha256:ff', registry: 'a.b' });
});

test.each([
  'onejob/own-queue:aaaaaaaaaaaa',
  'docker.io/onejob/own-queue:aaaaaaaaaaaa',
  'localhost/onejob/own-queue',
  'onejob-held:2dacd40417',
])('%s is pulled from no registry, whatever the policy', async (image) => {
  const asked: string[] = [];
  const fake = fakeEngine('own-names', (path, { method }, reply) => {
    asked.push(`${method} ${path}`);
    return reply.writeHead(404).end('{"message":"no such image"}');
  });
  const images = new Images(await fake.connect(), '/nowhere', () => 0);
  const { signal } = new AbortController();
  try {
    for (const pull of ['missing', 'always'] as const)
      await expect(images.get({ ...recipe, image, pull }, () => {}, signal)).rejects.toMatchObject({
        code: 'E_IMAGE_NOT_FOUND',
        message: expect.stringContaining('never pulls an image with the name of those that it builds itself'),
      });
    expect(await images.trouble({ ...recipe, image, pull: 'missing' }, signal)).toMatchObject({ code: 'E_IMAGE_NOT_FOUND' });
    expect(asked.filter((call) => call.startsWith('POST') || call.includes('distribution'))).toEqual([]);
  } finally {
    await fake.stop();
  }
});

test('an Engine that cannot ask a registry as a stranger refuses the image that a job named, for good, and says what to do', async () => {
  // As Podman 4.3.1 answers.
  const fake = fakeEngine('no-distribution', (path, _, reply) => {
    const isKnown = path.includes('/images/');
    const message = isKnown ? 'no such image' : `Path ${path} is not supported`;
    reply.writeHead(404, { 'Content-Type': 'application/json' }).end(JSON.stringify({ cause: '', message, response: 0 }));
  });
  const folder = await mkdtemp(join(tmpdir(), 'onejob-test-'));
  await writeFile(join(folder, 'config.json'), JSON.stringify({ auths: { 'registry.test': { auth: btoa('me:s3cret') } } }));
  const images = new Images(await fake.connect(), folder, () => 0);
  const { signal } = new AbortController();
  const wanted = { ...recipe, image: 'registry.test/a:1', pull: 'missing', publicOnly: true } as const;
  try {
    await expect(images.get(wanted, () => {}, signal)).rejects.toMatchObject({
      code: 'E_IMAGE_DENIED',
      retry: false,
      message: expect.stringMatching(/the job named it, this host has a password for registry\.test, and this Engine cannot ask/),
      hint: expect.stringMatching(/Podman can from version 6 on.*docker logout registry\.test/),
    });
    // It says nothing against an image of the config.
    expect(await images.trouble(wanted, signal)).toBeNull();
  } finally {
    await fake.stop();
    await rm(folder, { recursive: true });
  }
});

interface Registry {
  readonly address: string;
  /** Requests for manifests so far. */
  readonly asked: () => number;
  /** Only `user:password` may read. */
  password: string | null;
  /** Blobs wait for this. */
  hold: Promise<void>;
}

/** A read-only registry (distribution API v2) that has `job:1` and no other image. */
async function registry(): Promise<{ server: Server; registry: Registry }> {
  const tar = pack();
  // New every time: a layer that the Engine has already is not asked for.
  tar.entry({ name: `file-${process.pid}`, mtime: new Date(0) }, randomUUID());
  tar.finalize();
  const layer = await buffer(tar);
  const zipped = gzipSync(layer);
  const sum = (bytes: Buffer) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
  const config = Buffer.from(
    JSON.stringify({ architecture: 'amd64', os: 'linux', config: {}, rootfs: { type: 'layers', diff_ids: [sum(layer)] } }),
  );
  const type = 'application/vnd.docker.distribution.manifest.v2+json';
  const manifest = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: type,
      config: { mediaType: 'application/vnd.docker.container.image.v1+json', size: config.length, digest: sum(config) },
      layers: [{ mediaType: 'application/vnd.docker.image.rootfs.diff.tar.gzip', size: zipped.length, digest: sum(zipped) }],
    }),
  );
  let asked = 0;
  const about: Registry = { address: '', asked: () => asked, password: null, hold: Promise.resolve() };
  const server = createServer(async (request, answer) => {
    const say = (status: number, body: Buffer | string, headers: Record<string, string> = {}) => {
      answer.writeHead(status, { 'docker-distribution-api-version': 'registry/2.0', ...headers });
      answer.end(request.method === 'HEAD' ? undefined : body);
    };
    const wanted = about.password === null ? null : `Basic ${Buffer.from(about.password).toString('base64')}`;
    if (wanted !== null && request.headers.authorization !== wanted) {
      const challenge = { 'www-authenticate': 'Basic realm="test"', 'content-type': 'application/json' };
      return say(401, '{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}', challenge);
    }
    const url = request.url ?? '';
    if (url === '/v2/') return say(200, '{}');
    if (url.startsWith('/v2/job/manifests/') && (url.endsWith('/1') || url.endsWith(sum(manifest)))) {
      asked += 1;
      return say(200, manifest, {
        'content-type': type,
        'docker-content-digest': sum(manifest),
        'content-length': `${manifest.length}`,
      });
    }
    await about.hold;
    if (url.endsWith(sum(config))) return say(200, config);
    if (url.endsWith(sum(zipped))) return say(200, zipped);
    return say(404, '{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}', {
      'content-type': 'application/json',
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { server, registry: Object.assign(about, { address: `127.0.0.1:${(server.address() as AddressInfo).port}` }) };
}

describe.skipIf(lacks('docker'))('pulling', { timeout: 60_000 }, () => {
  let server: Server;
  let local: Registry;
  let folder: string;
  let image: string;
  let engine: Engine;
  const never = () => new AbortController().signal;

  beforeAll(async () => {
    ({ server, registry: local } = await registry());
    folder = await mkdtemp(join(tmpdir(), 'onejob-pull-'));
    image = `${local.address}/job:1`;
    engine = new Engine({ kind: 'unix', path: '/var/run/docker.sock', from: 'test' });
  });
  afterEach(async () => {
    using raw = engineAt();
    await raw.call('DELETE', `/images/${image}?force=1`);
    local.password = null;
    local.hold = Promise.resolve();
    await rm(join(folder, 'config.json'), { force: true });
  });
  afterAll(async () => {
    engine.close();
    server.close();
    server.closeAllConnections();
    await rm(folder, { recursive: true, force: true });
  });
  const images = () => new Images(engine, folder, () => performance.now());
  const get = (changes: Partial<typeof recipe>, progress: (line: string) => void = () => {}, signal = never()) =>
    images().get({ ...recipe, pull: 'missing', image, ...changes }, progress, signal);

  test('a missing image is pulled once for all callers, and each gets the progress', async () => {
    const shared = images();
    const held = Promise.withResolvers<void>();
    local.hold = held.promise;
    const before = local.asked();
    const heard: string[][] = [[], [], []];
    const started = Promise.all(
      heard.map((lines) => shared.get({ ...recipe, pull: 'missing', image }, (line) => lines.push(line), never())),
    );
    await expect
      .poll(() => heard.every((lines) => lines.length > 0))
      .toBe(true)
      .finally(() => held.resolve());
    const got = await started;
    expect(new Set(got.map((one) => one.id)).size).toBe(1);
    expect(local.asked() - before).toBeLessThanOrEqual(2);
    for (const lines of heard) expect(lines.at(-1)).toBe(`pulled ${image}`);
  });

  test('a caller that joins a pull gets its progress', async () => {
    const shared = images();
    const held = Promise.withResolvers<void>();
    local.hold = held.promise;
    const heard: [string[], string[]] = [[], []];
    const wait = (lines: string[]) => shared.get({ ...recipe, pull: 'missing', image }, (line) => lines.push(line), never());
    const first = wait(heard[0]);
    try {
      await expect.poll(() => heard[0].length).toBeGreaterThan(0);
      const second = wait(heard[1]);
      await expect.poll(() => heard[1]).toEqual([`pulling ${image}`]);
      held.resolve();
      await Promise.all([first, second]);
    } finally {
      // A layer that nobody sends would hold every later pull of it.
      held.resolve();
    }
  });

  test('a caller that leaves does not stop the others; when all have left the pull ends', async () => {
    const shared = images();
    const held = Promise.withResolvers<void>();
    local.hold = held.promise;
    const leaver = new AbortController();
    const wanted = { ...recipe, pull: 'missing', image } as const;
    const left = shared.get(wanted, () => {}, leaver.signal);
    const stays = shared.get(wanted, () => {}, never());
    leaver.abort(new Error('gone'));
    await expect(left).rejects.toThrow('gone');
    held.resolve();
    expect((await stays).id).toMatch(/^sha256:/);
  });

  test('an existing image is not pulled again, except with pull: always', async () => {
    await get({});
    const before = local.asked();
    await get({});
    expect(local.asked()).toBe(before);
    await get({ pull: 'always' });
    expect(local.asked()).toBeGreaterThan(before);
  });

  test('pull: never pulls never', async () => {
    const before = local.asked();
    await expect(get({ pull: 'never' })).rejects.toMatchObject({ code: 'E_IMAGE_NOT_FOUND', retry: false });
    expect(local.asked()).toBe(before);
  });

  test('an image that the registry does not have', async () => {
    const missing = `${local.address}/job:2`;
    await expect(get({ image: missing })).rejects.toMatchObject({ code: 'E_IMAGE_NOT_FOUND', retry: false });
    expect(await images().trouble({ ...recipe, pull: 'missing', image: missing }, never())).toMatchObject({
      code: 'E_IMAGE_NOT_FOUND',
    });
    expect(await images().trouble({ ...recipe, pull: 'missing', image }, never())).toBeNull();
  });

  test('a registry that refuses, and credentials from config.json', async () => {
    local.password = 'me:s3cret:with:colons';
    await expect(get({})).rejects.toMatchObject({ code: 'E_IMAGE_DENIED', retry: false });
    const wrong = { auths: { [local.address]: { auth: Buffer.from('me:wr0ng').toString('base64') } } };
    await writeFile(join(folder, 'config.json'), JSON.stringify(wrong));
    const refused = await get({}).catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: 'E_IMAGE_DENIED' });
    expect(String(refused)).not.toContain('wr0ng');
    const right = { auths: { [`https://${local.address}/v2/`]: { auth: Buffer.from(local.password).toString('base64') } } };
    await writeFile(join(folder, 'config.json'), JSON.stringify(right));
    expect((await get({})).id).toMatch(/^sha256:/);
    expect(await images().trouble({ ...recipe, pull: 'missing', image }, never())).toBeNull();
  });

  test('an image that a job chose must be one that everybody may pull, also if it is there already', async () => {
    const chosen = () => get({ publicOnly: true });
    local.password = 'me:s3cret';
    const right = { auths: { [local.address]: { auth: Buffer.from(local.password).toString('base64') } } };
    await writeFile(join(folder, 'config.json'), JSON.stringify(right));
    const refusal = { code: 'E_IMAGE_DENIED', message: expect.stringContaining('does not give it to everybody'), retry: false };
    await expect(chosen()).rejects.toMatchObject(refusal);
    // A pool of this host has it.
    expect((await get({})).id).toMatch(/^sha256:/);
    await expect(chosen()).rejects.toMatchObject(refusal);
    local.password = null;
    expect((await chosen()).id).toMatch(/^sha256:/);
  });

  test('a registry that cannot be reached, and one that hangs up', async () => {
    await expect(get({ image: '127.0.0.1:9/x:1' })).rejects.toMatchObject({ code: 'E_REGISTRY_UNREACHABLE', retry: true });
    expect(await images().trouble({ ...recipe, pull: 'missing', image: '127.0.0.1:9/x:1' }, never())).toMatchObject({
      code: 'E_REGISTRY_UNREACHABLE',
    });
    const rude = createTcp((socket) => socket.destroy());
    await new Promise<void>((resolve) => rude.listen(0, '127.0.0.1', resolve));
    const address = `127.0.0.1:${(rude.address() as AddressInfo).port}`;
    await expect(get({ image: `${address}/x:1` })).rejects.toMatchObject({ code: 'E_REGISTRY_UNREACHABLE', retry: true });
    rude.close();
  });

  test('an invalid image name is a fault of the pool, and none of the Engine', async () => {
    await expect(get({ image: 'Not A Name' })).rejects.toMatchObject({ code: 'E_IMAGE_NOT_FOUND', retry: false });
    expect(await images().of({ ...recipe, image: 'Not A Name' }, never())).toBeNull();
  });

  test('tests never reach a person’s credentials', () => {
    expect(settings().config).toBe(tmpdir());
  });

  test('credential helpers', async () => {
    // Helpers are found on PATH, so the test brings one by its path: Docker joins the name to `docker-credential-`.
    local.password = 'robot:fr0m-helper';
    const program = join(folder, 'docker-credential-onejob');
    await writeFile(
      program,
      '#!/bin/sh\nread server\nprintf \'{"ServerURL":"%s","Username":"robot","Secret":"fr0m-helper"}\' "$server"\n',
    );
    await chmod(program, 0o755);
    const before = process.env.PATH;
    process.env.PATH = `${folder}:${before}`;
    try {
      await writeFile(join(folder, 'config.json'), JSON.stringify({ credHelpers: { [local.address]: 'onejob' } }));
      expect((await get({})).id).toMatch(/^sha256:/);
      await writeFile(join(folder, 'config.json'), JSON.stringify({ credsStore: 'onejob-not-there' }));
      await expect(get({ pull: 'always' })).rejects.toMatchObject({ code: 'E_IMAGE_DENIED', retry: false });
      await writeFile(program, '#!/bin/sh\necho credentials not found in native keychain; exit 1\n');
      await writeFile(join(folder, 'config.json'), JSON.stringify({ credsStore: 'onejob' }));
      local.password = null;
      expect((await get({ pull: 'always' })).id).toMatch(/^sha256:/);
    } finally {
      process.env.PATH = before;
    }
  });
});

test.each([
  [
    'the containerd image store',
    'failed to resolve reference "docker.io/library/none:1": docker.io/library/none:1: not found',
    'E_IMAGE_NOT_FOUND',
  ],
  ['the classic store', 'manifest for none:1 not found: manifest unknown: manifest unknown', 'E_IMAGE_NOT_FOUND'],
  [
    'a registry that is away',
    'failed to resolve reference "r.test/none:1": failed to do request: Head "https://r.test/v2/none/manifests/1": dial tcp: lookup r.test: no such host',
    'E_REGISTRY_UNREACHABLE',
  ],
  [
    'a registry whose name is unknown',
    'Get "https://r.test/v2/": dial tcp: lookup r.test on 10.0.0.2:53: server misbehaving',
    'E_REGISTRY_UNREACHABLE',
  ],
  [
    'a registry that does not answer in time',
    'Get "https://r.test/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)',
    'E_REGISTRY_UNREACHABLE',
  ],
  ['a registry with a fault', 'received unexpected HTTP status: 503 Service Unavailable', 'E_REGISTRY_UNREACHABLE'],
  [
    'a registry with a fault, in the containerd image store',
    'failed to resolve reference "r.test/none:1": unexpected status from HEAD request to https://r.test/v2/none/manifests/1: 502 Bad Gateway',
    'E_REGISTRY_UNREACHABLE',
  ],
  [
    'a registry that hangs up while it is asked',
    'Get "http://r.test/v2/": write tcp 10.0.0.2:52110->10.0.0.3:80: write: broken pipe',
    'E_REGISTRY_UNREACHABLE',
  ],
  ['a registry that gives no more', 'toomanyrequests: You have reached your pull rate limit.', 'E_REGISTRY_UNREACHABLE'],
  ['an image for other processors', 'no matching manifest for linux/amd64 in the manifest list entries', 'E_PULL_FAILED'],
])('an image that cannot be pulled, as %s says it', async (_, said, code) => {
  await using fake = fakeEngine(`pull-${code}`, (path, _request, reply) => {
    if (path === '/_ping') reply.end('OK');
    else if (path === '/images/create') reply.end(`${JSON.stringify({ errorDetail: { message: said } })}\n`);
    else reply.writeHead(404).end('{"message":"no such image"}');
  });
  const pulled = new Images(await fake.connect(), '/nowhere', () => 0).get(
    { ...recipe, image: 'none:1', pull: 'missing' },
    () => {},
    new AbortController().signal,
  );
  await expect(pulled).rejects.toMatchObject({ code });
});

test.each([
  ['r.test/timeout-test:eof', 'no matching manifest for linux/amd64 in r.test/timeout-test:eof', 'E_PULL_FAILED'],
  [
    'r.test/denied:403',
    'Get "https://r.test/v2/denied/manifests/403": dial tcp 10.0.0.9:443: i/o timeout',
    'E_REGISTRY_UNREACHABLE',
  ],
])('the name of image %s does not decide', async (image, said, code) => {
  await using fake = fakeEngine('pull-named', (path, _request, reply) => {
    if (path === '/_ping') reply.end('OK');
    else if (path === '/images/create') reply.end(`${JSON.stringify({ errorDetail: { message: said } })}\n`);
    else reply.writeHead(404).end('{"message":"no such image"}');
  });
  const pulled = new Images(await fake.connect(), '/nowhere', () => 0).get(
    { ...recipe, image, pull: 'missing' },
    () => {},
    AbortSignal.timeout(60_000),
  );
  await expect(pulled).rejects.toMatchObject({ code });
});
