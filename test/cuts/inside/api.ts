/** The daemon of the host under test, asked over its socket: a command of its own for each question would cost more than all jobs. */
import { request } from 'node:http';
import { text } from 'node:stream/consumers';

/** One call; null when there is no answer. */
export function call(
  method: string,
  path: string,
  body?: unknown,
): Promise<{ readonly status: number; readonly body: unknown } | null> {
  return new Promise((resolve) => {
    const headers = { host: 'localhost', ...(body !== undefined && { 'content-type': 'application/json' }) };
    const sent = request({ socketPath: '/run/onejob/onejob.sock', method, path, headers, agent: false }, async (answer) => {
      const said = await text(answer).catch(() => null);
      resolve(said === null ? null : { status: answer.statusCode ?? 0, body: said === '' ? null : JSON.parse(said) });
    });
    sent.once('error', () => resolve(null));
    sent.end(body === undefined ? undefined : JSON.stringify(body));
  });
}
