/** HTTP as the agent speaks it: JSON in and out, no redirects, a time limit, and the service's own error names. */
import * as plain from 'node:http';
import * as tls from 'node:https';

/** An answer that is not 2xx. `typeKey` is what the agent decides by (facts: wrapped exceptions). */
export class ServiceError extends Error {
  constructor(message, status, typeKey, headers) {
    super(message);
    this.status = status;
    this.typeKey = typeKey;
    this.headers = headers;
  }
}

const limit = 100_000;
const agents = { http: new plain.Agent({ keepAlive: true }), https: new tls.Agent({ keepAlive: true }) };

/**
 * One request. `body` is sent as JSON unless it is a Buffer or a string.
 * Gives status, headers and the parsed body, null if there isn't one. Throws `ServiceError`, or the socket's error.
 */
export function send(method, url, { headers = {}, body, signal } = {}) {
  const { request } = url.startsWith('https:') ? tls : plain;
  const raw = body === undefined || typeof body === 'string' || Buffer.isBuffer(body);
  const payload = raw ? body : JSON.stringify(body);
  const type = raw ? {} : { 'content-type': 'application/json; charset=utf-8' };
  return new Promise((resolve, reject) => {
    const agent = url.startsWith('https:') ? agents.https : agents.http;
    const options = { method, agent, signal, headers: { ...standard, ...type, ...headers } };
    if (payload !== undefined) options.headers['content-length'] = Buffer.byteLength(payload);
    const sent = request(url, options, (answer) => {
      const chunks = [];
      answer.on('data', (chunk) => chunks.push(chunk));
      answer.on('error', reject);
      answer.on('end', () => {
        try {
          resolve(judge(method, url, answer, Buffer.concat(chunks).toString()));
        } catch (error) {
          reject(error);
        }
      });
    });
    sent.setTimeout(limit, () => sent.destroy(new Error(`${method} ${url}: no answer within ${limit / 1000} s`)));
    sent.on('error', reject);
    sent.end(payload);
  });
}

const standard = { accept: 'application/json; api-version=7.2-preview', 'x-tfs-fedauthredirect': 'Suppress' };

function judge(method, url, answer, text) {
  const { statusCode: status, headers } = answer;
  const json = /json/.test(headers['content-type'] ?? '');
  const value = json && text !== '' ? JSON.parse(text) : null;
  if (status >= 200 && status < 300 && (json || text === '')) return { status, headers, value };
  const said = value?.message ?? value?.error_description ?? text.slice(0, 200);
  const key = value?.typeKey ?? /(\w+),/.exec(value?.typeName ?? '')?.[1] ?? (status === 401 ? 'VssUnauthorizedException' : '');
  throw new ServiceError(`${method} ${new URL(url).pathname}: ${status} ${said}`.trim(), status, key, headers);
}
