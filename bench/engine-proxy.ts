/**
 * Sits between the daemon and the Engine and notes when two things pass: a die event on its way to the daemon, and a
 * script's frame on its way to a gate. So the daemon's own share of a job's change is measured from outside, without
 * a line of measuring code in it. Adds about a tenth of a millisecond each way.
 */
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';

export interface Passed {
  readonly what: 'die' | 'frame';
  /** `performance.now()` when it came in. */
  readonly at: number;
}

export interface EngineProxy extends AsyncDisposable {
  readonly socket: string;
  readonly passed: readonly Passed[];
}

export async function engineProxy(socket: string, engine: string): Promise<EngineProxy> {
  const passed: Passed[] = [];
  const open = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (client) => {
    const upstream = connect({ path: engine, allowHalfOpen: true });
    for (const end of [client, upstream]) {
      open.add(end);
      end.on('error', () => {}).once('close', () => open.delete(end));
    }
    client.on('data', (bytes) => {
      const at = performance.now();
      upstream.write(bytes);
      // A frame is a line of its own, `ID LENGTH SCRIPT ID`, on a connection that was hijacked for it.
      if (/\n([A-Za-z0-9-]+) \d+ .* \1\n$/s.test(bytes.toString('latin1'))) passed.push({ what: 'frame', at });
    });
    upstream.on('data', (bytes) => {
      const at = performance.now();
      client.write(bytes);
      for (const _ of bytes.toString('latin1').matchAll(/"Action":"die"/g)) passed.push({ what: 'die', at });
    });
    client.on('end', () => upstream.end());
    upstream.on('end', () => client.end());
    client.once('close', () => upstream.destroy());
    upstream.once('close', () => client.destroy());
  });
  server.listen(socket);
  await once(server, 'listening');
  return {
    socket,
    passed,
    async [Symbol.asyncDispose]() {
      for (const end of open) end.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}
