/** Putting an image into the store of the engines, on an Engine that a test makes. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { answersPing, withoutVersion } from '../../../test/kit/fake-engine.ts';
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
  const server = createServer((request, answer) => {
    if (answersPing(request, answer)) return;
    const { method = '', url = '' } = request;
    asked.push(`${method} ${withoutVersion(url.split('?')[0] ?? '')}`);
    if (asked.at(-1) === 'POST /containers/create') answer.writeHead(201).end('{"Id":"filler"}');
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
