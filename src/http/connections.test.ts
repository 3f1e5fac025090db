import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { describe, expect, it } from 'vitest';
import { listening, stopped } from '../../test/kit/filter.ts';
import { type ConnectionLimits, createConnections } from './connections.ts';

/** A server where `/KEY` makes a connection known as of agent `KEY`, and answers; but `/slow/KEY` never does. */
async function bench(limits: Partial<ConnectionLimits>) {
  const connections = createConnections({ unknownFrom: 100, unknownInAll: 100, ofCaller: 100, calls: 100, ...limits });
  const { server, port } = await listening((request, response) => {
    const agent = (request.url ?? '').split('/').at(-1) ?? '';
    if (agent !== '') connections.known(request.socket, agent, response);
    if (!request.url?.startsWith('/slow')) response.end('here');
  });
  connections.watch(server);
  const sockets: Socket[] = [];
  return {
    /** Whether it is answered, or closed. A path of null: says nothing. */
    async dial(path: string | null, from = '127.0.0.1') {
      const socket = connect({ port, host: '127.0.0.1', localAddress: from }).on('error', () => {});
      sockets.push(socket);
      const closed = once(socket, 'close').then(() => 'closed' as const);
      await Promise.race([once(socket, 'connect'), closed]);
      const say = async (what: string) => {
        socket.write(`GET ${what} HTTP/1.1\r\nHost: x\r\n\r\n`);
        return await Promise.race([once(socket, 'data').then(() => 'answered' as const), closed]);
      };
      if (path?.startsWith('/slow')) socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
      return { socket, closed, say, first: path === null || path.startsWith('/slow') ? null : await say(path) };
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await stopped(server);
    },
  };
}

describe('connections without a token', () => {
  it('make room for the next one of their address: the oldest first', async () => {
    await using here = await bench({ unknownFrom: 2 });
    const [first, second, other] = [await here.dial(null), await here.dial(null), await here.dial(null, '127.0.0.2')];
    const third = await here.dial('/a');
    expect(third.first).toBe('answered');
    expect(await first.closed).toBe('closed');
    expect(await second.say('/a')).toBe('answered');
    expect(await other.say('/a')).toBe('answered');
  });

  it('make room in all, too', async () => {
    await using here = await bench({ unknownInAll: 2 });
    const [first] = [await here.dial(null, '127.0.0.3'), await here.dial(null, '127.0.0.4')];
    expect((await here.dial('/a')).first).toBe('answered');
    expect(await first.closed).toBe('closed');
  });

  it('never take the place of an agent’s', async () => {
    await using here = await bench({ unknownFrom: 2 });
    const agent = await here.dial('/a');
    for (let at = 0; at < 10; at++) await here.dial(null);
    expect(await agent.say('/a')).toBe('answered');
  });
});

describe('connections of one agent', () => {
  it('make room for its next one, where they are idle, and for no other agent’s', async () => {
    await using here = await bench({ ofCaller: 2 });
    const other = await here.dial('/b');
    const slow = await here.dial('/slow/a');
    const idle = await here.dial('/a');
    expect((await here.dial('/a')).first).toBe('answered');
    expect(await idle.closed).toBe('closed');
    expect(slow.socket.closed).toBe(false);
    expect(await other.say('/b')).toBe('answered');
  });

  it('end after so many calls', async () => {
    await using here = await bench({ calls: 2 });
    const one = await here.dial('/a');
    expect(await one.say('/a')).toBe('answered');
    expect(await one.closed).toBe('closed');
  });

  it('are no more than it may have', async () => {
    await using here = await bench({ ofCaller: 2 });
    for (let at = 0; at < 2; at++) await here.dial('/slow/a');
    expect((await here.dial('/a')).first).toBe('closed');
  });
});
