/**
 * Brings a port of this machine's loopback into the network of a host, where programs find it at 10.0.2.2. A socket with a path is
 * reached from any network, so one end waits there for the port, and the other, which runs in the host's network, for connections.
 *
 *     node wire.ts PORT SOCKET    that other end
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { pipeline } from 'node:stream';

/** This machine, for programs of a host. */
export const wireAddress = '10.0.2.2';

export interface Wire extends AsyncDisposable {
  /** Into the network of the process. */
  plug(pid: number): Promise<void>;
  unplug(): Promise<void>;
}

/** `socket`: a path that is free. */
export async function openWire(port: number, socket: string): Promise<Wire> {
  const near = createServer({ allowHalfOpen: true }, (one) => join(one, connect({ port, host: '127.0.0.1', allowHalfOpen: true })));
  near.listen(socket);
  await once(near, 'listening');
  let far: ChildProcess | null = null;
  const unplug = async (): Promise<void> => {
    const ended = far !== null && far.exitCode === null && far.signalCode === null ? once(far, 'exit') : null;
    far?.kill('SIGKILL');
    far = null;
    await ended;
  };
  return {
    async plug(pid) {
      await unplug();
      const words = ['--pdeathsig', 'KILL', 'nsenter', '-t', `${pid}`, '--net', '--', process.execPath, import.meta.filename];
      far = spawn('setpriv', [...words, `${port}`, socket], { stdio: ['ignore', 'pipe', 'inherit'] });
      // Its first word: it listens.
      if (far.stdout !== null) await Promise.race([once(far.stdout, 'data'), once(far, 'exit')]);
    },
    unplug,
    async [Symbol.asyncDispose]() {
      await unplug();
      near.close();
    },
  };
}

function join(one: Socket, other: Socket): void {
  // Whoever breaks off ends both.
  pipeline(one, other, () => other.destroy());
  pipeline(other, one, () => one.destroy());
}

if (import.meta.main) {
  const [, , port, socket = ''] = process.argv;
  const far = createServer({ allowHalfOpen: true }, (one) => join(one, connect({ path: socket, allowHalfOpen: true })));
  far.listen(Number(port), '0.0.0.0', () => console.log('listening'));
}
