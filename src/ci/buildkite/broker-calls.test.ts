import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { scratch } from '../../../test/support/scratch.ts';
import type { BrokerEvent } from './broker/protocol.ts';
import { brokerCalls, lookAtBroker } from './broker-calls.ts';

const never = new AbortController().signal;
const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

/** A broker that answers so. */
async function at(listener: RequestListener): Promise<string> {
  const dir = scratch();
  const socket = join(dir.path, 'broker.sock');
  const server = createServer(listener);
  server.listen(socket);
  await once(server, 'listening');
  closing.push(async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
    dir[Symbol.dispose]();
  });
  return socket;
}

const answering = (status: number, body: string): Promise<string> =>
  at((request, response) => void request.resume().on('end', () => response.writeHead(status).end(body)));
const ping = z.object({ pong: z.string() });

describe('a request', () => {
  it('carries its body and gives the answer', async () => {
    const socket = await at((request, response) => {
      let body = '';
      request.on('data', (piece) => (body += piece));
      request.on('end', () => response.end(JSON.stringify({ pong: `${request.method} ${request.url} ${body}` })));
    });
    expect(await brokerCalls(socket).post('/v1/ping', { a: 1 }, ping, never)).toEqual({ pong: 'POST /v1/ping {"a":1}' });
  });

  it("fails with the broker's own words where it refuses", async () => {
    const socket = await answering(
      404,
      JSON.stringify({ code: 'E_AGENT_UNKNOWN', message: 'No such agent.', hint: 'Look.', retry: false }),
    );
    const refused = brokerCalls(socket).post('/v1/agents/x/hand', {}, ping, never);
    await expect(refused).rejects.toMatchObject({ code: 'E_BROKER', message: 'No such agent.', hint: 'Look.', retry: false });
  });

  it('may be tried again where the broker says so', async () => {
    const socket = await answering(409, JSON.stringify({ code: 'E_API_REQUEST', message: 'Not now.', retry: true }));
    await expect(brokerCalls(socket).post('/', {}, ping, never)).rejects.toMatchObject({ message: 'Not now.', retry: true });
  });

  it.each([
    [200, '{"other":1}', 'does not understand'],
    [200, '{"pong":', 'broke off its answer'],
    [502, '<html>', 'broke off its answer'],
    [500, '{}', 'answers with status 500'],
  ])('may be tried again where the answer is %i %s', async (status, body, words) => {
    const socket = await answering(status, body);
    await expect(brokerCalls(socket).post('/', {}, ping, never)).rejects.toMatchObject({
      ...{ code: 'E_BROKER', retry: true, message: expect.stringContaining(words) },
    });
  });

  it('may be tried again where nobody listens', async () => {
    using dir = scratch();
    const gone = brokerCalls(join(dir.path, 'broker.sock')).post('/', {}, ping, never);
    await expect(gone).rejects.toMatchObject({
      code: 'E_BROKER',
      retry: true,
      message: expect.stringContaining('cannot be reached'),
    });
  });

  it('is given up where the broker says nothing', async () => {
    const socket = await at(() => {});
    const silent = brokerCalls(socket, { patience: 50 }).post('/', {}, ping, never);
    await expect(silent).rejects.toMatchObject({ code: 'E_BROKER', message: expect.stringContaining('does not answer within') });
  });

  it('ends when it is called off', async () => {
    const socket = await at(() => {});
    await expect(brokerCalls(socket).post('/', {}, ping, AbortSignal.timeout(20))).rejects.toBeDefined();
  });
});

describe('the stream of events', () => {
  const hear = async (socket: string, options = {}): Promise<{ heard: string[]; how: unknown }> => {
    const heard: string[] = [];
    const how = await brokerCalls(socket, options)
      .events((event: BrokerEvent) => void heard.push(event.kind), never)
      .then(
        () => 'ended',
        (error: unknown) => error,
      );
    return { heard, how };
  };

  it('tells each line, in whatever pieces they come, and ends with the stream', async () => {
    const socket = await at((_, response) => {
      response.write('{"kind":"al');
      setImmediate(() => {
        response.write('ive"}\n\n{"kind":"alive"}\n');
        response.end();
      });
    });
    expect(await hear(socket)).toEqual({ heard: ['alive', 'alive'], how: 'ended' });
  });

  it('ends where the broker was killed in the middle of a line', async () => {
    const socket = await at((_, response) => {
      response.write('{"kind":"alive"}\n{"kind":"agent","ag');
      setTimeout(() => response.destroy(), 20);
    });
    expect(await hear(socket)).toEqual({ heard: ['alive'], how: 'ended' });
    const shut = await at((_, response) => void response.end('{"kind":"alive"}\n{"kind":"agent","ag'));
    expect(await hear(shut)).toEqual({ heard: ['alive'], how: 'ended' });
  });

  it('ends where it gives no sign of life', async () => {
    const socket = await at((_, response) => void response.write('{"kind":"alive"}\n'));
    expect(await hear(socket, { silence: 60 })).toMatchObject({
      ...{ heard: ['alive'], how: { code: 'E_BROKER', retry: true, message: expect.stringContaining('no sign of life') } },
    });
  });

  it('is none where the broker does not know it', async () => {
    const socket = await answering(404, '{}');
    expect(await hear(socket)).toMatchObject({ heard: [], how: { code: 'E_BROKER', retry: true } });
  });

  it('ends with what who listens has thrown', async () => {
    const socket = await at((_, response) => void response.write('{"kind":"alive"}\n'));
    const thrown = new Error('not like this');
    const heard = brokerCalls(socket).events(() => {
      throw thrown;
    }, never);
    await expect(heard).rejects.toBe(thrown);
  });

  it('ends when it is called off', async () => {
    const socket = await at((_, response) => void response.write('{"kind":"alive"}\n'));
    const abort = new AbortController();
    await brokerCalls(socket)
      .events(() => abort.abort(), abort.signal)
      .catch(() => {});
    expect(abort.signal.aborted).toBe(true);
  });
});

it('looks at a broker whoever follows it, and says when there is none to be understood', async () => {
  const state = { protocol: 1, version: '1.0.0', pid: 1, port: 7070, agents: [], services: [] };
  expect(await lookAtBroker(await answering(200, JSON.stringify(state)), never)).toEqual(state);
  await expect(lookAtBroker(await answering(200, '{"protocol":"x"}'), never)).rejects.toMatchObject({ code: 'E_BROKER' });
});
