/**
 * How much of the filter one sandbox may use: connections, and calls by time. A sandbox that opens thousands must not displace
 * others, even at the same address. A connection without a token counts for its address, where the oldest makes room for the
 * newest. With a token it counts for its agent, and no stranger can displace it.
 */
import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

export const connectionLimits = {
  /** Per address, without a token. */
  unknownFrom: 64,
  unknownInAll: 1024,
  /** Per agent with its job: more than the calls that it may make at a time. */
  ofAgent: 384,
  /** Per connection, which is then closed. */
  calls: 1000,
};
export type ConnectionLimits = Readonly<typeof connectionLimits>;

interface Entry {
  /** Its agent, or its address and `unknown`. */
  groups: readonly string[];
  calls: number;
}

const unknown = 'unknown';

export function createConnections(limits: ConnectionLimits = connectionLimits) {
  const entries = new Map<Socket, Entry>();
  const groups = new Map<string, Set<Socket>>();

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
    entries.delete(socket);
  };
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
        const entry: Entry = { groups: [], calls: 0 };
        entries.set(socket, entry);
        regroup(socket, entry, [from, unknown]);
        socket.once('close', () => forget(socket));
        if (sizeOf(from) > limits.unknownFrom) close(oldest(from));
        else if (sizeOf(unknown) > limits.unknownInAll) close(oldest(unknown));
      });
    },
    /** The connection makes a call as this agent. May close it, or another of the agent. */
    known(socket: Socket, agent: string, response: ServerResponse): void {
      const entry = entries.get(socket);
      if (entry === undefined) return;
      entry.calls += 1;
      response.once('close', () => {
        entry.calls -= 1;
      });
      if (!entry.groups.includes(unknown)) return;
      const its = `agent ${agent}`;
      regroup(socket, entry, [its]);
      if (sizeOf(its) <= limits.ofAgent) return;
      close([...(groups.get(its) ?? [])].find((each) => entries.get(each)?.calls === 0) ?? socket);
    },
  };
}

export type Rate = ReturnType<typeof createRate>;

/** A token bucket (generic cell rate algorithm): calls beyond a burst wait; none is refused. */
export function createRate(perSecond: number, burst: number) {
  const each = 1000 / perSecond;
  let due = Number.NEGATIVE_INFINITY;
  return {
    /** @param now monotonic, ms @returns how long this call must wait, ms */
    take(now: number): number {
      const wait = Math.max(0, due - burst * each - now);
      due = Math.max(due, now) + each;
      return wait;
    },
  };
}
