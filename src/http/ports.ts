/**
 * The ports of this process, which outlive the parts that answer there: a port that is closed for a moment can be taken by any
 * program of the host, also by a job, and browsers and scripts then talk to that. A changed config continues with what listens
 * already, and so does the next daemon with what systemd has kept for it (`onejob.socket`).
 */
import { once } from 'node:events';
import type http from 'node:http';
import type https from 'node:https';
import { type AddressInfo, createServer, type Server } from 'node:net';
import type { Log } from '../base/log.ts';
import { isLoopback, type Listen } from './address.ts';

export interface Port {
  readonly address: AddressInfo;
  /** Passes connections on to `server` from now on; it never listens itself. */
  serve(server: http.Server | https.Server): void;
  /** Connections are refused until somebody takes the port again. */
  release(): void;
}

interface Kept extends Port {
  readonly listener: Server;
  readonly isInherited: boolean;
  isTaken: boolean;
}

export interface Ports {
  /** Listens there, or continues to. Others' port: the system's error. */
  take(listen: Listen): Promise<Port>;
  /** Whether this process listens there. */
  has(listen: Listen): boolean;
  /** Where the service manager keeps ports open for the next daemon. */
  readonly inherited: readonly Listen[];
  isInherited(listen: Listen): boolean;
  /** What the config names: it stays open, also while nobody answers there. */
  want(listens: readonly Listen[]): void;
  /** Closes those that nobody answers at, but for what the config names and the service manager keeps anyway. */
  closeUnused(): void;
  close(): void;
}

/** `inherited`: descriptors that listen, from the service manager. */
export async function openPorts(inherited: readonly number[], log: Pick<Log, 'info'>): Promise<Ports> {
  const kept = new Set<Kept>();
  let wanted: readonly Listen[] = [];

  const keep = async (where: Listen | { readonly fd: number }): Promise<Kept> => {
    let server: http.Server | https.Server | null = null;
    // As http.Server has them.
    const listener = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      if (server === null) socket.destroy();
      else server.emit('connection', socket);
    });
    await once(listener.listen(where), 'listening');
    const one: Kept = {
      listener,
      address: listener.address() as AddressInfo,
      isInherited: 'fd' in where,
      isTaken: false,
      serve(by) {
        server = by;
        // It counts time limits of its connections from then on.
        by.emit('listening');
      },
      release() {
        server = null;
        one.isTaken = false;
      },
    };
    kept.add(one);
    return one;
  };
  const close = (one: Kept): void => {
    kept.delete(one);
    one.listener.close();
  };
  const find = (listen: Listen): Kept | undefined => [...kept].find((one) => isAt(one.address, listen));

  for (const fd of inherited)
    await keep({ fd }).catch((error: unknown) => log.info('a socket of the service manager is not used', { fd, error }));

  return {
    async take(listen) {
      const found = find(listen);
      const one = found === undefined || found.isTaken ? await keep(listen) : found;
      one.isTaken = true;
      return one;
    },
    has: (listen) => find(listen) !== undefined,
    get inherited() {
      return [...kept].filter(({ isInherited }) => isInherited).map(({ address: { address: host, port } }) => ({ host, port }));
    },
    isInherited: (listen) => find(listen)?.isInherited === true,
    want(listens) {
      wanted = listens;
    },
    closeUnused() {
      for (const one of [...kept])
        if (!one.isTaken && !one.isInherited && !wanted.some((listen) => isAt(one.address, listen))) close(one);
    },
    close() {
      for (const one of [...kept]) close(one);
    },
  };
}

function isAt({ address, port }: AddressInfo, listen: Listen): boolean {
  return port === listen.port && (listen.host === 'localhost' ? isLoopback(address) : address === listen.host);
}
