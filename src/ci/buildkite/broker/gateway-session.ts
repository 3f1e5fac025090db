/** The agent's own calls: `register` to `disconnect`. A held agent's are answered from the book, a carried one's forwarded. */
import { z } from 'zod';
import { pingAnswer, registerAnswer } from './answers.ts';
import { foreignJson } from './foreign-json.ts';
import type { Answer } from './forward-call.ts';
import {
  ask,
  badAnswer,
  type Call,
  cleaner,
  type Desk,
  deny,
  isFinal,
  isOk,
  jsonOf,
  note,
  passOn,
  type ToService,
} from './gateway-desk.ts';
import { answerJson, refuse } from './local-answers.ts';
import type { AgentRecord, RecordPatch } from './record.ts';
import { registerAnswerFor, withoutTokens } from './rewrite.ts';

export async function register(desk: Desk, call: Call): Promise<void> {
  const { record, response, memory } = call;
  const { kind, phase } = record.shown;
  if (call.kind !== 'once') return deny(desk, call, 401, 'This token registers no agent.');
  if (kind === 'carried' && phase === 'expected') {
    memory.registering ??= registerCarried(desk, call).finally(() => {
      memory.registering = null;
    });
    const refused = await memory.registering;
    if (refused !== null) return passOn(desk, call, refused);
  }
  const now = desk.book.get(record.shown.id);
  if (now === null || now.shown.phase !== (kind === 'held' ? 'handed' : 'registered')) {
    return deny(desk, call, 401, 'This token has been used.');
  }
  const session = desk.aliases.make('session', now);
  // Its pings are answered here, and the shorter they are apart the sooner it leaves after its job.
  const stored = withoutTokens(now.sealed.registerAnswer, cleaner(desk, now));
  answerJson(response, 200, registerAnswerFor(stored, session, kind === 'held' ? 1 : null));
}

/** Null once it is registered, else how the service refused. */
async function registerCarried(desk: Desk, call: Call): Promise<Answer | null> {
  const { request, record } = call;
  const { id, name, service } = record.shown;
  const token = record.sealed.acquisition?.token ?? desk.service(service)?.token ?? null;
  if (token === null) return { status: 503, headers: {}, body: messageBody(`The token of service ${service} cannot be read.`) };
  const { limits, signal, book } = desk;
  const own = z.record(z.string(), z.unknown()).safeParse(foreignJson(await desk.reads.whole(call, limits.wholeBytes)));
  if (!own.success) return { status: 422, headers: {}, body: messageBody('The registration is not a JSON object.') };
  const body = Buffer.from(JSON.stringify({ ...own.data, name, meta_data: record.metaData, priority: String(record.priority) }));
  const toService: ToService = { record, method: 'POST', path: '/register', token, request };
  // Sent twice it would leave an agent behind that nobody knows of.
  const answer = await ask(desk, { ...toService, body, signal, again: false });
  if (!isOk(answer)) {
    note(desk, id, () => book.update(id, { shown: { problem: `The service refused to register it: ${answer.status}.` } }, true));
    return answer;
  }
  const stored = jsonOf(answer, 'register');
  const read = registerAnswer.safeParse(stored);
  if (!read.success) throw badAnswer('register');
  const session = read.data.access_token;
  const endpoint = read.data.endpoint ?? record.endpoint;
  const requestHeaders = read.data.request_headers ?? {};
  const leave = (): void => {
    const gone = {
      record: { ...record, endpoint, requestHeaders },
      method: 'POST',
      path: '/disconnect',
      token: session,
      request: null,
    };
    ask(desk, { ...gone, signal }).catch(() => {});
  };
  if (book.get(id)?.shown.phase !== 'expected') {
    leave();
    return null;
  }
  try {
    const shown = { phase: 'registered', problem: null } as const;
    book.update(id, { shown, sealed: { session, registerAnswer: stored }, endpoint, requestHeaders });
  } catch (error) {
    leave();
    throw error;
  }
  return null;
}

export async function connect(desk: Desk, call: Call): Promise<void> {
  const { id, kind, phase } = call.record.shown;
  const [before, after] = kind === 'held' ? (['handed', 'connected'] as const) : (['registered', 'idle'] as const);
  if (phase !== before && phase !== after) return deny(desk, call, 403, 'This agent has connected already.');
  const answer = kind === 'held' ? null : await forwarded(desk, call, 'POST', '/connect');
  if (answer !== null && !isOk(answer)) return passOn(desk, call, answer);
  if (desk.book.get(id)?.shown.phase === before) desk.book.update(id, { shown: { phase: after } });
  if (answer === null) return answerJson(call.response, 200, {});
  passOn(desk, call, answer);
}

export async function ping(desk: Desk, call: Call): Promise<void> {
  const { kind, phase, job } = call.record.shown;
  const say = (body: unknown): void => answerJson(call.response, 200, body);
  if (phase === 'finished' || phase === 'ending' || call.memory.startRefused) return say({ action: 'disconnect' });
  if (kind === 'carried') gaveUp(desk, call);
  if (call.record.retired) return say({ action: 'disconnect' });
  if (kind === 'held') {
    if (phase === 'handed') return deny(desk, call, 403, 'This agent has not connected.');
    return say(phase === 'connected' && job !== null ? { job: { id: job.id } } : {});
  }
  const first = await forwarded(desk, call, 'GET', '/ping');
  if (!isOk(first)) return passOn(desk, call, first);
  const { answer, record } = await followed(desk, call, first);
  const raw = z.record(z.string(), z.unknown()).safeParse(jsonOf(answer, 'ping'));
  if (!raw.success) throw badAnswer('ping');
  const { endpoint: _, job: __, ...rest } = raw.data;
  const { job: named, request_headers: headers } = pingAnswer.parse(raw.data);
  if (headers !== null && !sameHeaders(headers, record.requestHeaders)) {
    const { id } = record.shown;
    note(desk, id, () => desk.book.update(id, { requestHeaders: headers }));
  }
  passOn(desk, call, answer, JSON.stringify({ ...rest, ...(named == null ? {} : { job: { id: named.id } }) }));
}

/** An agent that asks for a job does not ask any more for the one that it had no answer about. */
function gaveUp(desk: Desk, { record, memory }: Call): void {
  const { id, phase, job } = record.shown;
  if ((phase !== 'idle' && phase !== 'accepting') || job === null || memory.accepting !== null) return;
  note(desk, id, () => desk.book.update(id, { shown: { phase: 'idle', job: null } }));
}

/** The service may name another endpoint: it is tried, and taken only if it answers (`agent/agent_worker_ping.go`). */
async function followed(desk: Desk, call: Call, first: Answer): Promise<{ readonly answer: Answer; readonly record: AgentRecord }> {
  const { id } = call.record.shown;
  const record = desk.book.get(id) ?? call.record;
  const read = pingAnswer.safeParse(jsonOf(first, 'ping'));
  const endpoint = read.success ? read.data.endpoint : null;
  if (endpoint === null || endpoint === record.endpoint) return { answer: first, record };
  const moved = { ...record, endpoint };
  const answer = await forwarded(desk, { ...call, record: moved }, 'GET', '/ping').catch(() => null);
  if (answer === null || !isOk(answer)) return { answer: first, record };
  note(desk, id, () => desk.book.update(id, { endpoint }));
  return { answer, record: moved };
}

export async function heartbeat(desk: Desk, call: Call): Promise<void> {
  const { limits } = desk;
  const body = await desk.reads.whole(call, limits.wholeBytes);
  const { id } = call.record.shown;
  const answer = await forwarded(desk, call, 'POST', '/heartbeat', body).catch((error: unknown) => {
    desk.heard(id, 'life');
    throw error;
  });
  if (!isFinal(answer)) desk.heard(id, 'life');
  if (isOk(answer) && desk.book.get(id)?.livesAlone === false) {
    note(desk, id, () => desk.book.update(id, { livesAlone: true }, true));
  }
  passOn(desk, call, answer);
}

/** Nothing of what stood for the agent is kept. */
const wiped: RecordPatch = {
  shown: { phase: 'gone' },
  sealed: { session: null, registerAnswer: null, jobAnswer: null, jobToken: null, secrets: [], acquisition: null },
};

export async function disconnect(desk: Desk, call: Call): Promise<void> {
  const { id, phase, job, finished } = call.record.shown;
  // The service ends the job of an agent that leaves, without a word of why. The manager has more to say about it, in `end`.
  const unfinished = job !== null && finished === null && phase !== 'accepting' && phase !== 'idle';
  if (unfinished || phase === 'ending') {
    leaves(desk, call);
    return answerJson(call.response, 200, {});
  }
  const answer = await forwarded(desk, { ...call, signal: desk.signal }, 'POST', '/disconnect');
  if (isOk(answer) || [401, 404, 410].includes(answer.status)) note(desk, id, () => desk.book.update(id, wiped));
  passOn(desk, call, answer);
}

/** Said by any process of the job, as often as it likes: only a change is written down, and seldom. */
function leaves(desk: Desk, { record, memory }: Call): void {
  const { id } = record.shown;
  const now = desk.wall();
  if (desk.book.get(id)?.livesAlone !== true) return;
  if (memory.leftAt !== null && Math.abs(now - memory.leftAt) < desk.limits.leavingMs) return;
  memory.leftAt = now;
  note(desk, id, () => desk.book.update(id, { livesAlone: false }, true));
}

function forwarded(desk: Desk, call: Call, method: string, path: string, body: Buffer = Buffer.alloc(0)): Promise<Answer> {
  const { record, request, signal } = call;
  const token = record.sealed.session;
  if (token === null) return Promise.resolve({ status: 401, headers: {}, body: messageBody('This agent has left the service.') });
  return ask(desk, { record, method, path, token, request, body, signal });
}

function sameHeaders(one: Readonly<Record<string, string>>, other: Readonly<Record<string, string>>): boolean {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}

function messageBody(message: string): Buffer {
  return Buffer.from(JSON.stringify({ message }));
}

/** Never forwarded, whoever asks. */
export function withhold(desk: Desk, call: Call): void {
  deny(desk, call, 403, 'Agents of onejob may not ask for this.');
}

/** For what no agent of this kind would send. */
export function absent(call: Pick<Call, 'response'>): void {
  refuse(call.response, 404, 'There is no such call.');
}
