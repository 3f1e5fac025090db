/**
 * Why onejob ends a job, written behind its output. Only then is its result passed on: the service closes the log with that. The
 * agent has sent all of its own by then.
 */
import { toFailure } from '../../../errors.ts';
import { chunkAfter, logAfter } from './chunks.ts';
import { ask, type Desk, isOk, note } from './gateway-desk.ts';
import { escapeId } from './upstream.ts';

/** Never throws: a job's result must not wait for a sentence. */
export async function sayWhy(desk: Desk, id: string, token: string): Promise<void> {
  const record = desk.book.get(id);
  const job = record?.shown.job?.id;
  if (record === null || job === undefined || record.why === null) return;
  const { query, gzip } = chunkAfter(record.log, record.why);
  const path = `/jobs/${escapeId(job)}/chunks?${query}`;
  const headers = { 'content-type': 'text/plain', 'content-encoding': 'gzip' };
  const { signal } = desk;
  try {
    const answer = await ask(desk, { record, method: 'POST', path, token, request: null, headers, body: gzip, signal });
    // Said once, should the result have to be told again.
    if (isOk(answer)) note(desk, id, () => desk.book.update(id, { why: null, log: logAfter(record.log, query) }));
    else desk.log.warn('why a job was ended is not in its log', { job, status: answer.status });
  } catch (error) {
    desk.log.warn('why a job was ended is not in its log', { job, reason: toFailure(error).message });
  }
}
