/** The Engine's API over its unix socket with nothing in between: what tests and benches look at the world with. */
import { Agent, type IncomingMessage, request } from 'node:http';
import type { Readable } from 'node:stream';

export const machineSocket = '/var/run/docker.sock';

export interface EngineAnswer {
  readonly status: number;
  readonly body: unknown;
}

export interface Engine extends Disposable {
  readonly socket: string;
  /** One call, its answer read whole; JSON when it is JSON, else text. Rejects only when there is no answer. */
  call(method: string, path: string, body?: unknown): Promise<EngineAnswer>;
  /** Like `call`, and throws when the answer is not 2xx or 304. */
  ok(method: string, path: string, body?: unknown): Promise<unknown>;
  /** The answer as it comes; `body` may be a stream. */
  stream(method: string, path: string, body?: Readable): Promise<IncomingMessage>;
}

/** Speaks to the Engine behind `socket`; connections are kept and closed with it. */
export function engineAt(socket: string = machineSocket): Engine {
  const agent = new Agent({ keepAlive: true, maxSockets: 32 });

  function open(method: string, path: string, body: string | Readable | null): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const type = typeof body === 'string' ? 'application/json' : 'application/x-tar';
      const headers: Record<string, string | number> = { host: 'engine' };
      if (body !== null) headers['content-type'] = type;
      if (typeof body === 'string') headers['content-length'] = Buffer.byteLength(body);
      const call = request({ socketPath: socket, agent, method, path, headers }, resolve);
      call.on('error', reject);
      if (body === null || typeof body === 'string') call.end(body ?? undefined);
      else body.on('error', reject).pipe(call);
    });
  }

  async function call(method: string, path: string, body?: unknown): Promise<EngineAnswer> {
    const answer = await open(method, path, body === undefined ? null : JSON.stringify(body));
    const chunks: Buffer[] = [];
    for await (const chunk of answer) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    const isJson = (answer.headers['content-type'] ?? '').includes('json') && text !== '';
    return { status: answer.statusCode ?? 0, body: isJson ? JSON.parse(text) : text };
  }

  return {
    socket,
    call,
    async ok(method, path, body) {
      const answer = await call(method, path, body);
      if (answer.status < 300 || answer.status === 304) return answer.body;
      throw new Error(`${method} ${path} at ${socket}: ${answer.status} ${JSON.stringify(answer.body)}`);
    },
    stream: (method, path, body) => open(method, path, body ?? null),
    [Symbol.dispose]: () => agent.destroy(),
  };
}
