/** What goes on beside an agent's life: its heartbeat, and a look whether its job is still wanted. */
import { ask, forget, isDead, longestAlone, type Self } from './agent.ts';
import { intervalsOf, jobState, unwantedStates } from './answers.ts';
import type { Phase } from './protocol.ts';
import type { AgentRecord } from './record.ts';
import { escapeId } from './upstream.ts';

/** ms between two tries of a heartbeat that fails; the service waits for three minutes (agent v3.137: 10 tries, 5 s apart). */
const soon = 5_000;
/** ms between them at most, whatever the service asks for: it forgets an agent that is silent for longer than its three minutes. */
const latest = 30_000;

const connected: ReadonlySet<Phase> = new Set(['idle', 'accepting', 'accepted', 'handed', 'connected', 'running']);
/** While it has a job that could be cancelled. */
const busy: ReadonlySet<Phase> = new Set(['accepted', 'handed', 'connected', 'running']);
/** ms without a question of the agent inside, or four of its intervals, after which it is asked for it whether its job is wanted. */
const unasked = 30_000;
/** ms in which an agent says again how its job ended, should it not have heard an answer (agent v3.137: 12 tries in ten minutes). */
const repeats = 900_000;

/** Until the agent is over, or `signal` is aborted: a heartbeat as often as the service wants it, as long as it has no other. */
export async function beat(self: Self): Promise<void> {
  await whenDue(self, {
    isNeeded: ({ shown, sealed, livesAlone }) =>
      shown.kind === 'held' && sealed.session !== null && !livesAlone && connected.has(shown.phase),
    interval: ({ sealed }) => intervalsOf(sealed.registerAnswer).heartbeat,
    async call(record) {
      const body = { sent_at: new Date(self.parts.clock.wall()).toISOString() };
      const called = await ask(self, record, { method: 'POST', path: 'heartbeat', body, doing: 'send the heartbeat of' });
      if (called.ok) return null;
      const now = self.parts.book.get(self.id);
      // Of one that runs its job the agent inside hears it too, and decides.
      if (isDead(called) && now !== null && connected.has(now.shown.phase) && now.shown.phase !== 'running') {
        forget(self, now, called.error.message);
        return null;
      }
      return Math.min(called.retryAfter ?? soon, latest);
    },
  });
}

/**
 * The same: whether the job was cancelled while nobody else would hear it. Of one that runs, that is an agent that hangs, or that its
 * job has stopped to keep its sandbox: what is wanted of a job is never left to what runs beside it.
 */
export async function look(self: Self): Promise<void> {
  await whenDue(self, {
    isNeeded: ({ shown, sealed }) => sealed.session !== null && shown.job !== null && !shown.cancelled && busy.has(shown.phase),
    interval: ({ sealed }) => intervalsOf(sealed.registerAnswer).status,
    notBefore({ shown, sealed }) {
      if (shown.phase !== 'running') return Number.NEGATIVE_INFINITY;
      const { askedAt, phaseSince } = self.memory;
      return Math.max(askedAt, phaseSince) + Math.max(unasked, 4 * intervalsOf(sealed.registerAnswer).status);
    },
    async call(record) {
      const { job } = record.shown;
      if (job === null) return null;
      const token = record.sealed.jobToken;
      const path = `jobs/${escapeId(job.id)}`;
      const called = await ask(self, record, { method: 'GET', path, token, doing: `see whether job ${job.id} is wanted of` });
      const now = self.parts.book.get(self.id);
      if (now === null || !busy.has(now.shown.phase)) return null;
      const state = called.ok ? (jobState.safeParse(called.body).data?.state ?? '') : '';
      // A token that is refused belongs to a job that is over (agent v3.137 `agent/job_runner.go`).
      const isOver = overStates.has(state) || (!called.ok && called.status === 401);
      if (unwantedStates.has(state) || (isOver && !mayRepeat(self, now))) {
        if (now.shown.phase === 'running') self.parts.log.warn('cancelled job goes on', { id: self.id, job: job.id });
        self.parts.book.update(self.id, { shown: { cancelled: true } });
      }
      return called.ok || called.retryAfter === null ? null : Math.min(called.retryAfter, longestAlone);
    },
  });
}

/** The service has ended the job by itself. */
const overStates: ReadonlySet<string> = new Set(['finished', 'expired']);

/** The service may have ended the job because it was told its result, which the agent will hear once it says it again. */
function mayRepeat({ memory, parts }: Self, { shown }: AgentRecord): boolean {
  return shown.phase === 'running' && memory.resultAt !== null && parts.clock.now() < memory.resultAt + repeats;
}

interface Duty {
  isNeeded(record: AgentRecord): boolean;
  /** ms. */
  interval(record: AgentRecord): number;
  /** The clock's `now`; whatever is due waits for it. */
  notBefore?(record: AgentRecord): number;
  /** Resolves with ms until the next time; null: the interval. */
  call(record: AgentRecord): Promise<number | null>;
}

async function whenDue({ id, parts, waker, signal }: Self, duty: Duty): Promise<void> {
  let dueAt: number | null = null;
  for (let record = parts.book.get(id); record !== null && !signal.aborted; record = parts.book.get(id)) {
    if (!duty.isNeeded(record)) {
      dueAt = null;
      await waker.wait(null);
      continue;
    }
    dueAt ??= parts.clock.now() + duty.interval(record);
    const from = Math.max(dueAt, duty.notBefore?.(record) ?? dueAt);
    if (parts.clock.now() < from) {
      await waker.wait(from);
      continue;
    }
    const began = parts.clock.now();
    const next = await duty.call(record);
    dueAt = next === null ? began + duty.interval(record) : parts.clock.now() + next;
  }
}
