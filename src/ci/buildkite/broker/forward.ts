/**
 * Carries one call to a service: streamed both ways with the memory of a few buffers, or whole where something of it must be
 * read. An answer that breaks off upstream breaks off here: nobody is ever handed half of one as if it were all.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import { pipeline } from 'node:stream';
import { OnejobError } from '../../../errors.ts';
import { answerHeaders } from './forward-headers.ts';
import { refuse } from './local-answers.ts';

/** Connections to services and to where artifacts go, kept while they are of use. */
export interface Upstreams {
  open(target: Target, signal: AbortSignal): http.ClientRequest;
  close(): void;
}

export interface Target {
  readonly method: string;
  /** `http:` or `https:`, with the port; its path is not used. */
  readonly origin: URL;
  /** Byte for byte, with its query. */
  readonly path: string;
  readonly headers: http.OutgoingHttpHeaders;
}

export function createUpstreams(idleMs: number): Upstreams {
  // Kept shorter than most servers keep theirs, so that seldom a call is sent into a connection that is being closed.
  const options = { keepAlive: true, maxFreeSockets: 64, scheduling: 'lifo', timeout: idleMs } as const;
  const agents = { 'http:': new http.Agent(options), 'https:': new https.Agent(options) };
  return {
    open({ method, origin, path, headers }, signal) {
      const { protocol, hostname, port, host } = origin;
      const common = {
        method,
        hostname: hostname.replace(/^\[(.*)\]$/, '$1'),
        ...(port === '' ? {} : { port }),
        path,
        headers: { ...headers, host },
        signal,
      };
      if (protocol === 'https:') return https.request({ ...common, agent: agents['https:'] });
      return http.request({ ...common, agent: agents['http:'] });
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy();
    },
  };
}

/** An answer that was read to its end. */
export interface Answer {
  readonly status: number;
  readonly headers: http.OutgoingHttpHeaders;
  readonly body: Buffer;
}

export interface WholeCall {
  readonly upstreams: Upstreams;
  readonly target: Target;
  readonly body: Buffer;
  /** Of the answer, bytes. */
  readonly limit: number;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Whether it may be sent once more if a kept connection turned out to be closed already. */
  readonly again: boolean;
}

/**
 * Sends a small call and reads its answer whole.
 * @throws OnejobError E_CI_UNREACHABLE, E_CI_ANSWER (too large); whatever the status, an answer is none.
 */
export async function callWhole(call: WholeCall): Promise<Answer> {
  const timeout = AbortSignal.timeout(call.timeoutMs);
  const signal = AbortSignal.any([call.signal, timeout]);
  try {
    return await once(call, signal);
  } catch (error) {
    if (error instanceof StaleConnection && call.again)
      return await once(call, signal).catch((second) => failed(call, second, timeout));
    return failed(call, error, timeout);
  }
}

class StaleConnection extends Error {}

function once({ upstreams, target, body, limit }: WholeCall, signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = { ...target.headers, 'content-length': body.length, 'accept-encoding': 'identity' };
    const out = upstreams.open({ ...target, headers }, signal);
    let answered = false;
    out.on('error', (error) =>
      reject(!answered && out.reusedSocket && hasCode(error, 'ECONNRESET') ? new StaleConnection() : error),
    );
    out.on('response', (answer) => {
      answered = true;
      const parts: Buffer[] = [];
      let size = 0;
      answer.on('data', (part: Buffer) => {
        size += part.length;
        parts.push(part);
        if (size > limit) answer.destroy(new TooLarge());
      });
      answer.on('error', reject);
      answer.on('end', () =>
        resolve({ status: answer.statusCode ?? 502, headers: answerHeaders(answer), body: Buffer.concat(parts) }),
      );
    });
    out.end(body);
  });
}

class TooLarge extends Error {}

function failed({ target, limit }: WholeCall, error: unknown, timeout: AbortSignal): never {
  const what = `Cannot send ${target.method} to ${target.origin.host}`;
  if (error instanceof TooLarge) {
    throw new OnejobError('E_CI_ANSWER', `${what}: its answer is larger than ${limit} bytes.`, { retry: true });
  }
  const why = timeout.aborted ? 'there was no answer in time' : reasonOf(error);
  throw new OnejobError('E_CI_UNREACHABLE', `${what}: ${why}.`, { retry: true, cause: error });
}

export interface Streamed {
  readonly upstreams: Upstreams;
  readonly target: Target;
  readonly request: http.IncomingMessage;
  readonly response: http.ServerResponse;
  readonly idleMs: number;
  readonly signal: AbortSignal;
  /** Told the status before the agent is. */
  onAnswer?(status: number): void;
  /** Takes what an agent may not see out of an error's body, and of any header. */
  clean(text: string): string;
}

/** Errors are read whole up to this size, to be cleaned; bytes. */
const errorBytes = 256 * 1024;

/** Ends once the call has been answered or is lost; never throws. */
export function forwardStream(call: Streamed): Promise<void> {
  const { request, response, target, signal } = call;
  const { promise, resolve } = Promise.withResolvers<void>();
  const out = call.upstreams.open(target, signal);
  let answered = false;
  let idle = false;
  out.setTimeout(call.idleMs, () => {
    idle = true;
    out.destroy();
  });
  response.once('close', () => {
    // Gone before its answer, or answered before its body was read: in both cases nobody is left who would send or read on.
    if (!out.writableFinished || !response.writableFinished) out.destroy();
    resolve();
  });
  out.on('response', (answer) => {
    answered = true;
    const status = answer.statusCode ?? 502;
    call.onAnswer?.(status);
    if (status >= 400) passError(call, answer, status);
    else {
      response.writeHead(status, cleaned(answerHeaders(answer), call.clean));
      // Its head may be all that is wanted for a while: a body can take its time.
      response.flushHeaders();
      pipeline(answer, response, () => {});
    }
  });
  out.on('error', (error) => {
    if (answered) return;
    refuse(response, 502, `The service at ${target.origin.host} cannot be reached: ${idle ? 'nothing moved' : reasonOf(error)}.`);
  });
  pump(request, out);
  return promise;
}

/**
 * Like `pipe`, but gives each piece's memory back once it has been sent. Left to the collector, pieces of a large upload would
 * gather to some 64 MiB, since it hardly sees what lies outside of its heap.
 */
function pump(from: http.IncomingMessage, to: http.ClientRequest): void {
  const piece = (bytes: Buffer): void => {
    if (!to.write(bytes, () => release(bytes))) from.pause();
  };
  const more = (): void => void from.resume();
  const end = (): void => void to.end();
  from.on('data', piece).once('end', end);
  to.on('drain', more);
  to.once('close', () => {
    from.off('data', piece).off('end', end);
    // Whoever has had no answer yet reads it only after having said all.
    from.resume();
  });
}

/** Only of a piece that has its memory for itself, as the bodies of messages have. */
function release(bytes: Buffer): void {
  const memory = bytes.buffer;
  if (memory instanceof ArrayBuffer && memory.byteLength === bytes.byteLength && memory.byteLength >= 4096) memory.transfer(0);
}

function passError({ response, clean }: Streamed, answer: http.IncomingMessage, status: number): void {
  const parts: Buffer[] = [];
  let size = 0;
  answer.on('error', () => response.destroy());
  answer.on('data', (part: Buffer) => {
    if (size < errorBytes) parts.push(part);
    size += part.length;
  });
  answer.on('end', () => {
    const headers = cleaned(answerHeaders(answer), clean);
    const encoded = headers['content-encoding'] !== undefined && headers['content-encoding'] !== 'identity';
    // Shortened or packed it could not be read by the agent, or not be cleaned here: then its status has to do.
    const body = size > errorBytes || encoded ? '{}' : clean(Buffer.concat(parts).toString());
    delete headers['content-encoding'];
    response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(body) });
    response.end(body);
  });
}

export function cleaned(headers: http.OutgoingHttpHeaders, clean: (text: string) => string): http.OutgoingHttpHeaders {
  const each = (value: http.OutgoingHttpHeader): http.OutgoingHttpHeader => {
    if (typeof value === 'number') return value;
    return typeof value === 'string' ? clean(value) : value.map(clean);
  };
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, value === undefined ? value : each(value)]));
}

/** Reads a call's body whole. @throws OnejobError E_API_REQUEST when it is larger than `limit` bytes, slow, or breaks off. */
export async function readWhole(request: http.IncomingMessage, limit: number, timeoutMs: number): Promise<Buffer> {
  const timer = setTimeout(() => request.destroy(), timeoutMs);
  try {
    const parts: Buffer[] = [];
    let size = 0;
    for await (const part of request.iterator({ destroyOnReturn: false })) {
      size += part.length;
      if (size > limit) throw new OnejobError('E_API_REQUEST', `The body of the call is larger than ${limit} bytes.`);
      parts.push(part);
    }
    return Buffer.concat(parts);
  } finally {
    clearTimeout(timer);
  }
}

function reasonOf(error: unknown): string {
  if (hasCode(error, null)) return error.code;
  return error instanceof Error ? error.message : String(error);
}

function hasCode(error: unknown, code: string | null): error is Error & { readonly code: string } {
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') return false;
  return code === null || error.code === code;
}
