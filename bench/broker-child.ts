/**
 * One side of the broker's figures, as a process of its own: `sink`, a service and object store that take everything, or
 * `gateway`, the broker's gateway before it with one running job. Says its port, and its memory whenever it is asked.
 */
import { once } from 'node:events';
import type { Server } from 'node:http';
import { createServer as createTcpServer, type Socket, type Server as TcpServer } from 'node:net';
import { memoryUsage } from 'node:process';
import { gatewayFor } from '../src/ci/buildkite/broker/testing-gateway.ts';

const [, , role, upstream] = process.argv;

const server: Server | TcpServer = role === 'sink' ? createTcpServer(sink) : gatewayFor(`http://127.0.0.1:${upstream}/v3`);
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const address = server.address();
process.send?.({ port: typeof address === 'object' && address !== null ? address.port : 0 });
process.on('message', () => process.send?.({ rss: memoryUsage.rss() }));
process.on('disconnect', () => process.exit());

/** Reads a head, then as many bytes as it announces, and answers; as little work as can be, so that little of it is measured. */
function sink(socket: Socket): void {
  let head = '';
  let left = -1;
  const done = (): void => {
    head = '';
    left = -1;
    socket.write('HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: "x"\r\ncontent-length: 2\r\n\r\n{}');
  };
  socket.setNoDelay(true).on('error', () => {});
  socket.on('data', (bytes: Buffer) => {
    if (left >= 0) {
      left -= bytes.length;
      if (left <= 0) done();
      return;
    }
    head += bytes.toString('latin1');
    const end = head.indexOf('\r\n\r\n');
    if (end < 0) return;
    left = Number(/^content-length: (\d+)/im.exec(head)?.[1] ?? 0) - (head.length - end - 4);
    if (left <= 0) done();
  });
}
