/** Makes an agent known to the service, with the body that the real one sends (agent v3.137 `core/client.go`). */
import { ask, backOff, forget, problem, type Self } from './agent.ts';
import { registerAnswer } from './answers.ts';
import type { AgentRecord } from './record.ts';
import { retryWait } from './wake.ts';

/** The agent whose manner this is. The service decides by it what it may be told. */
export const agentVersion = '3.137.0';
const agentBuild = 'onejob';

/** ms after which a refused token is tried again; another token is tried at once. */
const refusedWait = 30_000;

export async function register(self: Self, record: AgentRecord): Promise<void> {
  const { parts, memory, waker, id } = self;
  const { desired, clock, host, health, book } = parts;
  const want = desired.wants(record);
  if (want === 'gone') return forget(self, record, null);
  const service = desired.service(record.shown.service);
  const token = service?.token ?? null;
  if (want === 'unknown' || service === null || token === null) {
    if (want !== 'unknown') problem(self, record, 'The token of the service cannot be read, so no agent can be registered.');
    return waker.wait(null);
  }
  const gate = parts.pace.refusal(record.shown.service, token);
  const notBefore = Math.max(memory.notBefore, gate);
  if (clock.now() < notBefore) return waker.wait(notBefore);

  const body = {
    name: record.shown.name,
    hostname: host.hostname,
    os: host.os,
    arch: host.arch,
    script_eval_enabled: true,
    ignore_in_dispatches: false,
    priority: String(record.priority),
    version: agentVersion,
    build: agentBuild,
    meta_data: record.metaData,
    pid: host.pid,
    machine_id: host.machineId,
    features: [],
  };
  const called = await ask(self, record, {
    method: 'POST',
    path: 'register',
    body,
    token,
    endpoint: service.endpoint,
    once: true,
    doing: 'register',
  });
  const now = book.get(id);
  if (!called.ok) {
    const isRefused = called.status === 401 || called.status === 403;
    if (isRefused) {
      parts.pace.refused(record.shown.service, token, clock.now() + refusedWait);
      health.registered(record.shown.service, called.error.message);
    } else backOff(self, called);
    if (now !== null) problem(self, now, called.error.message);
    return;
  }
  parts.pace.accepted(record.shown.service);
  health.registered(record.shown.service, null);
  const found = registerAnswer.safeParse(called.body);
  if (!found.success) {
    memory.failures += 1;
    memory.notBefore = clock.now() + retryWait(memory.failures, parts.random);
    if (now !== null) problem(self, now, 'The service registered the agent, but its answer has no token for it.');
    return;
  }
  const { access_token, endpoint, request_headers } = found.data;
  if (now === null) return;
  book.update(id, {
    shown: { phase: 'registered', problem: null },
    sealed: { session: access_token, registerAnswer: called.body },
    endpoint: endpoint ?? service.endpoint,
    requestHeaders: request_headers ?? {},
  });
}
