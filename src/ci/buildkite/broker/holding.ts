/** A job that is ours and not over: waits for the manager and the sandbox, and gives up on both when they do not come. */
import { end, type Self } from './agent.ts';
import { intervalsOf } from './answers.ts';
import type { AgentRecord } from './record.ts';

/** ms that a job waits for a manager that hands it to a sandbox, or for a sandbox that takes it. */
export const holdTimeout = 600_000;
/** ms in which an agent on its own must have called in; three of its heartbeats where those are far apart. */
const quietTimeout = 240_000;
/**
 * ms that it has left after that. Counted from when its silence was seen, not from its last call: to a broker that was itself
 * stopped for a while every agent seems silent, and they call in once it goes on.
 */
const lastChance = 60_000;

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
  const isAlone = isOnItsOwn(record);
  // Also while no heartbeat of it was answered yet: the service may be away, or want them seldom.
  if (isAlone || isInside(record)) {
    const quietAt = heardOf(self) + quietLimit(record);
    if (parts.clock.now() < quietAt) {
      memory.unattendedSince = null;
      return waker.wait(quietAt);
    }
  }
  memory.unattendedSince ??= parts.clock.now();
  const until = memory.unattendedSince + (isAlone ? lastChance : holdTimeout);
  if (parts.clock.now() < until) return waker.wait(until);
  if (shown.phase !== 'finished')
    parts.log.warn('job given up', { id, slot: shown.slot, job: shown.job?.id ?? null, phase: shown.phase });
  const reason = isAlone
    ? `The agent in the sandbox of this job was lost: nothing of it was heard for ${minutes(quietLimit(record) + lastChance)}.`
    : `${late[shown.phase] ?? 'The job did not begin'} within ${minutes(holdTimeout)}.`;
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

/** From its first own heartbeat on the agent inside says by itself that it is alive, for as long as it does. */
function isOnItsOwn(record: AgentRecord): boolean {
  const { shown, livesAlone, allowed } = record;
  if (isInside(record)) return livesAlone || shown.kind === 'carried';
  return shown.kind === 'carried' && shown.phase === 'accepted' && allowed;
}

/** The one in the sandbox has called in. */
function isInside({ shown }: AgentRecord): boolean {
  return shown.phase === 'connected' || shown.phase === 'running';
}

/** When the agent inside was heard last, or could first have been by this broker. */
function heardOf({ memory }: Self): number {
  return Math.max(memory.heardAt, memory.phaseSince);
}

function quietLimit({ sealed }: AgentRecord): number {
  return Math.max(quietTimeout, 3 * intervalsOf(sealed.registerAnswer).heartbeat);
}

const minutes = (ms: number): string => `${Math.ceil(ms / 60_000)} minutes`;

/** The agent inside has disconnected: nobody is left to be told anything. */
function over({ parts, id }: Self, { shown }: AgentRecord): void {
  const why =
    shown.phase === 'finished' || shown.job === null ? null : 'The agent in the sandbox left before its job had a result.';
  parts.book.update(id, { shown: { phase: 'gone', ...(why !== null && { problem: why }) } });
}

function giveUp({ parts }: Self, record: AgentRecord, verdict: { reason: string; signalReason: string }): void {
  end(parts.book, record, verdict);
}
