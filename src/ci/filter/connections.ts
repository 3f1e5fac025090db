/**
 * How many connections there may be: a sandbox that opens thousands shall not take those of the others, also where all of them
 * come from one address. Until a connection has called with a token nobody knows whose it is: then the oldest of its address
 * makes room for the newest. Once it has, it is counted with its agent, and no stranger can displace it.
 */
import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

export interface Connections {
  /** Counts what comes in there, over all doors. */
  watch(server: Server): void;
  /** The connection calls with a token of this agent, until the call has been answered. May close it, or another one of the agent. */
  known(socket: Socket, agent: string, response: ServerResponse): void;
}

export interface ConnectionLimits {
  /** Of one address, with no token yet. */
  readonly unknownFrom: number;
  readonly unknownInAll: number;
  /** Of one agent and its job: more than the calls it may make at a time. */
  readonly ofAgent: number;
  /** Of one connection, then it is closed. */
  readonly calls: number;
}

export const connectionLimits: ConnectionLimits = { unknownFrom: 64, unknownInAll: 1024, ofAgent: 384, calls: 1000 };

interface Entry {
  readonly from: string;
  agent: string | null;
  /** Calls that are not answered. */
  calls: number;
}

export function createConnections(limits: ConnectionLimits = connectionLimits): Connections {
  const entries = new Map<Socket, Entry>();
  const unknown = new Map<Socket, Entry>();
  const unknownFrom = createGroups();
  const ofAgent = createGroups();

  const forget = (socket: Socket): void => {
    const entry = entries.get(socket);
    if (entry === undefined) return;
    entries.delete(socket);
    if (entry.agent !== null) ofAgent.remove(entry.agent, socket);
    else if (unknown.delete(socket)) unknownFrom.remove(entry.from, socket);
  };
  const close = (socket: Socket | undefined): void => {
    if (socket === undefined) return;
    forget(socket);
    socket.destroy();
  };

  return {
    watch(server) {
      server.maxRequestsPerSocket = limits.calls;
      server.on('connection', (socket) => {
        const entry: Entry = { from: socket.remoteAddress ?? '', agent: null, calls: 0 };
        entries.set(socket, entry);
        unknown.set(socket, entry);
        const mates = unknownFrom.add(entry.from, socket);
        socket.once('close', () => forget(socket));
        if (mates.size > limits.unknownFrom) close(first(mates));
        else if (unknown.size > limits.unknownInAll) close(first(unknown.keys()));
      });
    },
    known(socket, agent, response) {
      const entry = entries.get(socket);
      if (entry === undefined) return;
      entry.calls += 1;
      response.once('close', () => {
        entry.calls -= 1;
      });
      if (entry.agent !== null) return;
      unknown.delete(socket);
      unknownFrom.remove(entry.from, socket);
      entry.agent = agent;
      const mates = ofAgent.add(agent, socket);
      if (mates.size <= limits.ofAgent) return;
      close(first(mates, (each) => entries.get(each)?.calls === 0) ?? socket);
    },
  };
}

interface Groups {
  /** The group it is in then, the oldest first. */
  add(name: string, socket: Socket): ReadonlySet<Socket>;
  remove(name: string, socket: Socket): void;
}

function createGroups(): Groups {
  const groups = new Map<string, Set<Socket>>();
  return {
    add(name, socket) {
      const group = groups.get(name) ?? new Set();
      groups.set(name, group.add(socket));
      return group;
    },
    remove(name, socket) {
      const group = groups.get(name);
      if (group?.delete(socket) === true && group.size === 0) groups.delete(name);
    },
  };
}

function first(sockets: Iterable<Socket>, fits: (socket: Socket) => boolean = () => true): Socket | undefined {
  for (const socket of sockets) if (fits(socket)) return socket;
  return undefined;
}
