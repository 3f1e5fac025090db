/**
 * The other host that artifacts go to, on a port of its own and without any token: a form for each, or parts. Bodies are
 * hashed as they come and kept only when they are small, so that a gigabyte costs no memory.
 */
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Artifact, World } from './state.ts';

/** What is kept of an artifact's content, bytes. */
const KEEP = 1024 * 1024;
/** No form's fields are longer. */
const HEAD_LIMIT = 64 * 1024;

/** Asked before anything is done; true when somebody else has answered. */
export type Before = (message: IncomingMessage, response: ServerResponse, route: string) => boolean | Promise<boolean>;

export function createArtifactHost(world: () => World, before: Before): Server {
  return createServer((message, response) => {
    serve(world(), message, response, before).catch((error: unknown) => {
      if (!message.destroyed) console.error('artifact host of the stand-in for Buildkite:', error);
      message.socket.destroy();
    });
  });
}

async function serve(world: World, message: IncomingMessage, response: ServerResponse, before: Before): Promise<void> {
  const [kind = '', id = '', part = ''] = (message.url ?? '/').split('/').slice(1);
  const known = `${message.method} ${kind}`;
  const name = kind === 'upload' ? 'upload' : kind === 'parts' ? 'parts/:id/:part' : 'artifacts/:id';
  if (await before(message, response, `artifact-host/${name}`)) return;
  if (known === 'POST upload') return form(world, message, response);
  const artifact = [...world.jobs.values()].flatMap((job) => job.artifacts).find((each) => each.id === id);
  if (artifact === undefined) return answer(response, 404, 'Not found');
  if (known === 'PUT parts') {
    const digest = createHash('md5');
    const { size, content } = await read(message, digest);
    const etag = `"${digest.digest('hex')}"`;
    artifact.parts.set(Number(part), { etag, size, content });
    response.setHeader('etag', etag);
    return answer(response, 200, '');
  }
  if (known === 'GET artifacts') {
    const content = artifact.received?.content ?? null;
    if (content === null) return answer(response, 404, 'Its content was not kept');
    response.setHeader('content-type', artifact.contentType === '' ? 'application/octet-stream' : artifact.contentType);
    response.end(content);
    return;
  }
  answer(response, 405, 'Not allowed');
}

/** Fields first, the file last, as such hosts ask for. */
async function form(world: World, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const boundary = /boundary=(.+)$/.exec(message.headers['content-type'] ?? '')?.[1];
  if (boundary === undefined) return answer(response, 400, 'Not a form');
  const tail = Buffer.from(`\r\n--${boundary}--\r\n`);
  const length = Number(message.headers['content-length'] ?? Number.NaN);
  if (Number.isNaN(length)) return answer(response, 411, 'Length required');
  const digest = createHash('sha1');
  const kept: Buffer[] = [];
  let head = Buffer.alloc(0);
  let artifact: Artifact | null = null;
  let left = 0;
  let size = 0;
  for await (const piece of message as AsyncIterable<Buffer>) {
    let data = piece;
    if (artifact === null) {
      head = Buffer.concat([head, piece]);
      const at = startOfFile(head);
      if (at < 0) {
        if (head.length > HEAD_LIMIT) return answer(response, 400, 'The form has no file');
        continue;
      }
      artifact = meant(world, head.subarray(0, at).toString('utf8'));
      if (artifact === null) return answer(response, 403, 'Nothing like that was announced');
      left = length - at - tail.length;
      data = head.subarray(at);
    }
    const file = data.subarray(0, Math.max(0, left - size));
    size += file.length;
    digest.update(file);
    if (left <= KEEP) kept.push(file);
  }
  if (artifact === null || size !== left) return answer(response, 400, 'The form ended too early');
  artifact.received = { size, sha1: digest.digest('hex'), content: left <= KEEP ? Buffer.concat(kept) : null };
  answer(response, 201, '');
}

/** Where the file's bytes begin; -1 until its header has come. */
function startOfFile(head: Buffer): number {
  const named = head.indexOf('filename="');
  const end = named < 0 ? -1 : head.indexOf('\r\n\r\n', named);
  return end < 0 ? -1 : end + 4;
}

function meant(world: World, head: string): Artifact | null {
  const field = (name: string): string => new RegExp(`name="${name}"\r\n\r\n([^\r]*)\r\n`).exec(head)?.[1] ?? '';
  const batch = world.jobs.get(field('job'))?.batches.get(field('batch'));
  return batch?.find((each) => each.path === field('path')) ?? null;
}

async function read(
  message: IncomingMessage,
  digest: { update(data: Buffer): unknown },
): Promise<{ size: number; content: Buffer | null }> {
  const kept: Buffer[] = [];
  let size = 0;
  for await (const piece of message as AsyncIterable<Buffer>) {
    digest.update(piece);
    size += piece.length;
    if (size <= KEEP) kept.push(piece);
    else kept.length = 0;
  }
  return { size, content: size <= KEEP ? Buffer.concat(kept) : null };
}

function answer(response: ServerResponse, status: number, text: string): void {
  response.statusCode = status;
  response.end(text);
}
