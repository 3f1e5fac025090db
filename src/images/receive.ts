/** Downloads: only over https, complete, within a limit, and without long pauses. Errors are ends of sentences for the caller. */
import { text } from 'node:stream/consumers';
import { isOwnAddress } from '../base/own-address.ts';
import { systemClock } from '../system/system-clock.ts';

export interface ReceiveOptions {
  readonly fetch?: typeof fetch;
  /** Most bytes. */
  readonly limit: number;
  /** ms in which a server must begin to answer, and continue; default 60000. */
  readonly patience?: number;
  readonly signal: AbortSignal;
}

const mostHops = 5;
const redirects: ReadonlySet<number> = new Set([301, 302, 303, 307, 308]);

/**
 * Passes the contents of `url` to `use`; `total` is their size in bytes, 0 when unknown. Returns its result if everything
 * arrived. @throws Error whose message is the end of a sentence; the reason of `signal` when that aborts
 */
export async function receive<T>(
  url: URL,
  { fetch: get = fetch, limit, patience = 60_000, signal }: ReceiveOptions,
  use: (body: AsyncIterable<Uint8Array>, total: number, signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const stalled = new AbortController();
  const watch = (): (() => void) =>
    systemClock.after(patience, () => stalled.abort(new Error(`no data arrived for ${patience / 1000} s`)));
  let callOff = watch();
  const either = AbortSignal.any([signal, stalled.signal]);
  try {
    const answer = await follow(url, get, either);
    if (!answer.ok || answer.body === null) {
      await answer.body?.cancel();
      throw new Error(`it answered ${answer.status}`);
    }
    const total = Number(answer.headers.get('content-length') ?? 0);
    let bytes = 0;
    const body: AsyncIterable<Uint8Array> = answer.body;
    const seen = async function* (): AsyncGenerator<Uint8Array> {
      for await (const chunk of body) {
        callOff();
        // Not after its end: nobody would call it off.
        if (!stalled.signal.aborted) callOff = watch();
        bytes += chunk.length;
        if (bytes > limit) throw new Error(`it has more than ${limit} bytes`);
        yield chunk;
      }
    };
    const used = await use(seen(), total, either);
    if (total > 0 && bytes !== total && answer.headers.get('content-encoding') === null)
      throw new Error(`only ${bytes} of ${total} bytes arrived`);
    return used;
  } catch (error) {
    signal.throwIfAborted();
    throw stalled.signal.aborted ? stalled.signal.reason : error;
  } finally {
    callOff();
    // After a failure, ends the connection although the rest is unread.
    stalled.abort();
  }
}

/** A small text, such as a list of checksums. @throws as `receive` */
export async function receiveText(url: URL, options: ReceiveOptions): Promise<string> {
  return receive(url, options, text);
}

/** Why nothing is downloaded from there, as the end of a sentence. http is safe only to an address of this host. */
export async function addressProblem(address: string): Promise<string | null> {
  if (!URL.canParse(address)) return 'the address is invalid';
  const { protocol, hostname } = new URL(address);
  if (protocol === 'https:' || (protocol === 'http:' && (await isOwnAddress(hostname.replace(/^\[|\]$/g, ''))))) return null;
  return 'only https is safe for this download';
}

/** The reason of an error, for the end of a sentence. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // Node's fetch puts it in the cause.
  return error.cause instanceof Error ? error.cause.message || error.message : error.message;
}

/** The answer after all redirections. Each of them must be safe: one without https is enough to get another file. */
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
    // The query may be a signature, which gives anyone access to the file.
    if (problem !== null) throw new Error(`it was redirected to ${url.origin}${url.pathname}, but ${problem}`);
  }
}
