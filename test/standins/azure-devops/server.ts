/** The door as a port: requests from the network go in, answers go back as bytes. */
import { createReadStream } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type Answered, type Door, enter } from './door.ts';

const BODY_LIMIT = 64 * 1024 * 1024;

/** `door`: asked for it with each request, since its URL is known only once the server listens. */
export function createServerOf(door: () => Door): Server {
  return createServer((message, response) => {
    // A fault of the stand-in itself must be seen as one, not as a service that is down.
    serve(door(), message, response).catch((error: unknown) => {
      console.error('stand-in for Azure DevOps:', error);
      message.socket.destroy();
    });
  });
}

async function serve(door: Door, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  const { method = 'GET', url = '/', headers } = message;
  const from = message.socket.remoteAddress ?? '';
  const answer = await enter(door, { method, url, headers, from, body: () => bodyOf(message), signal: gone.signal });
  if (answer === 'silence') return;
  if (answer === 'cut') return void message.socket.destroy();
  send(response, answer);
}

function send(response: ServerResponse, { status, headers, text, file, isHalf }: Answered): void {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  response.statusCode = status;
  if (file !== null) return void createReadStream(file).pipe(response);
  if (!isHalf) return void response.end(text);
  response.setHeader('content-length', Buffer.byteLength(text) + 1);
  response.write(text.slice(0, Math.ceil(text.length / 2)));
}

/** Null when the other side hung up, or sends too much. */
async function bodyOf(message: IncomingMessage): Promise<Buffer | null> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of message) {
      const bytes = Buffer.isBuffer(chunk) ? chunk : Buffer.from(String(chunk));
      size += bytes.length;
      if (size > BODY_LIMIT) return null;
      chunks.push(bytes);
    }
  } catch {
    return null;
  }
  return Buffer.concat(chunks);
}
