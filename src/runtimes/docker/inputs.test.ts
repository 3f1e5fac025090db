import { once } from 'node:events';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { answersPing } from '../../../test/kit/fake-engine.ts';
import { scratch } from '../../../test/support/scratch.ts';
import type { Clock } from '../../core/clock.ts';
import { systemClock } from '../../system/system-clock.ts';
import { usualLimits } from '../engine/call.ts';
import { Engine } from '../engine/engine.ts';
import { Inputs, writeInput } from './attach.ts';

const never = () => new AbortController().signal;

/** An Engine that takes attaches and nothing else; `said` is what came in on each. */
async function attaching(path: string) {
  const sockets: Socket[] = [];
  const said: Promise<string>[] = [];
  // A busy machine makes a release look at its container: that look is never answered, and so never finds it gone.
  const server = createServer((request, answer) => {
    if (!answersPing(request, answer) && request.url?.endsWith('/json') !== true) answer.writeHead(404).end('{"message":"no"}');
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    sockets.push(socket);
    said.push(text(socket).catch(() => 'broken'));
    socket.on('end', () => socket.end()).on('error', () => {});
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  return {
    sockets,
    said,
    engine,
    async [Symbol.asyncDispose]() {
      engine.close();
      for (const socket of sockets) socket.destroy();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

test('a release uses the connection that was opened ahead, and opens no other', async () => {
  using here = scratch();
  await using fake = await attaching(`${here.path}/e.sock`);
  const inputs = new Inputs(fake.engine);
  await inputs.ahead('c1');
  await inputs.ahead('c1');
  const connection = inputs.take('c1');
  expect(connection).not.toBeNull();
  await writeInput(fake.engine, 'c1', Buffer.from('the frame\n'), never(), { connection });
  expect(await fake.said[0]).toBe('the frame\n');
  expect(fake.sockets).toHaveLength(1);
  expect(inputs.take('c1')).toBeNull();
});

test('a broken connection is not used, and the release opens its own', async () => {
  using here = scratch();
  await using fake = await attaching(`${here.path}/e.sock`);
  const inputs = new Inputs(fake.engine);
  await inputs.ahead('c1');
  await inputs.ahead('c2');
  const other = inputs.take('c2');
  // Both ends are in this process: once the second hang-up was heard here, the first one was, too.
  for (const socket of fake.sockets) socket.destroy();
  if (other === null) throw new Error('no connection');
  await once(other, 'close');
  expect(inputs.take('c1')).toBeNull();
  await writeInput(fake.engine, 'c1', Buffer.from('frame\n'), never(), { connection: inputs.take('c1') });
  expect(await fake.said.at(-1)).toBe('frame\n');
});

test('a script that has ended before its hand-over was seen to end has been handed over', async () => {
  using here = scratch();
  const inspected = Promise.withResolvers<void>();
  const server = createServer((request, answer) => {
    if (answersPing(request, answer)) return;
    const ended = { Id: 'c1', Name: '/a', Image: 'i', State: { Running: false, Status: 'exited', ExitCode: 0 }, Config: {} };
    answer.end(JSON.stringify(ended), () => inspected.resolve());
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    socket.on('end', () => inspected.promise.then(() => socket.end())).resume();
  });
  server.listen(`${here.path}/e.sock`);
  await once(server, 'listening');
  // It looks at the container at once, and no wait runs out.
  const clock: Clock = { ...systemClock, after: (ms, fn) => (ms === 50 ? systemClock.after(0, fn) : () => {}) };
  const engine = new Engine({ kind: 'unix', path: `${here.path}/e.sock`, from: 'test' }, usualLimits, clock);
  await writeInput(engine, 'c1', Buffer.from('frame\n'), never());
  engine.close();
  server.closeAllConnections();
  server.close();
});

test('a container that refuses an attach, or an Engine that is away, is not a failure yet', async () => {
  using here = scratch();
  const engine = new Engine({ kind: 'unix', path: `${here.path}/nobody.sock`, from: 'test' });
  const inputs = new Inputs(engine);
  await inputs.ahead('c1');
  expect(inputs.take('c1')).toBeNull();
  engine.close();
});

test('closing ends all connections, including those being opened', async () => {
  using here = scratch();
  await using fake = await attaching(`${here.path}/e.sock`);
  const inputs = new Inputs(fake.engine);
  await inputs.ahead('c1');
  const late = inputs.ahead('c2');
  inputs.close();
  await late;
  expect([inputs.take('c1'), inputs.take('c2')]).toEqual([null, null]);
  await expect.poll(() => fake.sockets.every((socket) => socket.destroyed || socket.readableEnded)).toBe(true);
});
