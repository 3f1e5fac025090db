/**
 * `accept` and `acquire`. A held agent's job is in the book already. A carried agent's is taken from the service first, and then
 * waits here for the manager: the agent learns of the job only once that has allowed it.
 *
 * From `agent/agent_worker_action.go` and `core/client.go`: any status drops an `accept`, while a lost connection is tried again
 * 30 times; an `acquire` is tried again after 423, 429 and 5xx.
 */
import { givenJob } from './answers.ts';
import type { Answer } from './forward-call.ts';
import { ask, badAnswer, type Call, cleaner, type Desk, deny, isOk, jsonOf, note, passOn } from './gateway-desk.ts';
import { answerJson, cut, refuse } from './local-answers.ts';
import type { AgentRecord } from './record.ts';
import { jobAnswerFor, withoutTokens } from './rewrite.ts';
import { escapeId } from './upstream.ts';

export type Taking = 'accept' | 'acquire';

export async function take(desk: Desk, call: Call, how: Taking, job: string): Promise<void> {
  if (call.kind !== 'session') return deny(desk, call, 403, 'This token takes no job.');
  if (call.record.shown.kind === 'held') return answerHeld(desk, call, job);
  try {
    await takeCarried(desk, call, how, job);
  } catch (error) {
    if (how === 'acquire') throw error;
    desk.log.warn('accept of a job could not be forwarded', { agent: call.record.shown.id, job, error });
    cut(call.response);
  }
}

function answerHeld(desk: Desk, call: Call, job: string): void {
  const { phase, job: own } = call.record.shown;
  if (phase === 'handed') deny(desk, call, 403, 'This agent has not connected.');
  else if (own?.id !== job) deny(desk, call, 422, 'That is not the job of this agent.');
  else if (phase !== 'connected') deny(desk, call, 422, 'This job has been started already, or is over.');
  else answerJob(desk, call, call.record);
}

function answerJob(desk: Desk, { request, response }: Call, record: AgentRecord): void {
  const { jobAnswer, jobToken, secrets } = record.sealed;
  const stored = withoutTokens(jobAnswer, cleaner(desk, record));
  const host = URL.parse(`http://${request.headers.host}`)?.hostname ?? '';
  const alias = jobToken === null ? null : desk.aliases.make('job', record);
  answerJson(response, 200, jobAnswerFor(stored, alias, secrets, host.replace(/^\[(.*)\]$/, '$1')));
}

async function takeCarried(desk: Desk, call: Call, how: Taking, job: string): Promise<void> {
  const { memory, response, record } = call;
  const { id, phase, job: before } = record.shown;
  const { acquisition } = record.sealed;
  // What it was asked about before it was retired is asked on: it may be ours already.
  if (record.retired && phase === 'idle' && before?.id !== job) return deny(desk, call, 422, 'This agent takes no job any more.');
  if (acquisition !== null && acquisition.job !== job) return deny(desk, call, 422, 'That is not the job of this agent.');
  if (memory.accepting !== null && memory.accepting.job !== job) return deny(desk, call, 422, 'This agent is taking another job.');
  if (phase === 'idle' || phase === 'accepting') {
    memory.accepting ??= {
      job,
      done: fromService(desk, call, how, job).finally(() => {
        memory.accepting = null;
      }),
    };
    const refused = await memory.accepting.done;
    if (refused !== null) return passOn(desk, call, refused);
  }
  const taken = desk.book.get(id);
  if (taken?.shown.job?.id !== job || !waiting(taken)) return deny(desk, call, 422, 'This job is not to be had.');
  const decision = await decided(desk, call, taken);
  if (decision === 'late') return how === 'accept' ? cut(response) : refuse(response, 503, 'This job waits for onejob to decide.');
  if (decision === 'refused') return deny(desk, call, 422, 'This job may not run here.');
  answerJob(desk, call, decision);
}

/** Null once the job is ours and written down, else how the service refused. */
async function fromService(desk: Desk, call: Call, how: Taking, job: string): Promise<Answer | null> {
  const { book, signal } = desk;
  const { record, request } = call;
  const { id } = record.shown;
  const token = record.sealed.session;
  if (token === null) return { status: 401, headers: {}, body: Buffer.from('{"message":"This agent has left the service."}') };
  // Until the service has answered the job may be ours: nobody may take the agent for an idle one.
  book.update(id, { shown: { phase: 'accepting', job: { id: job, env: {} } } });
  const path = `/jobs/${escapeId(job)}/${how}`;
  const notOurs = (): void => {
    if (book.get(id)?.shown.phase === 'accepting') note(desk, id, () => book.update(id, { shown: { phase: 'idle', job: null } }));
  };
  // Whether it is ours when no answer came, only asking again tells; should the agent leave instead, the service sees to the job.
  const unsure = (): void => {
    if (book.get(id)?.shown.phase === 'accepting') note(desk, id, () => book.update(id, { shown: { phase: 'idle' } }));
  };
  try {
    const answer = await ask(desk, { record, method: 'PUT', path, token, request, signal });
    if (!isOk(answer)) {
      notOurs();
      return answer;
    }
    const stored = jsonOf(answer, how);
    const read = givenJob(stored, job);
    if (read === null) throw badAnswer(how);
    if (book.get(id)?.shown.phase !== 'accepting') return null;
    book.update(id, { shown: { phase: 'accepted', job: read.job }, sealed: { jobAnswer: stored, jobToken: read.token } });
  } catch (error) {
    unsure();
    throw error;
  }
  return null;
}

function waiting({ shown: { phase } }: AgentRecord): boolean {
  return phase === 'accepted' || phase === 'handed' || phase === 'connected';
}

type Decision = AgentRecord | 'refused' | 'late';

/** The record once its job is allowed. Rejects when the agent has gone away. */
function decided(desk: Desk, { signal }: Call, taken: AgentRecord): Promise<Decision> {
  const { promise, resolve } = Promise.withResolvers<Decision>();
  const look = (record: AgentRecord | null): void => {
    if (record === null || !waiting(record)) resolve('refused');
    else if (record.allowed) resolve(record);
  };
  const { id } = taken.shown;
  const unwatch = desk.book.watch(id, look);
  const late = (): void => resolve('late');
  const timer = setTimeout(late, desk.limits.decisionMs);
  signal.addEventListener('abort', late, { once: true });
  look(desk.book.get(id));
  return promise.finally(() => {
    unwatch();
    clearTimeout(timer);
    signal.removeEventListener('abort', late);
  });
}
