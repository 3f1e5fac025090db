/** Calls about a job, by its alias: its own, and those few that the service lets one job make about another. */
import { z } from 'zod';
import { unwantedStates } from './answers.ts';
import { withOwnUploads } from './artifacts.ts';
import { logAfter } from './chunks.ts';
import { foreignJson } from './foreign-json.ts';
import { forwardStream, type Streamed } from './forward.ts';
import {
  ask,
  type Call,
  cleaner,
  type Desk,
  deny,
  isAway,
  isFinal,
  isOk,
  jsonOf,
  note,
  passOn,
  targetOf,
  untilOver,
} from './gateway-desk.ts';
import { buildOf, forbidden } from './gateway-rights.ts';
import type { Route } from './gateway-route.ts';
import { sayWhy } from './gateway-why.ts';
import { answerJson, refuse } from './local-answers.ts';
import type { Finished, Phase } from './protocol.ts';
import type { AgentRecord, RecordPatch } from './record.ts';
import { isOwnKey, secretKey } from './rewrite.ts';

const over: ReadonlySet<Phase> = new Set(['finished', 'ending', 'gone']);

export type JobRoute = Extract<Route, { readonly kind: 'job' }>;
export type SharedRoute = Extract<Route, { readonly kind: 'shared' }>;

export async function jobCall(desk: Desk, call: Call, route: JobRoute): Promise<void> {
  const { shown } = call.record;
  const own = route.job === shown.job?.id;
  if (!own && route.call !== 'data' && route.call !== 'artifacts')
    return deny(desk, call, 403, 'That is not the job of this token.');
  const token = tokenOf(call.record);
  // What is left running of a job has lost its token with its end, as it has at the service.
  if (token === null || over.has(shown.phase)) {
    if (own && route.call === 'finish' && shown.phase === 'finished') return answerJson(call.response, 200, {});
    return refuse(call.response, 401, 'The job of this token is over.');
  }
  if (own && route.call === 'start') return await start(desk, call, route, token);
  if (shown.phase !== 'running') return deny(desk, call, 403, 'The job of this token has not been started.');
  const why =
    route.call === 'secrets' && asksForOurs(route) ? null : forbidden(call.record, { ...route, method: call.request.method ?? '' });
  if (why !== null) return deny(desk, call, 403, why);
  switch (route.call) {
    case 'finish':
      return await finish(desk, call, route, token);
    case 'state':
      return await state(desk, call, route, token);
    case 'secrets':
      return await secrets(desk, call, route, token);
    case 'artifacts':
      return await artifacts(desk, call, route, token);
    case 'chunks':
      return await stream(desk, call, route.path, token, {
        onAnswer(status) {
          if (status >= 200 && status < 300) passed(desk, shown.id, route.query);
        },
        // The agent drops a chunk for any 4xx, also for one that only asks it to wait (v3.137 `core/client.go`).
        toldAs: (status) => (status === 429 ? 503 : status),
      });
    default:
      return await stream(desk, call, route.path, token);
  }
}

/** Builds, steps, caches. */
export async function sharedCall(desk: Desk, call: Call, route: SharedRoute): Promise<void> {
  const token = tokenOf(call.record);
  if (token === null || call.record.shown.phase !== 'running')
    return refuse(call.response, 401, 'No job of this token is running.');
  const why = forbidden(call.record, { ...route, method: call.request.method ?? '' });
  if (why !== null) return deny(desk, call, 403, why);
  if (!call.record.trusted && route.segments[0] === 'steps') return await ownStep(desk, call, route.path, token);
  await stream(desk, call, route.path, token);
}

const stepExport = z.looseObject({ build_id: z.string() });

/** Which build is asked about stands in the body: sent anew as it was read, so that nobody reads another one there. */
async function ownStep(desk: Desk, call: Call, path: string, token: string): Promise<void> {
  const { request, record, signal } = call;
  const read = stepExport.safeParse(foreignJson(await desk.reads.whole(call, desk.limits.wholeBytes)));
  if (!read.success || read.data.build_id !== buildOf(record.shown.job))
    return deny(desk, call, 403, 'That is a step of another build.');
  const body = Buffer.from(JSON.stringify(read.data));
  passOn(desk, call, await ask(desk, { record, method: 'POST', path, token, request, body, signal }));
}

/** Where the service gives no token for the job the session's stands for it; where it does, that has the least power. */
function tokenOf({ sealed, shown }: AgentRecord): string | null {
  return shown.job === null ? null : (sealed.jobToken ?? sealed.session);
}

function stream(
  desk: Desk,
  call: Call,
  path: string,
  token: string,
  more: Pick<Streamed, 'onAnswer' | 'toldAs'> = {},
): Promise<void> {
  const { request, response, record, signal } = call;
  return untilOver(desk, record.shown.id, signal, (inner) =>
    forwardStream({
      upstreams: desk.memories.upstreams(record.shown.id),
      target: targetOf(desk, { record, method: request.method ?? 'GET', path, token, request }),
      request,
      response,
      idleMs: desk.limits.idleMs,
      signal: inner,
      clean: cleaner(desk, record),
      ...more,
    }),
  );
}

function passed(desk: Desk, id: string, query: string): void {
  const record = desk.book.get(id);
  if (record === null) return;
  const log = logAfter(record.log, query);
  if (log !== record.log) note(desk, id, () => desk.book.update(id, { log }, true));
}

async function start(desk: Desk, call: Call, route: JobRoute, token: string): Promise<void> {
  const { request, record, memory } = call;
  const { id, kind, phase } = record.shown;
  // Its answer may have been lost on the way, and the service takes one start only.
  if (phase === 'running') return answerJson(call.response, 200, {});
  const ready = kind === 'held' ? phase === 'connected' : record.allowed && ['accepted', 'handed', 'connected'].includes(phase);
  if (!ready) return deny(desk, call, 403, 'The job of this token may not start.');
  const { limits } = desk;
  const body = await desk.reads.whole(call, limits.wholeBytes);
  // Once it is under way its outcome is waited for, whether or not the agent still is there to hear it; so below.
  const { signal } = desk;
  const answer = await ask(desk, { record, method: 'PUT', path: route.path, token, request, body, signal });
  if (isOk(answer)) {
    const now = desk.book.get(id)?.shown.phase ?? 'gone';
    // Ended meanwhile: it must not begin any more.
    if (over.has(now)) return refuse(call.response, 401, 'The job of this token is over.');
    if (now !== 'running') note(desk, id, () => desk.book.update(id, { shown: { phase: 'running' } }));
  } else if (isFinal(answer) && !memory.startRefused) {
    memory.startRefused = true;
    note(desk, id, () => desk.book.update(id, { shown: { problem: `The service did not let its job start: ${answer.status}.` } }));
  }
  passOn(desk, call, answer);
}

const text = z.union([z.string(), z.number()]).transform(String);
const result = z.looseObject({ exit_status: text.nullish(), signal: z.string().nullish(), signal_reason: z.string().nullish() });

async function finish(desk: Desk, call: Call, route: JobRoute, token: string): Promise<void> {
  const { request, response, record } = call;
  const { id } = record.shown;
  const { book, limits, signal } = desk;
  const read = result.safeParse(foreignJson(await desk.reads.whole(call, limits.wholeBytes)));
  if (!read.success) return deny(desk, call, 422, 'The result of the job is not one.');
  const { exit_status, signal: signalName, signal_reason } = read.data;
  const finished: Finished = { exitStatus: exit_status ?? '', signal: signalName || null, signalReason: signal_reason || null };
  // Else the service could give the agent another job before it has left.
  const body = Buffer.from(JSON.stringify({ ...read.data, ignore_agent_in_dispatches: true }));
  // Of a job that ended by itself at the last moment there is nothing to explain.
  if (finished.signalReason !== null) await sayWhy(desk, id, token);
  const unsure = book.get(id)?.finishing ?? null;
  // Before the service hears it: after a crash in between, the agent is refused what it says again. Lazily: a crash of the host
  // ends the agent too, and a job could have the disk waited for without end.
  if (unsure === null) note(desk, id, () => book.update(id, { finishing: finished }, true));
  desk.heard(id, 'result');
  const answer = await ask(desk, { record, method: 'PUT', path: route.path, token, request, body, signal, again: false });
  const final = isFinal(answer);
  if (isOk(answer) || (final && unsure !== null)) {
    const told = isOk(answer) ? finished : (unsure ?? finished);
    note(desk, id, () => book.update(id, { ...resultIn(book.get(id), told), finishing: null }));
    if (final) return answerJson(response, 200, {});
  } else if (final) note(desk, id, () => book.update(id, { finishing: null }, true));
  passOn(desk, call, answer);
}

/** What a result that has arrived makes of a job. One that is being ended from here has one now, and only leaves. */
function resultIn(record: AgentRecord | null, finished: Finished): RecordPatch {
  if (record?.shown.phase === 'running') return { shown: { phase: 'finished', finished } };
  if (record?.shown.phase !== 'ending' || record.shown.finished !== null) return {};
  return { shown: { finished }, ending: { verdict: null, next: 'disconnect' } };
}

const stateAnswer = z.looseObject({ state: z.string() });

async function state(desk: Desk, call: Call, route: JobRoute, token: string): Promise<void> {
  const { request, record, signal } = call;
  const { id, cancelled } = record.shown;
  const answer = await ask(desk, { record, method: 'GET', path: route.path, token, request, signal }).catch((error: unknown) => {
    // One that does not wait for what it asked knows nothing, whether or not the service is there.
    if (!signal.aborted) desk.heard(id, 'state');
    throw error;
  });
  const read = isOk(answer) ? stateAnswer.safeParse(foreignJson(answer.body)) : null;
  if (read?.success === true || isAway(answer)) desk.heard(id, 'state');
  if (read?.success === true && unwantedStates.has(read.data.state) && !cancelled) {
    note(desk, id, () => desk.book.update(id, { shown: { cancelled: true } }, true));
  }
  passOn(desk, call, answer);
}

async function secrets(desk: Desk, call: Call, route: JobRoute, token: string): Promise<void> {
  const keys = keysOf(route);
  const [key] = keys;
  if (key === undefined || !asksForOurs(route)) return await stream(desk, call, route.path, token);
  const found = keys.length === 1 ? call.record.sealed.secrets.find(({ name }) => secretKey(name) === key) : undefined;
  if (found === undefined) return deny(desk, call, 404, 'There is no such secret for this job.');
  answerJson(call.response, 200, { key, value: found.value, uuid: '00000000-0000-0000-0000-000000000000' });
}

function keysOf({ query }: JobRoute): readonly string[] {
  return new URLSearchParams(query).getAll('key');
}

function asksForOurs(route: JobRoute): boolean {
  return keysOf(route).some(isOwnKey);
}

async function artifacts(desk: Desk, call: Call, route: JobRoute, token: string): Promise<void> {
  const { request, record, signal } = call;
  const { limits, uploads } = desk;
  const host = request.headers.host ?? '';
  if (!/^[A-Za-z0-9.:[\]_-]{1,255}$/.test(host)) return refuse(call.response, 400, 'The call does not say which host it is for.');
  const body = await desk.reads.whole(call, limits.batchBytes);
  const answer = await ask(desk, { record, method: 'POST', path: route.path, token, request, body, signal, again: false });
  if (!isOk(answer)) return passOn(desk, call, answer);
  const rewritten = withOwnUploads(jsonOf(answer, 'the creation of artifacts'), {
    addresses: uploads,
    agent: record.shown.id,
    host,
  });
  passOn(desk, call, answer, JSON.stringify(rewritten));
}
