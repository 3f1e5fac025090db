/** An artifact's bytes on their way to where the service said; the address is the permission, for its agent and while its job runs. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { BlockList, isIP } from 'node:net';
import type { Upload } from './artifacts.ts';
import { forwardStream } from './forward.ts';
import { requestHeaders } from './forward-headers.ts';
import type { Desk } from './gateway-desk.ts';
import { untilOver } from './gateway-desk.ts';
import { refuse } from './local-answers.ts';
import type { AgentRecord } from './record.ts';

export interface Uploading {
  readonly to: Upload;
  readonly record: AgentRecord;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly signal: AbortSignal;
}

export async function upload(desk: Desk, { to, record, request, response, signal }: Uploading): Promise<void> {
  if (record.shown.phase !== 'running') return refuse(response, 403, 'The job of this upload is over.');
  const origin = new URL(to.origin);
  if (isNear(origin.hostname) && !isNear(new URL(record.endpoint).hostname)) {
    desk.log.warn('upload refused', {
      agent: record.shown.agent ?? record.shown.id,
      reason: 'its address is one of this host or network',
    });
    return refuse(response, 403, 'The service named an address of this host or its network to upload to.');
  }
  await untilOver(desk, record.shown.id, signal, (inner) =>
    forwardStream({
      upstreams: desk.memories.upstreams(record.shown.id),
      target: { method: request.method ?? 'PUT', origin, path: to.path, headers: requestHeaders(request) },
      request,
      response,
      idleMs: desk.limits.idleMs,
      signal: inner,
      clean: (text) => text,
    }),
  );
}

/**
 * Whether a host as an address names it is this one or of a network of its own: there the broker could reach what a sandbox may
 * not, such as the metadata of a cloud. Names are not looked up: a bucket's may well lead into one's own network.
 */
export function isNear(hostname: string): boolean {
  const host = hostname
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '')
    .toLowerCase();
  const version = isIP(host);
  if (version === 0) return host === 'localhost' || host.endsWith('.localhost');
  return nearBy().check(host, version === 4 ? 'ipv4' : 'ipv6');
}

function nearBy(): BlockList {
  const list = new BlockList();
  const four = [
    ['0.0.0.0', 8],
    ['10.0.0.0', 8],
    ['100.64.0.0', 10],
    ['127.0.0.0', 8],
    ['169.254.0.0', 16],
    ['172.16.0.0', 12],
    ['192.168.0.0', 16],
  ] as const;
  const six = [
    ['::', 127],
    ['fc00::', 7],
    ['fe80::', 10],
  ] as const;
  for (const [net, bits] of four) list.addSubnet(net, bits, 'ipv4');
  for (const [net, bits] of six) list.addSubnet(net, bits, 'ipv6');
  return list;
}
