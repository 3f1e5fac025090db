/** Putting an image into the store of the engines, on an Engine that a test makes. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { Engine } from '../engine/engine.ts';
import { fill, ImageStore } from './image-store.ts';

/** The Engine leaves a connection to a container open, as a real one does whatever becomes of that. */
test('who stops while an image is read leaves no connection that would keep the process', async () => {
  using here = scratch();
  const path = `${here.path}/e.sock`;
  const asked: string[] = [];
  const reads = Promise.withResolvers<void>();
  const attached = Promise.withResolvers<Socket>();
  const server = createServer(({ method = '', url = '' }, answer) => {
    asked.push(`${method} ${url.split('?')[0]}`);
    if (url.startsWith('/containers/create')) answer.writeHead(201).end('{"Id":"filler"}');
    else if (url.endsWith('/get')) reads.resolve();
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
  spawnSync('/bin/sh', ['-c', fill, 'name'], { env: { PATH: here.path } });
  const said = readFileSync(join(here.path, 'said'), 'utf8').trim().split('\n');
  expect(said).toEqual(calls.map((call) => expect.stringMatching(new RegExp(`^${call}( |$)`))));
});
