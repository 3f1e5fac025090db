/** An artifact's bytes on their way to where the service said; the address is the permission, for its agent and while its job runs. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Upload } from './artifacts.ts';
import { forwardStream } from './forward.ts';
import { requestHeaders } from './forward-headers.ts';
import { type Desk, isNews, untilOver } from './gateway-desk.ts';
import type { AgentMemory } from './gateway-memory.ts';
import { takeTurn } from './gateway-turns.ts';
import { cut, refuse } from './local-answers.ts';
import { isNear } from './near.ts';
import type { AgentRecord } from './record.ts';

export interface Uploading {
  readonly to: Upload;
  readonly record: AgentRecord;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly memory: AgentMemory;
  readonly signal: AbortSignal;
}

export async function upload(desk: Desk, { to, record, request, response, memory, signal }: Uploading): Promise<void> {
  if (record.shown.phase !== 'running') return refuse(response, 403, 'The job of this upload is over.');
  const origin = new URL(to.origin);
  if (isNear(origin.hostname) && !isNear(new URL(record.endpoint).hostname)) {
    const reason = 'its address is one of this host or network';
    if (isNews(memory, reason)) {
      desk.log.warn('upload refused', { agent: record.shown.agent ?? record.shown.id, reason });
    }
    return refuse(response, 403, 'The service named an address of this host or its network to upload to.');
  }
  await untilOver(desk, record.shown.id, signal, async (inner) => {
    const leave = await takeTurn(memory.uploads, desk.limits.uploads, inner);
    if (leave === null) return cut(response);
    try {
      // Like one that comes only now.
      if (desk.book.get(record.shown.id)?.shown.phase !== 'running') return cut(response);
      await forwardStream({
        upstreams: desk.memories.upstreams(record.shown.id),
        target: { method: request.method ?? 'PUT', origin, path: to.path, headers: requestHeaders(request) },
        request,
        response,
        idleMs: desk.limits.idleMs,
        signal: inner,
        clean: (text) => text,
      });
    } finally {
      leave();
    }
  });
}
