/**
 * How many connections of a server one client may have. A client that opens thousands must not displace others, even at the same
 * address. A connection without a token counts for its address, where the oldest makes room for the newest. With a token it counts
 * for who that is of, and no stranger can displace it.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

const connectionLimits = {
  /** Per address, without a token. */
  unknownFrom: 64,
  unknownInAll: 1024,
  /** Per caller: more than the calls that an agent with its job may make at a time. */
  ofCaller: 384,
  /** Per connection, which is then closed. */
  calls: 1000,
};
export type ConnectionLimits = Readonly<typeof connectionLimits>;

interface Entry {
  /** Its caller, or its address and `unknown`. */
  groups: readonly string[];
  calls: number;
}

const unknown = 'unknown';

export function createConnections(limits: ConnectionLimits = connectionLimits) {
  const entries = new Map<Socket, Entry>();
  let drained = Promise.withResolvers<void>();
  const groups = new Map<string, Set<Socket>>();
  /** With TLS a request has another socket than the connection. */
  const peers = new Map<string, Socket>();

  /** Counts it only in these from now on. */
  const regroup = (socket: Socket, entry: Entry, names: readonly string[]): void => {
    for (const name of entry.groups) {
      const group = groups.get(name);
      if (group?.delete(socket) === true && group.size === 0) groups.delete(name);
    }
    for (const name of names) groups.set(name, (groups.get(name) ?? new Set()).add(socket));
    entry.groups = names;
  };
  const sizeOf = (name: string): number => groups.get(name)?.size ?? 0;
  const oldest = (name: string): Socket | undefined => groups.get(name)?.values().next().value;
  const forget = (socket: Socket): void => {
    const entry = entries.get(socket);
    if (entry !== undefined) regroup(socket, entry, []);
    if (entries.delete(socket) && entries.size === 0) drained.resolve();
  };
  const raw = (socket: Socket): Socket => (entries.has(socket) ? socket : (peers.get(peerOf(socket)) ?? socket));
  const close = (socket: Socket | undefined): void => {
    if (socket === undefined) return;
    forget(socket);
    socket.destroy();
  };

  return {
    watch(server: Server): void {
      server.maxRequestsPerSocket = limits.calls;
      server.on('connection', (socket) => {
        const from = `from ${socket.remoteAddress ?? ''}`;
        const peer = peerOf(socket);
        peers.set(peer, socket);
        const entry: Entry = { groups: [], calls: 0 };
        entries.set(socket, entry);
        regroup(socket, entry, [from, unknown]);
        socket.once('close', () => {
          forget(socket);
          if (peers.get(peer) === socket) peers.delete(peer);
        });
        if (sizeOf(from) > limits.unknownFrom) close(oldest(from));
        else if (sizeOf(unknown) > limits.unknownInAll) close(oldest(unknown));
      });
    },
    /** The connection makes a call as this caller, until `answer` closes. May close it, or another of the caller. */
    known(of: Socket, caller: string, answer: ServerResponse | Duplex): void {
      const socket = raw(of);
      const entry = entries.get(socket);
      if (entry === undefined) return;
      entry.calls += 1;
      answer.once('close', () => {
        entry.calls -= 1;
      });
      if (!entry.groups.includes(unknown)) return;
      const its = `of ${caller}`;
      regroup(socket, entry, [its]);
      if (sizeOf(its) <= limits.ofCaller) return;
      close([...(groups.get(its) ?? [])].find((each) => entries.get(each)?.calls === 0) ?? socket);
    },
    /** Resolves once none is left. */
    async drained(): Promise<void> {
      drained = Promise.withResolvers();
      if (entries.size > 0) await drained.promise;
    },
    /** Also those that have said nothing yet, which Node does not know before their handshake. */
    closeAll(): void {
      for (const socket of [...entries.keys()]) close(socket);
    },
  };
}

function peerOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}

/**
 * Ends a connection whose next request comes before the last was answered: Node parses hundreds of pipelined ones ahead and keeps
 * an answer for each, without back-pressure once the client has closed or does not read. That exhausts the heap. Neither agents nor
 * browsers and proxies pipeline.
 */
export function oneAtATime(handle: (request: IncomingMessage, response: ServerResponse) => void): typeof handle {
  const answering = new WeakSet<Socket>();
  return (request, response) => {
    const { socket } = request;
    if (answering.has(socket)) {
      socket.destroy();
      return;
    }
    answering.add(socket);
    response.once('close', () => answering.delete(socket));
    handle(request, response);
  };
}
