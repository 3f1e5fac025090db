/** Answers that no service should give end the call, never the broker, and nobody waits for what will not come. */
import { once } from 'node:events';
import { createServer } from 'node:net';
import { describe, expect, it } from 'vitest';
import { type GatewayBench, gatewayBench, jobId } from './testing-gateway.ts';

/** A gateway whose agent's service says these bytes to each call, and closes. */
async function before(lines: string): Promise<GatewayBench> {
  const odd = createServer((socket) => {
    socket.on('error', () => {}).once('data', () => socket.end(`${lines}\r\n\r\n`));
  });
  odd.listen(0, '127.0.0.1');
  await once(odd, 'listening');
  const { port } = odd.address() as { port: number };
  const here = await gatewayBench(() => {});
  here.held('a', { shown: { phase: 'running' }, endpoint: `http://127.0.0.1:${port}/v3` });
  const { [Symbol.asyncDispose]: end } = here;
  return {
    ...here,
    async [Symbol.asyncDispose]() {
      await end();
      odd.close();
    },
  };
}

const statuses = [
  'HTTP/1.1 000 Odd',
  'HTTP/1.1 099 Odd',
  'HTTP/1.1 600 Odd',
  'HTTP/1.1 999 Odd',
  'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x',
  'HTTP/1.1 101 Switching Protocols',
  'HTTP/1.1 103 Early Hints',
];

describe.each(statuses)('a service that answers %j', (line) => {
  it.each([
    { how: 'streamed', method: 'POST', path: `/v3/jobs/${jobId}/data/get`, body: {} },
    { how: 'read whole', method: 'GET', path: `/v3/jobs/${jobId}`, body: undefined },
  ])('has failed for a call that is $how', async ({ method, path, body }) => {
    await using here = await before(line);
    const refused = { status: 502, json: { message: expect.stringMatching(/service|answer|Cannot send/) } };
    expect(await here.call(method, path, here.token('job', 'a'), body)).toMatchObject(refused);
  });
});
