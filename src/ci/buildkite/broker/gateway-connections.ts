/** How many connections one address may have: a sandbox that opens thousands shall not take those of the others. */
import type { Server } from 'node:net';

/** Far more than an agent and its job need; all sandboxes without a network of their own share one address. */
const usualMost = 1024;

/** Closes what comes from an address beyond `most` at a time, unanswered. The same for every door, each counts by itself. */
export function boundConnections(server: Server, most: number = usualMost): void {
  const open = new Map<string, number>();
  server.on('connection', (socket) => {
    const from = socket.remoteAddress ?? '';
    const count = (open.get(from) ?? 0) + 1;
    if (count > most) {
      socket.destroy();
      return;
    }
    open.set(from, count);
    socket.once('close', () => {
      const left = (open.get(from) ?? 1) - 1;
      if (left === 0) open.delete(from);
      else open.set(from, left);
    });
  });
}
