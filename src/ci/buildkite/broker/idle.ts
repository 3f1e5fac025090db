/** The idle agent: connects when its slot can take a job, asks for one as often as the service wants it, leaves when told. */
import { ask, backOff, forget, isDead, leave, problem, type Self } from './agent.ts';
import { intervalsOf, oneLine, type PingAnswer, pingAnswer } from './answers.ts';
import type { AgentRecord } from './record.ts';
import type { Called } from './upstream.ts';

/** ms that an agent stays connected while its slot can take no job: opening again costs nothing within it. */
const closedGrace = 2_000;
/** ms that it stays connected without a manager, so that one that is restarted finds it. */
const lonelyGrace = 10_000;
/** ms that one that is registered but not connected is kept without a manager. It costs the service nothing. */
const registeredGrace = 600_000;

/** Registered ahead of its slot's need: connects once the slot is free and open. */
export async function stayRegistered(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { desired, clock, book } = parts;
  const want = desired.wants(record);
  if (want === 'gone' || want === 'unknown') {
    const grace = desired.isLeaving ? 0 : want === 'gone' ? closedGrace : registeredGrace;
    return stayFor(self, record, grace);
  }
  memory.unwantedSince = null;
  if (want === 'closed' || isSlotBusy(self, record)) return waker.wait(null);
  if (clock.now() < memory.notBefore) return waker.wait(memory.notBefore);
  const called = await ask(self, record, { method: 'POST', path: 'connect', doing: 'connect' });
  const now = book.get(id);
  if (now?.shown.phase !== 'registered') return;
  if (!called.ok) {
    if (isDead(called)) return forget(self, now, called.error.message);
    if (!called.retry) return leave(self, now, called.error.message);
    backOff(self, called);
    return problem(self, now, called.error.message);
  }
  book.update(id, { shown: { phase: 'idle', problem: null } });
}

/** Connected: asks for a job, as long as one could be run. */
export async function stayIdle(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { desired, clock, book } = parts;
  const want = desired.wants(record);
  if (want !== 'open') {
    return stayFor(self, record, desired.isLeaving ? 0 : want === 'unknown' ? lonelyGrace : closedGrace);
  }
  memory.unwantedSince = null;
  if (isSlotBusy(self, record)) return waker.wait(null);
  if (clock.now() < memory.notBefore) return waker.wait(memory.notBefore);

  const began = clock.now();
  const { ping: interval } = intervalsOf(record.sealed.registerAnswer);
  let called = await ask(self, record, { method: 'GET', path: 'ping', doing: 'ask for a job for' });
  let endpoint = record.endpoint;
  const moved = pingOf(called)?.endpoint ?? null;
  if (called.ok && moved !== null && moved !== endpoint) {
    // The service moves the agent: only to where it answers with the same token (agent v3.137 `agent/agent_worker_ping.go`).
    const there = await ask(self, record, { method: 'GET', path: 'ping', doing: 'ask for a job for', endpoint: moved });
    if (there.ok && pingOf(there) !== null) [called, endpoint] = [there, moved];
  }
  const now = book.get(id);
  if (now?.shown.phase !== 'idle') return;
  memory.notBefore = began + interval * (1 + parts.random() / 10);

  const answer = pingOf(called);
  // Also comes with a status that says that something is wrong.
  if (answer?.action === 'disconnect') {
    return leave(self, now, `The service told the agent to leave${answer.message === '' ? '' : `: ${answer.message}`}.`);
  }
  if (!called.ok) {
    if (isDead(called)) return forget(self, now, called.error.message);
    if (!called.retry) return leave(self, now, called.error.message);
    backOff(self, called);
    return problem(self, now, called.error.message);
  }
  if (answer === null) {
    memory.failures += 1;
    return problem(self, now, 'The service answers to the agent in a way that cannot be read.');
  }
  memory.failures = 0;
  parts.pace.fine(now.shown.slot);
  const headers = answer.request_headers;
  if (endpoint !== now.endpoint || (headers !== null && JSON.stringify(headers) !== JSON.stringify(now.requestHeaders))) {
    book.update(id, { endpoint, ...(headers !== null && { requestHeaders: headers }) });
  }
  if (answer.action === 'pause') {
    return problem(self, now, oneLine(`The agent is paused at the service. ${answer.message}`));
  }
  if (answer.job == null) return problem(self, now, null);
  takeJob(self, now, answer.job.id);
}

/** The slot may have changed its mind since it was asked: what was closed by a person takes no job, however soon it came. */
function takeJob(self: Self, record: AgentRecord, job: string): void {
  const { parts, memory, id } = self;
  // An agent that leaves without having accepted gives the job back.
  if (parts.desired.wants(record) !== 'open') {
    leave(self, record, null);
    return;
  }
  memory.maybeAccepted = false;
  parts.book.update(id, { shown: { phase: 'accepting', job: { id: job, env: {} }, problem: null } });
}

function pingOf(called: Called): PingAnswer | null {
  const found = pingAnswer.safeParse(called.body);
  return found.success ? found.data : null;
}

/** Leaves unless its slot wants it again within `grace` ms. */
function stayFor(self: Self, record: AgentRecord, grace: number): Promise<void> | void {
  const { memory, waker, parts } = self;
  memory.unwantedSince ??= parts.clock.now();
  const until = memory.unwantedSince + grace;
  if (parts.clock.now() >= until) return leave(self, record, null);
  return waker.wait(until);
}

/** A slot has one job at a time, also while the manager has not yet said that it is taken. */
function isSlotBusy({ parts, id }: Self, { shown }: AgentRecord): boolean {
  return parts.book.all().some(({ shown: other }) => other.id !== id && other.slot === shown.slot && busy.has(other.phase));
}

const busy: ReadonlySet<string> = new Set(['accepting', 'accepted', 'handed', 'connected', 'running']);
