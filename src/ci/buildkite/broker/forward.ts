/**
 * Carries a call to a service, streamed both ways with the memory of a few buffers. An answer that breaks off upstream breaks
 * off here: nobody is ever handed half of one as if it were all.
 */
import type * as http from 'node:http';
import { pipeline } from 'node:stream';
import { proxyAnswered } from '../../unreachable.ts';
import { answerHeaders } from './forward-headers.ts';
import { isStatus } from './forward-status.ts';
import { isOfProxy, reasonOf, type Target, type Upstreams } from './forward-upstreams.ts';
import { cut, refuse } from './local-answers.ts';

export interface Streamed {
  readonly upstreams: Upstreams;
  readonly target: Target;
  readonly request: http.IncomingMessage;
  readonly response: http.ServerResponse;
  readonly idleMs: number;
  readonly signal: AbortSignal;
  /** Told the status before the agent is. */
  onAnswer?(status: number): void;
  /** What the agent is told in the place of an error's status. */
  toldAs?(status: number): number;
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
  const unreachable = (why: string): void =>
    refuse(response, 502, `The service at ${target.origin.host} cannot be reached: ${why}.`);
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
    if (isOfProxy(status)) {
      out.destroy();
      return unreachable(proxyAnswered(status));
    }
    if (!isStatus(status)) return odd(call, out, status);
    call.onAnswer?.(status);
    if (status >= 400) passError(call, answer, call.toldAs?.(status) ?? status);
    else {
      response.writeHead(status, cleaned(answerHeaders(answer), call.clean));
      // Its head may be all that is wanted for a while: a body can take its time.
      response.flushHeaders();
      pipeline(answer, response, () => {});
    }
  });
  // An answer that leads to another protocol is dropped by Node without a word.
  out.once('close', () => {
    if (!answered) refuse(response, 502, `The service at ${target.origin.host} did not answer the call.`);
  });
  out.on('error', (error) => {
    if (answered) return;
    if (signal.aborted) {
      cut(response);
      return;
    }
    unreachable(idle ? 'nothing moved' : reasonOf(error));
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

/** What no service may answer, and Node would not even write. */
function odd({ response, target }: Streamed, out: http.ClientRequest, status: number): void {
  out.destroy();
  refuse(response, 502, `The service at ${target.origin.host} answered with status ${status}, which is none.`);
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
