/** The door as a port: requests from the network go in, answers go back as bytes. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type Answered, type Door, enter } from './door.ts';

const BODY_LIMIT = 64 * 1024 * 1024;

export function createServerOf(door: Door): Server {
  return createServer((message, response) => {
    // A fault of the stand-in itself must be seen as one, not as a service that is down.
    serve(door, message, response).catch((error: unknown) => {
      console.error('stand-in for Buildkite:', error);
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
  send(message, response, answer);
}

function send(message: IncomingMessage, response: ServerResponse, { status, headers, text, isHalf }: Answered): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  if (isHalf) response.write(text.slice(0, Math.ceil(text.length / 2)), () => message.socket.destroy());
  else response.end(text);
}

/** Null when it is too long, or the other side went away. */
async function bodyOf(message: IncomingMessage): Promise<Buffer | null> {
  const pieces: Buffer[] = [];
  let length = 0;
  try {
    for await (const piece of message as AsyncIterable<Buffer>) {
      length += piece.length;
      if (length > BODY_LIMIT) {
        message.socket.destroy();
        return null;
      }
      pieces.push(piece);
    }
  } catch {
    return null;
  }
  return Buffer.concat(pieces);
}
