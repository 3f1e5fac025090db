import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, it } from 'vitest';
import { boundConnections } from './gateway-connections.ts';
import { listening, stopped } from './testing-gateway.ts';

it('one address cannot take all connections, and has them again once it has closed some', async () => {
  const { server, port } = await listening((_, response) => response.end('here'));
  boundConnections(server, 2);
  const dial = async (host: string) => {
    const socket = connect({ port, host: '127.0.0.1', localAddress: host });
    socket.on('error', () => {}).write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    const answered = await Promise.race([once(socket, 'data').then(() => true), once(socket, 'close').then(() => false)]);
    return { socket, answered };
  };
  const [first] = [await dial('127.0.0.1'), await dial('127.0.0.1')];
  expect((await dial('127.0.0.1')).answered).toBe(false);
  expect((await dial('127.0.0.2')).answered).toBe(true);
  const gone = once(first.socket, 'close');
  first.socket.destroy();
  await gone;
  await expect.poll(async () => (await dial('127.0.0.1')).answered).toBe(true);
  await stopped(server);
});
