/**
 * The last words of an agent: its job's result if it has none (started, one chunk of log with the reason, finished), then its
 * farewell. Each step is written down once it is done, so after a crash one may be said twice, which the service takes as once.
 */
import { ask, backOff, type Self } from './agent.ts';
import { chunkAfter } from './chunks.ts';
import type { AgentRecord, Ending } from './record.ts';
import { type Called, escapeId } from './upstream.ts';

/** ms after which a service that does not answer is told no more of a job. It has marked the agent as lost long before. */
const patience = 3_600_000;
/** ms after which it is told no more of an agent that had nothing to say but farewell. */
const idlePatience = 300_000;
/** The same while the broker is to end. */
const leavingPatience = 5_000;

const following = { start: 'log', log: 'finish', finish: 'disconnect' } as const;

/** Says what comes next. A refusal counts as said: the service knows better what has become of the job. */
export async function sayLast(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { book, clock, desired, log } = parts;
  const ending: Ending = record.ending ?? { verdict: null, next: 'disconnect' };
  const limit = ending.verdict !== null ? patience : desired.isLeaving ? leavingPatience : idlePatience;
  const isOver = clock.now() > memory.phaseSince + limit;
  if (record.sealed.session === null || isOver) {
    if (isOver) log.error('service not told', { id, job: record.shown.job?.id ?? null, next: ending.next, seconds: limit / 1000 });
    book.update(id, { shown: { phase: 'gone' } });
    return;
  }
  if (clock.now() < memory.notBefore) return waker.wait(memory.notBefore);
  const called = await say(self, record, ending);
  // Changed where the agent's own result has arrived meanwhile: that has the last word.
  if (book.get(id)?.ending !== record.ending) return;
  if (!called.ok && called.retry) {
    backOff(self, called);
    // Farewells are said in a row quickly: the agent is of no use meanwhile.
    if (ending.verdict === null) memory.notBefore = Math.min(memory.notBefore, clock.now() + 5_000);
    return;
  }
  if (!called.ok && ending.next !== 'disconnect') {
    log.info('last word refused', { id, job: record.shown.job?.id ?? null, step: ending.next, reason: called.error.message });
  }
  memory.failures = 0;
  memory.notBefore = clock.now();
  if (ending.next === 'disconnect') {
    book.update(id, { shown: { phase: 'gone' } });
    return;
  }
  const ours = { exitStatus: '-1', signal: null, signalReason: ending.verdict?.signalReason ?? null };
  // Refused after the agent's own was under way: that has arrived.
  const finished = called.ok ? ours : (record.finishing ?? ours);
  book.update(id, {
    ending: { ...ending, next: following[ending.next] },
    ...(ending.next === 'finish' && { shown: { finished } }),
  });
}

function say(self: Self, record: AgentRecord, { verdict, next }: Ending): Promise<Called> {
  const { job, name } = record.shown;
  if (next === 'disconnect' || job === null || verdict === null) {
    return ask(self, record, { method: 'POST', path: 'disconnect', doing: 'disconnect' });
  }
  const token = record.sealed.jobToken;
  const path = `jobs/${escapeId(job.id)}`;
  const time = new Date(self.parts.clock.wall()).toISOString();
  if (next === 'start') {
    return ask(self, record, {
      method: 'PUT',
      path: `${path}/start`,
      body: { started_at: time },
      token,
      doing: `start job ${job.id} of`,
    });
  }
  if (next === 'log') {
    const { query, gzip } = chunkAfter(record.log, verdict.reason);
    return ask(self, record, {
      method: 'POST',
      path: `${path}/chunks?${query}`,
      gzip,
      token,
      doing: `write the log of job ${job.id} of`,
    });
  }
  self.parts.log.info('job finished by the broker', { id: record.shown.id, name, job: job.id, reason: verdict.signalReason });
  const body = {
    exit_status: '-1',
    signal_reason: verdict.signalReason,
    finished_at: time,
    chunks_failed_count: 0,
    ignore_agent_in_dispatches: true,
  };
  return ask(self, record, { method: 'PUT', path: `${path}/finish`, body, token, doing: `finish job ${job.id} of` });
}
