/** A small call to the service, sent and answered whole, because something of its answer must be read before it goes on. */
import type { OutgoingHttpHeaders } from 'node:http';
import { OnejobError } from '../../../errors.ts';
import { ProxyFault, proxyAnswered } from '../../unreachable.ts';
import { answerHeaders } from './forward-headers.ts';
import { isStatus } from './forward-status.ts';
import { hasCode, isOfProxy, reasonOf, type Target, type Upstreams } from './forward-upstreams.ts';

/** An answer that was read to its end. */
export interface Answer {
  readonly status: number;
  readonly headers: OutgoingHttpHeaders;
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
  // Not `AbortSignal.any` and `timeout`: those would leave something of each call with a signal that lives as long as the broker.
  const abort = new AbortController();
  const stop = (): void => abort.abort();
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    stop();
  }, call.timeoutMs);
  if (call.signal.aborted) stop();
  call.signal.addEventListener('abort', stop, { once: true });
  try {
    return await once(call, abort.signal).catch((error: unknown) => {
      if (error instanceof StaleConnection && call.again) return once(call, abort.signal);
      throw error;
    });
  } catch (error) {
    return failed(call, error, isLate);
  } finally {
    clearTimeout(timer);
    call.signal.removeEventListener('abort', stop);
  }
}

class StaleConnection extends Error {}

function once({ upstreams, target, body, limit }: WholeCall, signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = { ...target.headers, 'content-length': body.length, 'accept-encoding': 'identity' };
    const out = upstreams.open({ ...target, headers }, signal);
    let answered = false;
    out.on('error', (error) =>
      reject(
        !answered && out.reusedSocket && (hasCode(error, 'ECONNRESET') || hasCode(error, 'EPIPE')) ? new StaleConnection() : error,
      ),
    );
    // An answer that leads to another protocol is dropped by Node without a word.
    out.on('close', () => {
      if (!answered) reject(new OddAnswer('no answer came'));
    });
    out.on('response', (answer) => {
      answered = true;
      const { statusCode: status = 502 } = answer;
      if (isOfProxy(status)) answer.destroy(new ProxyFault(proxyAnswered(status)));
      if (!isStatus(status)) answer.destroy(new OddAnswer(`its status ${status} is none`));
      const parts: Buffer[] = [];
      let size = 0;
      answer.on('data', (part: Buffer) => {
        size += part.length;
        parts.push(part);
        if (size > limit) answer.destroy(new TooLarge());
      });
      answer.on('error', reject);
      answer.on('end', () => resolve({ status, headers: answerHeaders(answer), body: Buffer.concat(parts) }));
    });
    out.end(body);
  });
}

class TooLarge extends Error {}

class OddAnswer extends Error {}

function failed({ target, limit }: WholeCall, error: unknown, isLate: boolean): never {
  const what = `Cannot send ${target.method} to ${target.origin.host}`;
  if (error instanceof TooLarge) {
    throw new OnejobError('E_CI_ANSWER', `${what}: its answer is larger than ${limit} bytes.`, { retry: true });
  }
  if (error instanceof OddAnswer) throw new OnejobError('E_CI_ANSWER', `${what}: ${error.message}.`, { retry: true });
  const why = isLate ? 'there was no answer in time' : reasonOf(error);
  throw new OnejobError('E_CI_UNREACHABLE', `${what}: ${why}.`, { retry: true, cause: error });
}
