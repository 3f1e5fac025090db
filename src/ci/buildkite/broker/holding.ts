/** A job that is ours and not over: waits for the manager and the sandbox, and gives up on both when they do not come. */
import { end, type Self } from './agent.ts';
import type { AgentRecord } from './record.ts';

/** ms that a job waits for a manager that hands it to a sandbox, or for a sandbox that takes it. */
export const holdTimeout = 600_000;

/** In `accepted`, `handed`, `connected`, `running` and `finished`. */
export async function hold(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { shown, sealed } = record;
  if (sealed.session === null) return over(self, record);
  if (shown.phase === 'accepted' && !record.allowed) {
    if (shown.cancelled) return giveUp(self, record, { reason: 'The job was cancelled before it began.', signalReason: 'cancel' });
    if (parts.desired.isLeaving && !parts.desired.hasManager) {
      return giveUp(self, record, { reason: 'onejob was stopped before the job began.', signalReason: 'agent_stop' });
    }
  }
  if (isOnItsOwn(record)) {
    memory.unattendedSince = null;
    return waker.wait(null);
  }
  memory.unattendedSince ??= parts.clock.now();
  const until = memory.unattendedSince + holdTimeout;
  if (parts.clock.now() < until) return waker.wait(until);
  if (shown.phase !== 'finished')
    parts.log.warn('job given up', { id, slot: shown.slot, job: shown.job?.id ?? null, phase: shown.phase });
  const reason = `${late[shown.phase] ?? 'The job did not begin'} within ${holdTimeout / 60_000} minutes.`;
  giveUp(self, record, { reason, signalReason: 'process_run_error' });
}

/** Whenever the agent inside does everything itself: only its end is of interest. */
export async function watchOnly(self: Self, record: AgentRecord): Promise<void> {
  if (record.shown.phase !== 'expected' && record.shown.phase !== 'registering' && record.sealed.session === null) {
    return over(self, record);
  }
  return record.shown.job === null && self.parts.desired.isLeaving ? letGo(self, record) : self.waker.wait(null);
}

/** A broker that is to end waits for no job: its idle agents are told to leave, and nobody is expected any more. */
async function letGo(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  // The job of this one is chosen already.
  const until = record.sealed.acquisition === null ? 0 : memory.phaseSince + holdTimeout;
  if (parts.clock.now() < until) return waker.wait(until);
  if (record.shown.phase === 'expected') parts.book.update(id, { shown: { phase: 'gone' } });
  else if (record.retired) return waker.wait(null);
  else parts.book.update(id, { retired: true });
}

const late: Readonly<Record<string, string>> = {
  accepted: 'onejob had no sandbox for this job',
  handed: 'The agent in the sandbox of this job did not call in',
  connected: 'The agent in the sandbox of this job did not begin it',
  running: 'The agent in the sandbox of this job was gone, and onejob did not say why',
};

/** From its first own heartbeat on the service itself sees whether the agent inside is alive. */
function isOnItsOwn({ shown, livesAlone, allowed }: AgentRecord): boolean {
  if (shown.phase === 'connected' || shown.phase === 'running') return livesAlone || shown.kind === 'carried';
  return shown.kind === 'carried' && shown.phase === 'accepted' && allowed;
}

/** The agent inside has disconnected: nobody is left to be told anything. */
function over({ parts, id }: Self, { shown }: AgentRecord): void {
  const why =
    shown.phase === 'finished' || shown.job === null ? null : 'The agent in the sandbox left before its job had a result.';
  parts.book.update(id, { shown: { phase: 'gone', ...(why !== null && { problem: why }) } });
}

function giveUp({ parts }: Self, record: AgentRecord, verdict: { reason: string; signalReason: string }): void {
  end(parts.book, record, verdict);
}
