/** What the gateway says by itself, in the service's own form: a JSON body, `{message}` for what is refused. */
import type { ServerResponse } from 'node:http';

/** Nothing, if the call has been answered or its caller is gone. */
export function answerJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  if (response.headersSent || response.destroyed) return;
  const bytes = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': bytes.length, ...headers });
  response.end(bytes);
}

/** A 4xx is final for most of the agent's calls, 429 and 5xx are tried again; see each call in gateway-session.ts. */
export function refuse(response: ServerResponse, status: number, message: string): void {
  answerJson(response, status, { message }, status === 429 || status === 503 ? { 'retry-after': '1' } : {});
}

/** Cuts the connection: for the agent a failure of the network, which it takes more patiently than any status. */
export function cut(response: ServerResponse): void {
  response.destroy();
}
