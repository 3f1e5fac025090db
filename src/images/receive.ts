/**
 * A file from a web server: over https alone, from a server that goes on sending, whole, and not larger than it may be. What is
 * thrown here are plain errors whose message is the end of a sentence; the caller says what was tried.
 */
import { Readable, Transform } from 'node:stream';
import { isOwnAddress } from '../own-address.ts';

export interface ReceiveOptions {
  readonly fetch?: typeof fetch;
  /** Bytes that it may have. */
  readonly limit: number;
  /** ms in which a server must begin to answer, and then go on; default 60000. */
  readonly patience?: number;
  readonly signal: AbortSignal;
}

/** How often a server may send on. */
const mostHops = 5;
const redirects: ReadonlySet<number> = new Set([301, 302, 303, 307, 308]);

/**
 * Hands what is at `url` to `use`: `total` is its size in bytes as the server says it, 0 when it does not. What `use` answers is
 * kept only when all came. @throws Error the reason, for the end of a sentence; the reason of `signal` when that aborts
 */
export async function receive<T>(
  url: URL,
  { fetch: get = fetch, limit, patience = 60_000, signal }: ReceiveOptions,
  use: (body: Readable, total: number, signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const stalled = new AbortController();
  const timer = setTimeout(() => stalled.abort(new Error(`no data arrived for ${patience / 1000} s`)), patience);
  const either = AbortSignal.any([signal, stalled.signal]);
  try {
    const answer = await follow(url, get, either);
    if (!answer.ok || answer.body === null) {
      await answer.body?.cancel();
      throw new Error(`it answered ${answer.status}`);
    }
    const total = Number(answer.headers.get('content-length') ?? 0);
    let bytes = 0;
    const seen = new Transform({
      transform(chunk: Uint8Array, _encoding, done) {
        timer.refresh();
        bytes += chunk.length;
        done(bytes > limit ? new Error(`it has more than ${limit} bytes`) : null, chunk);
      },
    });
    const body = Readable.fromWeb(answer.body as never);
    body.once('error', (error) => seen.destroy(error));
    const used = await use(body.pipe(seen), total, either).finally(() => body.destroy());
    if (total > 0 && bytes !== total && answer.headers.get('content-encoding') === null)
      throw new Error(`only ${bytes} of ${total} bytes arrived`);
    return used;
  } catch (error) {
    signal.throwIfAborted();
    throw stalled.signal.aborted ? stalled.signal.reason : error;
  } finally {
    clearTimeout(timer);
  }
}

/** A small text, such as a list of checksums. @throws as `receive` */
export async function receiveText(url: URL, options: ReceiveOptions): Promise<string> {
  return receive(url, options, async (body) => {
    const parts: Buffer[] = [];
    for await (const part of body) parts.push(Buffer.from(part));
    return Buffer.concat(parts).toString('utf8');
  });
}

/** Why nothing is fetched from there, as the end of a sentence. On the way to an address of this host nobody can give another file. */
export async function addressProblem(address: string): Promise<string | null> {
  if (!URL.canParse(address)) return 'the address is invalid';
  const { protocol, hostname } = new URL(address);
  if (protocol === 'https:' || (protocol === 'http:' && (await isOwnAddress(hostname.replace(/^\[|\]$/g, ''))))) return null;
  return 'only https is safe for this download';
}

/** What went wrong, in the words of whoever knows it. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // Node's fetch says why only in the cause.
  return error.cause instanceof Error ? error.cause.message || error.message : error.message;
}

/** What is there at the end of the way, each part of which is judged: one without https is enough to be given another file. */
async function follow(from: URL, get: typeof fetch, signal: AbortSignal): Promise<Response> {
  let url = from;
  for (let hops = 0; ; hops++) {
    const answer = await get(url, { redirect: 'manual', signal });
    const location = redirects.has(answer.status) ? answer.headers.get('location') : null;
    if (location === null) return answer;
    await answer.body?.cancel();
    if (hops === mostHops) throw new Error(`it was redirected more than ${mostHops} times`);
    if (!URL.canParse(location, url.href)) throw new Error('it was redirected to an invalid address');
    url = new URL(location, url);
    const problem = await addressProblem(url.href);
    // What follows the path may be a signature, which opens the file to whoever reads it.
    if (problem !== null) throw new Error(`it was redirected to ${url.origin}${url.pathname}, but ${problem}`);
  }
}
