/**
 * Takes the job that the service named. When it is not known whether the service has heard it, it is said again; a service
 * that then refuses may have given the job to this agent, which has no token for it: it ends it as well as it can, and leaves.
 */
import { ask, backOff, end, forget, leave, problem, type Self } from './agent.ts';
import { givenJob } from './answers.ts';
import type { AgentRecord } from './record.ts';
import { escapeId } from './upstream.ts';

/** ms for which a broker that is to end, with no manager any more, asks whether the job is ours. */
const leavingPatience = 60_000;

export async function accept(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { book, clock, log } = parts;
  const { job: named } = record.shown;
  if (named === null) return leave(self, record, 'It was about to accept a job, and no job is written down.');
  const until = givenUpAt(parts);
  if (clock.now() >= until)
    return leave(self, record, `The service did not say whether job ${named.id} is onejob's, which is to end.`);
  if (clock.now() < memory.notBefore) return waker.wait(Math.min(memory.notBefore, until));
  // From here on the service may have heard it, also when what came of it cannot be written down.
  const wasUnsure = memory.maybeAccepted;
  memory.maybeAccepted = true;
  const path = `jobs/${escapeId(named.id)}/accept`;
  const called = await ask(self, record, { method: 'PUT', path, once: true, doing: `accept job ${named.id} for` });
  const now = book.get(id);
  if (now?.shown.phase !== 'accepting') return;

  if (!called.ok) {
    if (called.retry) {
      if (called.status === 429) memory.maybeAccepted = wasUnsure;
      backOff(self, called);
      return problem(self, now, called.error.message);
    }
    if (called.status === 401) return forget(self, now, called.error.message);
    if (wasUnsure) {
      const reason = 'onejob lost its connection while it accepted this job, and cannot run it.';
      parts.log.warn('job lost', { id, slot: now.shown.slot, job: named.id, reason: called.error.message });
      end(book, now, { reason, signalReason: 'agent_stop' }, called.error.message);
      return;
    }
    log.info('job not accepted', { id, slot: now.shown.slot, job: named.id, reason: called.error.message });
    // A request that something on the way had repeated is refused as well: the job may be this agent's, which then asked in
    // vain for ever. Whatever it has the service takes back from one that leaves, and the next is there at once.
    return leave(self, now, null);
  }

  const given = givenJob(called.body, named.id);
  if (given === null) {
    const reason = 'The service gave this job to onejob in a way that cannot be read.';
    end(book, now, { reason, signalReason: 'process_run_error' }, reason);
    return;
  }
  book.update(id, {
    shown: { phase: 'accepted', job: given.job, problem: null },
    sealed: { jobAnswer: called.body, jobToken: given.token },
  });
  log.info('job accepted', { id, slot: now.shown.slot, job: named.id });
}

/** When it is of no use any more to ask (the clock's `now`). The service takes the job back from an agent that leaves. */
function givenUpAt({ desired }: Self['parts']): number {
  const { leavingSince, lonelySince } = desired;
  return leavingSince === null || lonelySince === null
    ? Number.POSITIVE_INFINITY
    : Math.max(leavingSince, lonelySince) + leavingPatience;
}
