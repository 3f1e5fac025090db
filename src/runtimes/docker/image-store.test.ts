/** Putting an image into the store of the engines, on an Engine that a test makes. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { Engine } from '../engine/engine.ts';
import { ImageStore } from './image-store.ts';

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

test('a disk that is full while an image is loaded is said to be full, in the words of who found it', async () => {
  using here = scratch();
  const path = `${here.path}/e.sock`;
  const line = '2026-11-30T01:00:00.000000000Z write /var/lib/images/docker/x: no space left on device';
  const header = Buffer.from([2, 0, 0, 0, 0, 0, 0, line.length + 1]);
  const server = createServer(({ url = '' }, answer) => {
    const State = { Status: 'exited', Running: false, ExitCode: 1 };
    if (url.startsWith('/containers/create')) answer.writeHead(201).end('{"Id":"filler"}');
    else if (url.startsWith('/volumes?')) answer.end('{"Volumes":[]}');
    else if (url.startsWith('/volumes/')) answer.writeHead(404).end('{"message":"no such volume"}');
    else if (url.endsWith('/wait')) answer.end('{"StatusCode":1}');
    else if (url.startsWith('/containers/filler/logs')) answer.end(Buffer.concat([header, Buffer.from(`${line}\n`)]));
    else if (url === '/containers/filler/json')
      answer.end(JSON.stringify({ Id: 'filler', Name: 'f', Image: 'i', State, Config: {} }));
    else if (url.endsWith('/get')) answer.end('image');
    else answer.writeHead(204).end();
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.on('error', () => {}).resume();
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  const filling = new ImageStore(engine, 'o').ready(
    'p',
    [{ id: 'sha256:1', name: 'a:1' }],
    'maker',
    () => {},
    AbortSignal.timeout(20_000),
  );
  await expect(filling).rejects.toMatchObject({
    code: 'E_DISK_FULL',
    message:
      "Cannot make image sha256:1 ready for the engines of agents: the Engine's disk is full (write /var/lib/images/docker/x: no space left on device).",
  });
  engine.close();
  server.closeAllConnections();
  server.close();
});
