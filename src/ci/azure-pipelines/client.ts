/**
 * The few routes of Azure DevOps that onejob uses. Each call ends in time and follows no redirect. The credential goes to the
 * configured address only. onejob does not repeat a call that may have been carried out.
 */
import type { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import { compareVersions } from '../../base/version.ts';
import type { Clock } from '../../core/clock.ts';
import { createSend, invalidPart } from '../../http/api.ts';
import type { Answer } from '../../http/exchange.ts';
import { createThrottle } from '../../http/throttle.ts';
import { type Credential, without } from '../../secrets/credential.ts';
import { noAnswer } from '../kit/rest.ts';
import { type AnswerVerdict, type AzureCall, errorOf, judgeAnswer } from './answers.ts';
import { baseOf } from './url.ts';
import {
  agent,
  agentPackage,
  build,
  connection,
  jobRequest,
  listOf,
  type NewAgent,
  pool,
  registeredAgent,
  timeline,
} from './wire.ts';

/** What to ask of an agent. `assigned`: the job it has; without it nothing says whether an agent is busy. */
type AgentQuery = Readonly<Partial<Record<'capabilities' | 'assigned', boolean>>>;

export interface AzureClientOptions {
  /** Of the organisation or collection. @throws OnejobError E_CONFIG by `AzureClient` when it is invalid */
  readonly url: string;
  readonly credential: Credential;
  readonly clock: Clock;
  readonly fetch?: typeof fetch;
  /** ms for one answer, and for all that has to be waited for before it; default 30 s. */
  readonly timeout?: number;
  readonly version: string;
}

/** The user of requests without a valid credential, in an organisation that has public projects. */
const nobody = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa';
const task = '/_apis/distributedtask';
const agentRoute = { route: 'agents' } as const;
const poolRoute = { route: 'pools', path: `${task}/pools` } as const;
/** Made once, because zod compiles each new schema. */
const [poolList, agentList, jobRequestList, packageList] = [listOf(pool), listOf(agent), listOf(jobRequest), listOf(agentPackage)];

/** Every call throws OnejobError E_CI_* or E_SECRET; within a pool also E_CI_POOL. */
export class AzureClient {
  readonly #options: AzureClientOptions;
  readonly #call: AzureCaller;

  constructor(options: AzureClientOptions) {
    this.#options = options;
    this.#call = createCaller(baseOf(options.url), options);
  }

  /** Who signed in, and the service's clock minus ours, ms, to about 500 ms; null for what it does not say. */
  async connection(signal: AbortSignal) {
    const before = this.#options.clock.wall();
    const what = { route: 'connectionData', path: '/_apis/connectionData', preview: 1, doing: 'sign in' } as const;
    const query = { connectOptions: '0', lastChangeId: '-1', lastChangeId64: '-1' };
    const called = await this.#call({ method: 'GET', ...what, query }, signal);
    const after = this.#options.clock.wall();
    const { id, user } = bodyAs(connection, called);
    if (id?.toLowerCase() === nobody) throw this.#options.credential.refusal('it treats the token as anonymous');
    // Its time has whole seconds, so that on average it is half a second behind.
    const theirs = Date.parse(called.answer.headers.get('Date') ?? '') + 500;
    return { user, skew: Number.isNaN(theirs) ? null : Math.round(theirs - (before + after) / 2) };
  }

  /** By its name, in any case; null when the service shows none. */
  async findPool(name: string, signal: AbortSignal) {
    const query = { poolName: name, poolType: 'automation' };
    const found = await this.#read(poolList, { ...poolRoute, query, doing: `find pool "${name}"` }, signal);
    return found.find((one) => one.name.toLowerCase() === name.toLowerCase()) ?? null;
  }

  pools(signal: AbortSignal) {
    return this.#read(poolList, { ...poolRoute, query: { poolType: 'automation' }, doing: 'list the pools' }, signal);
  }

  agents(poolId: number, { name, ...flags }: AgentQuery & { readonly name?: string }, signal: AbortSignal) {
    const query = { ...(name !== undefined && { agentName: name }), ...told(flags) };
    const doing = name === undefined ? `list the agents of pool ${poolId}` : `find agent ${name} in pool ${poolId}`;
    return this.#read(agentList, { ...agentRoute, path: agentsOf(poolId), query, doing }, signal);
  }

  agent(poolId: number, id: number, flags: AgentQuery, signal: AbortSignal) {
    const path = `${agentsOf(poolId)}/${id}`;
    return this.#find(agent, { ...agentRoute, path, query: told(flags), doing: `look at agent ${id} of pool ${poolId}` }, signal);
  }

  /** Sent once. After E_CI_UNREACHABLE, E_CI_ANSWER or an abort the agent may exist. @throws OnejobError E_CI_NAME_TAKEN */
  async addAgent(poolId: number, { publicKey, ...rest }: NewAgent, signal: AbortSignal) {
    const doing = `register agent ${rest.name} in pool ${poolId}`;
    const body = { ...rest, maxParallelism: 1, provisioningState: 'Provisioned', authorization: { publicKey } };
    const what = { ...agentRoute, method: 'POST', path: agentsOf(poolId), body, doing } as const;
    return bodyAs(registeredAgent, await this.#call(what, signal));
  }

  setEnabled(poolId: number, id: number, enabled: boolean, signal: AbortSignal) {
    const doing = `${enabled ? 'enable' : 'disable'} agent ${id} of pool ${poolId}`;
    const what = { ...agentRoute, method: 'PATCH', path: `${agentsOf(poolId)}/${id}`, body: { id, enabled }, doing } as const;
    return this.#change(what, signal);
  }

  /** Replaces all user capabilities. */
  setUserCapabilities(poolId: number, id: number, map: Readonly<Record<string, string>>, signal: AbortSignal) {
    const doing = `set the capabilities of agent ${id} of pool ${poolId}`;
    const path = `${agentsOf(poolId)}/${id}/usercapabilities`;
    return this.#change({ method: 'PUT', route: 'usercapabilities', preview: 1, path, body: map, doing }, signal);
  }

  /** `refused`: the service's words, mostly that it runs a job. */
  async deleteAgent(poolId: number, id: number, signal: AbortSignal) {
    const doing = `remove agent ${id} from pool ${poolId}`;
    const called = await this.#call({ ...agentRoute, method: 'DELETE', path: `${agentsOf(poolId)}/${id}`, doing }, signal);
    const { verdict } = called;
    if (verdict.kind === 'value' || verdict.kind === 'nothing') return 'deleted';
    if (verdict.kind === 'absent') return 'absent';
    const isBusy = verdict.kind === 'denied' && /running a job|runs a job/i.test(verdict.why);
    if (isBusy || (verdict.kind === 'refused' && verdict.typeKey !== 'TaskAgentPoolNotFoundException'))
      return { refused: verdict.why };
    throw called.error();
  }

  /** `unfinished`: all jobs of the pool that are not over. `agent`: the last jobs of one agent. */
  requests(poolId: number, which: { readonly unfinished: true } | { readonly agent: number }, signal: AbortSignal) {
    const isOfPool = 'unfinished' in which;
    const query: Record<string, string> = isOfPool ? { completedRequestCount: '0' } : { agentId: String(which.agent) };
    const doing = `list the jobs of ${isOfPool ? '' : `agent ${which.agent} in `}pool ${poolId}`;
    const path = `${task}/pools/${poolId}/jobrequests`;
    return this.#read(jobRequestList, { route: 'jobrequests', path, query, preview: 1, doing }, signal);
  }

  async packages(platform: string, signal: AbortSignal) {
    const doing = `list the available agent packages for ${platform}`;
    const path = `${task}/packages/agent/${encodeURIComponent(platform)}`;
    const found = await this.#read(packageList, { route: 'packages', path, query: { $top: '20' }, preview: 2, doing }, signal);
    return found.toSorted((a, b) => compareVersions(b.version, a.version));
  }

  /** `project`: its id or name. Needs the scope Build (Read), without which it throws E_CI_DENIED. */
  build(project: string, id: number, signal: AbortSignal) {
    const path = `/${encodeURIComponent(project)}/_apis/build/builds/${id}`;
    return this.#find(build, { route: 'builds', path, doing: `look at build ${id}`, scope: 'Build (Read)' }, signal);
  }

  /** The records of a build's jobs and steps; null when the service has none. Needs the same scope as `build`. */
  timeline(project: string, id: number, signal: AbortSignal) {
    const path = `/${encodeURIComponent(project)}/_apis/build/builds/${id}/timeline`;
    const what = { route: 'timeline', path, doing: `look at the steps of build ${id}`, scope: 'Build (Read)' };
    return this.#find(timeline, what, signal);
  }

  async #read<T extends z.ZodType>(schema: T, what: Omit<AzureCall, 'method' | 'scope'>, signal: AbortSignal) {
    return bodyAs(schema, await this.#call({ method: 'GET', ...what }, signal));
  }

  /** As `read`; null when the service says that there is none. */
  async #find<T extends z.ZodType>(schema: T, what: Omit<AzureCall, 'method'>, signal: AbortSignal) {
    const called = await this.#call({ method: 'GET', ...what }, signal);
    return called.verdict.kind === 'absent' ? null : bodyAs(schema, called);
  }

  /** Changes an agent; sent again only when the service says that it did nothing. */
  async #change(what: Omit<AzureCall, 'scope'>, signal: AbortSignal): Promise<'done' | 'absent'> {
    const called = await this.#call(what, signal);
    const { kind } = called.verdict;
    if (kind === 'value' || kind === 'nothing') return 'done';
    if (kind === 'absent') return 'absent';
    throw called.error();
  }
}

function agentsOf(poolId: number) {
  return `${task}/pools/${poolId}/agents`;
}

function told({ capabilities, assigned }: AgentQuery): Record<string, string> {
  return { ...(capabilities && { includeCapabilities: 'true' }), ...(assigned && { includeAssignedRequest: 'true' }) };
}

function bodyAs<T extends z.ZodType>(schema: T, called: Called): z.output<T> {
  if (called.verdict.kind !== 'value') throw called.error();
  const found = schema.safeParse(called.verdict.body);
  if (found.success) return found.data;
  const where = invalidPart(found.error, 'its response');
  const message = `Cannot ${called.what.doing}: ${called.base} sent an unexpected response: ${where} is invalid.`;
  throw new OnejobError('E_CI_ANSWER', message, { hint: 'Check "url", and what answers there.', retry: true });
}

/** The newest version that is not a preview (2025). An older Server is asked for its own. */
const newest = '7.1';
/** Bytes of an answer. A pool of thousands of agents with their capabilities stays below it. */
const most = 8 * 1024 * 1024;

interface Called {
  readonly verdict: AnswerVerdict;
  readonly answer: Answer;
  readonly what: AzureCall;
  readonly base: string;
  /** The verdict as an error. */
  error(): OnejobError;
}

/** @throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_THROTTLED, E_CI_UNREACHABLE, E_CI_ANSWER, E_SECRET */
type AzureCaller = (what: AzureCall, signal: AbortSignal) => Promise<Called>;

/** Waits as the service asks, signs in, and repeats only what was not carried out. `base`: without a slash at its end. */
function createCaller(
  base: string,
  { credential, clock, version: ours, fetch: send = fetch, timeout = 30_000 }: AzureClientOptions,
): AzureCaller {
  const throttle = createThrottle(clock, base);
  /** The newest version this server knows, once it has refused a newer one. */
  let supported: string | null = null;
  /** Routes that turned out to be previews here. */
  const previews = new Set<string>();

  const accept = ({ route, preview }: AzureCall): string => {
    const version = supported ?? newest;
    const isPreview = preview !== undefined || previews.has(route);
    const number = preview === undefined || supported !== null ? '' : `.${preview}`;
    return `application/json;api-version=${version}${isPreview ? `-preview${number}` : ''}`;
  };
  const redact = (text: string) => without(credential.redact(), text);

  const over = createSend({ clock, fetch: send, timeout, most, version: ours }, (reason, { doing }: AzureCall, { url }) =>
    noAnswer(reason, doing, url, most),
  );
  const ask = (call: AzureCall, header: string, signal: AbortSignal): Promise<Answer> => {
    const headers = { Authorization: header, Accept: accept(call), 'X-TFS-FedAuthRedirect': 'Suppress' };
    const url = base + call.path + queryOf(call.query);
    return over({ method: call.method, url, headers, json: call.body }, call, signal);
  };

  /** What the same credential gets where every credential of onejob is accepted. */
  const probed = async (header: string, signal: AbortSignal): Promise<AnswerVerdict> => {
    const query = { poolName: 'onejob', poolType: 'automation' };
    const what = { method: 'GET', ...poolRoute, query, doing: 'check whether the token is accepted' } as const;
    const answer = await ask(what, header, signal);
    throttle.heard(answer);
    return judgeAnswer(answer, redact);
  };

  return async (what: AzureCall, signal: AbortSignal) => {
    const errorFor = (verdict: AnswerVerdict) => errorOf(verdict, what, base);
    const deadline = clock.now() + timeout;
    let tries = 0;
    let isRenewed = false;
    for (;;) {
      await throttle.ready(what.doing, deadline, signal);
      const header = await credential.header(signal);
      const accepted = accept(what);
      const answer = await ask(what, header, signal);
      const verdict = judgeAnswer(answer, redact);
      throttle.heard(answer, verdict.kind === 'throttled' ? verdict.why : '');
      switch (verdict.kind) {
        case 'throttled':
          // After a 503, a call that changes something may have been carried out.
          if (answer.status === 429 || what.method !== 'POST') continue;
          throw errorFor({ kind: 'down', why: `answered 503: ${verdict.why}` });
        case 'version': {
          tries += 1;
          if (verdict.supports === null) previews.add(what.route);
          else supported = verdict.supports;
          // Another call may have learned it meanwhile.
          if (tries > 2 || accept(what) === accepted) throw errorFor(verdict);
          continue;
        }
        case 'rejected': {
          // A token without the right scope looks like a wrong one; a call that every token may make tells them apart.
          const isOther = what.method !== 'GET' || what.scope !== undefined;
          const other = isOther ? await probed(header, signal) : verdict;
          if (other.kind === 'value') throw errorFor({ kind: 'denied', why: verdict.why });
          if (other.kind === 'throttled') continue;
          if (other.kind !== 'rejected') throw errorFor(other);
          const error = credential.rejected(verdict.why, header);
          if (!error.retry || isRenewed) throw error;
          isRenewed = true;
          continue;
        }
        default:
          if (verdict.kind !== 'down' && verdict.kind !== 'strange') credential.accepted(header);
          return { verdict, answer, what, base, error: () => errorFor(verdict) };
      }
    }
  };
}

/** A space as `%20`, and `$` unescaped: some servers do not read the form encoding. */
function queryOf(query: Readonly<Record<string, string>> = {}): string {
  const written = new URLSearchParams(query).toString().replaceAll('+', '%20').replaceAll('%24', '$');
  return written === '' ? '' : `?${written}`;
}
