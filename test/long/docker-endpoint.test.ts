import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { createServer as createTcp } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { DockerEnvironment } from '../../src/config/environment.ts';
import { resolveEndpoint } from '../../src/runtimes/engine/endpoint.ts';
import { unreachable } from '../../src/runtimes/engine/failures.ts';
import { probeDocker } from '../../src/runtimes/engine/probe.ts';
import { lacks } from '../support/require.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'ojp-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const resolve = (changes: Partial<DockerEnvironment>) =>
  resolveEndpoint({ host: null, tlsVerify: false, certPath: null, context: null, config: folder, runtimeDir: null, ...changes });

const addContext = async (name: string, host: string, more: object = {}) => {
  const id = createHash('sha256').update(name).digest('hex');
  await mkdir(join(folder, 'contexts/meta', id), { recursive: true });
  const meta = { Name: name, Metadata: {}, Endpoints: { docker: { Host: host, ...more } } };
  await writeFile(join(folder, 'contexts/meta', id, 'meta.json'), JSON.stringify(meta));
  return join(folder, 'contexts/tls', id, 'docker');
};

describe('which Engine', () => {
  test('DOCKER_HOST goes first', async () => {
    await addContext('lab', 'unix:///lab.sock');
    expect(await resolve({ host: 'unix:///a.sock', context: 'lab' })).toEqual({
      kind: 'unix',
      path: '/a.sock',
      from: 'DOCKER_HOST',
    });
    expect(await resolve({ host: 'tcp://host:2375' })).toEqual({
      kind: 'tcp',
      host: 'host',
      port: 2375,
      tls: null,
      from: 'DOCKER_HOST',
    });
    expect(await resolve({ host: 'tcp://[::1]' })).toMatchObject({ kind: 'tcp', host: '::1', port: 2375 });
    expect(await resolve({ host: 'host:99' })).toMatchObject({ kind: 'tcp', host: 'host', port: 99 });
  });

  test('TLS from DOCKER_CERT_PATH', async () => {
    await expect(resolve({ host: 'tcp://host', tlsVerify: true, certPath: folder })).rejects.toMatchObject({
      code: 'E_ENGINE_ADDRESS',
    });
    for (const name of ['ca', 'cert', 'key']) await writeFile(join(folder, `${name}.pem`), name);
    const tls = { ca: 'ca', cert: 'cert', key: 'key', verify: true };
    expect(await resolve({ host: 'tcp://host', tlsVerify: true, certPath: folder })).toMatchObject({ port: 2376, tls });
  });

  test('contexts: by variable, by config.json, with TLS, none of that name', async () => {
    const material = await addContext('lab', 'tcp://lab:2376');
    await mkdir(material, { recursive: true });
    await writeFile(join(material, 'ca.pem'), 'ca');
    expect(await resolve({ context: 'lab' })).toMatchObject({
      host: 'lab',
      tls: { ca: 'ca', verify: true },
      from: 'Docker context "lab"',
    });
    await addContext('home', 'unix:///home.sock');
    await writeFile(join(folder, 'config.json'), JSON.stringify({ currentContext: 'home', auths: {} }));
    expect(await resolve({})).toMatchObject({ kind: 'unix', path: '/home.sock' });
    expect(await resolve({ context: 'default' })).toMatchObject({ kind: 'unix', from: 'the usual place' });
    await expect(resolve({ context: 'nowhere' })).rejects.toMatchObject({
      code: 'E_ENGINE_ADDRESS',
      hint: expect.stringContaining('docker context ls'),
    });
  });

  test('what cannot be used is said', async () => {
    await expect(resolve({ host: 'ssh://me@host' })).rejects.toMatchObject({ code: 'E_ENGINE_ADDRESS' });
    await expect(resolve({ host: `unix:///${'x'.repeat(120)}` })).rejects.toMatchObject({ code: 'E_ENGINE_ADDRESS' });
    await writeFile(join(folder, 'config.json'), '{');
    await expect(resolve({})).rejects.toMatchObject({ code: 'E_ENGINE_ADDRESS' });
  });
});

describe('the probe', () => {
  const probe = (path: string) => probeDocker({ kind: 'unix', path, from: 'test' }, new AbortController().signal);
  const listen = (server: ReturnType<typeof createTcp>, path: string) => new Promise<void>((done) => server.listen(path, done));

  test('nothing there, and nobody listening', async () => {
    expect(await probe(join(folder, 'none.sock'))).toMatchObject({
      reachable: false,
      error: { code: 'E_ENGINE_UNREACHABLE', retry: true },
    });
    await writeFile(join(folder, 'file.sock'), '');
    expect(await probe(join(folder, 'file.sock'))).toMatchObject({
      reachable: false,
      why: expect.stringContaining('nothing listens'),
    });
  });

  test('a socket without permission names the group to join', async () => {
    const denied = Object.assign(new Error('connect EACCES /x.sock'), { code: 'EACCES' });
    const error = unreachable(denied, 'speak', { kind: 'unix', path: '/x.sock', from: 'test' });
    expect(error).toMatchObject({ code: 'E_ENGINE_PERMISSION', retry: false, hint: expect.stringContaining('docker') });
  });

  test('silence ends', async () => {
    const path = join(folder, 's.sock');
    const server = createTcp(() => {});
    await listen(server, path);
    expect(await probe(path)).toMatchObject({ reachable: false, why: expect.stringContaining('did not answer') });
    server.close();
  });

  test('something that is not an Engine', async () => {
    const path = join(folder, 's.sock');
    const server = createServer((_, answer) => answer.end('<html>'));
    await listen(server, path);
    expect(await probe(path)).toMatchObject({ reachable: false, error: { code: 'E_ENGINE_UNREACHABLE' } });
    server.close();
  });

  test('Podman is known by its answer to a ping', async () => {
    const path = join(folder, 's.sock');
    const answers: Record<string, unknown> = {
      '/v1.41/version': { Version: '4.3.1', ApiVersion: '1.41' },
      '/v1.41/info': { LiveRestoreEnabled: false, DockerRootDir: '/x', NCPU: 2, MemTotal: 1, Warnings: null },
    };
    const server = createServer((request, answer) => {
      answer.setHeader('Api-Version', '1.41').setHeader('Libpod-API-Version', '4.3.1');
      answer.end(JSON.stringify(answers[request.url ?? ''] ?? 'OK'));
    });
    await listen(server, path);
    expect(await probe(path)).toMatchObject({ reachable: true, podman: true, version: { ApiVersion: '1.41' } });
    server.close();
  });

  test.skipIf(lacks('docker'))('this machine’s Engine', async () => {
    expect(await probe('/var/run/docker.sock')).toMatchObject({ reachable: true, podman: false, local: true });
  });
});
