/** Putting an image into the store of the engines, on an Engine that a test makes. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { answersPing, withoutVersion } from '../../../test/kit/fake-engine.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { Engine } from '../engine/engine.ts';
import { fillPodman, ImageStore } from './image-store.ts';

/** The Engine leaves a connection to a container open, as a real one does whatever becomes of that. */
test('who stops while an image is read leaves no connection that would keep the process', async () => {
  using here = scratch();
  const path = `${here.path}/e.sock`;
  const asked: string[] = [];
  const reads = Promise.withResolvers<void>();
  const attached = Promise.withResolvers<Socket>();
  const server = createServer((request, answer) => {
    if (answersPing(request, answer)) return;
    const { method = '', url = '' } = request;
    asked.push(`${method} ${withoutVersion(url.split('?')[0] ?? '')}`);
    if (asked.at(-1) === 'POST /containers/create') answer.writeHead(201).end('{"Id":"filler"}');
    else if (url.endsWith('/get')) reads.resolve();
    else if (url.endsWith('/start')) void attached.promise.then((socket) => answer.writeHead(204).end() && socket.write('wanted'));
    else if (!url.endsWith('/wait')) answer.writeHead(204).end();
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    attached.resolve(socket.on('error', () => {}).resume());
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  const stop = new AbortController();
  const filling = new ImageStore(engine, 'o').ensure('sha256:1', 'maker', () => {}, stop.signal);
  const socket = await attached.promise;
  const ended = once(socket, 'end');
  await reads.promise;
  stop.abort();
  await expect(filling).rejects.toThrow();
  await ended;
  expect(asked.at(-1)).toBe('DELETE /containers/filler');
  engine.close();
  socket.destroy();
  server.closeAllConnections();
  server.close();
});

/** A store on an Engine whose container ends at once as it is told. `asked`: what the Engine was asked. */
async function ended(code: number, says: string, wants: boolean) {
  const here = scratch();
  const path = `${here.path}/e.sock`;
  const line = `2026-11-30T01:00:00.000000000Z ${says}`;
  const header = Buffer.from([2, 0, 0, 0, 0, 0, 0, line.length + 1]);
  const asked: string[] = [];
  const attached = Promise.withResolvers<Socket>();
  const read = Promise.withResolvers<void>();
  const server = createServer(async (request, answer) => {
    if (answersPing(request, answer)) return;
    const url = withoutVersion(request.url ?? '');
    asked.push(url);
    const State = { Status: 'exited', Running: false, ExitCode: code };
    if (url.startsWith('/containers/create')) answer.writeHead(201).end('{"Id":"filler"}');
    else if (url.startsWith('/volumes?')) answer.end('{"Volumes":[]}');
    else if (url.startsWith('/volumes/')) answer.writeHead(404).end('{"message":"no such volume"}');
    else if (url.startsWith('/containers/filler/logs')) answer.end(Buffer.concat([header, Buffer.from(`${line}\n`)]));
    else if (url === '/containers/filler/json')
      answer.end(JSON.stringify({ Id: 'filler', Name: 'f', Image: 'i', State, Config: {} }));
    else if (url.endsWith('/get')) {
      answer.end('image');
      read.resolve();
    } else if (url.endsWith('/start')) {
      if (wants) (await attached.promise).write('wanted');
      answer.writeHead(204).end();
    } else if (url.endsWith('/wait')) {
      if (wants) await read.promise;
      answer.end(`{"StatusCode":${code}}`);
    } else answer.writeHead(204).end();
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    attached.resolve(socket.on('error', () => {}).resume());
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  onTestFinished(() => {
    engine.close();
    server.closeAllConnections();
    server.close();
    here[Symbol.dispose]();
  });
  const never = new AbortController().signal;
  const store = new ImageStore(engine, 'o');
  return { asked, filling: store.ready('p', [{ id: 'sha256:1', name: 'a:1' }], 'maker', () => {}, never) };
}

test('a disk that is full while an image is loaded is said to be full, in the words of who found it', async () => {
  const { filling } = await ended(1, 'write /var/lib/images/docker/x: no space left on device', true);
  await expect(filling).rejects.toMatchObject({
    code: 'E_DISK_FULL',
    message:
      "Cannot make image sha256:1 ready for the engines of agents: the Engine's disk is full (write /var/lib/images/docker/x: no space left on device).",
  });
});

test('what else goes wrong is said in the words of the program', async () => {
  const { filling } = await ended(1, 'dockerd: unknown flag', false);
  await expect(filling).rejects.toMatchObject({
    message: 'Cannot make image sha256:1 ready for the engines of agents: dockerd: unknown flag.',
  });
});

test('an image that is there already is not read again, which may be gigabytes at each start of the daemon', async () => {
  const { asked, filling } = await ended(0, '', false);
  expect(await filling).toMatch(/^onejob-o-images-\w{12}$/);
  expect(asked.filter((url) => url.endsWith('/get'))).toEqual([]);
});

/** A `podman` and a `sync` of the test, which say that they were called. */
test.each([
  ['is', 'exit 0', ['podman image exists', 'podman load', 'sync -f', 'podman tag']],
  ['cannot be', 'exit 1', ['podman image exists', 'podman load', 'sync -f', 'sync']],
])('an image has its name only once it is on disk (which it %s)', async (_, synced, calls) => {
  using here = scratch();
  const program = (name: string, text: string): void =>
    writeFileSync(join(here.path, name), `#!/bin/sh\nPATH=/usr/bin:/bin\n${text}\n`, { mode: 0o755 });
  const say = (words: string): string => `echo "${words}" >>${here.path}/said`;
  program('podman', `shift 4; ${say('podman $*')}; case $1 in image) exit 1;; load) echo Loaded image: x;; esac`);
  program('sync', `${say('sync $*')}; ${synced}`);
  spawnSync('/bin/sh', ['-c', fillPodman, 'name'], { env: { PATH: here.path } });
  const said = readFileSync(join(here.path, 'said'), 'utf8').trim().split('\n');
  expect(said).toEqual(calls.map((call) => expect.stringMatching(new RegExp(`^${call}( |$)`))));
});
