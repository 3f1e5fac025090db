/** How much of a job's log has passed, read from the calls that carry it (`api/chunks.go`: counts are of uncompressed bytes). */
import { gzipSync } from 'node:zlib';
import type { AgentRecord } from './record.ts';

/** What a passed chunk makes of `log`; chunks overtake each other, so each figure only grows. The same value when nothing did. */
export function logAfter(log: AgentRecord['log'], query: string): AgentRecord['log'] {
  const values = new URLSearchParams(query);
  const sequence = count(values.get('sequence'));
  const offset = count(values.get('offset'));
  const size = count(values.get('size'));
  if (sequence === null || offset === null || size === null || !Number.isSafeInteger(offset + size)) return log;
  const after = { sequence: Math.max(log.sequence, sequence), offset: Math.max(log.offset, offset + size) };
  return after.sequence === log.sequence && after.offset === log.offset ? log : after;
}

/** A chunk of onejob's own behind all that has passed: what is asked of the service, and the body. Begins a line of its own. */
export function chunkAfter(
  { sequence, offset }: AgentRecord['log'],
  words: string,
): { readonly query: string; readonly gzip: Buffer } {
  const text = Buffer.from(`${offset > 0 ? '\r\n' : ''}${words.trimEnd().replace(/\r?\n/g, '\r\n')}\r\n`);
  return { query: `sequence=${sequence + 1}&offset=${offset}&size=${text.byteLength}`, gzip: gzipSync(text) };
}

function count(text: string | null): number | null {
  const value = text !== null && /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
  return Number.isSafeInteger(value) ? value : null;
}
