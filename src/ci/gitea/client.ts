/** The few calls of Gitea that onejob makes: its REST API with the token of the config, its runner service with a runner's own. */
import type { z } from 'zod';
import { hasCode } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { allPages, type Page } from '../kit/pages.ts';
import { Rest, type RestCall } from '../kit/rest.ts';
import { varintOf } from './proto.ts';
import * as wire from './wire.ts';

export interface GiteaClientOptions {
  /** Of the server, without a slash at its end. */
  readonly url: string;
  /** @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  readonly version: string;
  /** ms for one answer; default 30 s. */
  readonly timeout?: number;
}

/** What a runner signs in with: good for one task, if it is ephemeral. */
export interface RunnerKey {
  readonly uuid: string;
  readonly token: string;
}

/** Rows of a page; more are never sent (`[api] MAX_RESPONSE_ITEMS`). */
const pageSize = 50;

/** `place`: whose runners and jobs, as a part of the path: `orgs/acme`, `repos/acme/demo`, `user`, `admin`. Throws E_CI_*, E_SECRET. */
export class GiteaClient {
  readonly #parts: GiteaClientOptions;
  readonly #rest: Rest;

  constructor(parts: GiteaClientOptions) {
    this.#parts = parts;
    this.#rest = new Rest({
      ...this.#parts,
      base: this.#parts.url,
      authorization: async () => `token ${(await this.#parts.token()).trim()}`,
      hints: {
        credential: 'Put a valid access token where "token" of the service points (Settings, Applications, Access tokens).',
        denied:
          'Give the token the scopes write:organization and read:repository (an organisation), write:repository (a repository), write:user and read:repository (your own), or write:admin and read:repository (the whole instance), and its owner the right to manage that.',
        answer: 'Check "url" of the service, and what answers there.',
      },
    });
  }

  version(signal: AbortSignal) {
    return this.#rest.read(wire.version, { path: api('version'), doing: 'read the version of the server' }, signal);
  }

  /** Whose token it is; null when the token may not say that (scope read:user). */
  async user(signal: AbortSignal): Promise<string | null> {
    try {
      const found = await this.#rest.read(wire.user, { path: api('user'), doing: 'find out whose token it is' }, signal);
      return found.login;
    } catch (error) {
      if (hasCode(error, 'E_CI_DENIED')) return null;
      throw error;
    }
  }

  /** Whether the token may read repositories, where all jobs are. @throws OnejobError E_CI_DENIED when it may not */
  async seesJobs(signal: AbortSignal): Promise<void> {
    await this.#rest.read(wire.anything, { path: api('repos/search'), query: { limit: '1' }, doing: 'look at jobs' }, signal);
  }

  async hasRepository(name: string, signal: AbortSignal): Promise<boolean> {
    const call = { path: api(`repos/${name}`), doing: `find repository "${name}"` };
    return (await this.#rest.find(wire.anything, call, signal)) !== null;
  }

  /** Whether there is an organisation with that name that this token sees. @throws OnejobError E_CI_DENIED when it may not look */
  async hasOrganisation(name: string, signal: AbortSignal): Promise<boolean> {
    const path = api(`orgs/${encodeURIComponent(name)}`);
    return (await this.#rest.find(wire.organisation, { path, doing: `find organisation "${name}"` }, signal)) !== null;
  }

  runners(place: string, signal: AbortSignal): Promise<wire.Runner[]> {
    return this.#all(wire.runnerPage, { path: runnersOf(place), doing: `list the runners of ${place}` }, signal);
  }

  runner(place: string, id: string, signal: AbortSignal): Promise<wire.Runner | null> {
    return this.#rest.find(wire.runner, { path: `${runnersOf(place)}/${id}`, doing: `look at runner ${id} of ${place}` }, signal);
  }

  /** Jobs in this state. */
  jobs(place: string, status: 'queued' | 'in_progress', signal: AbortSignal): Promise<wire.GiteaJob[]> {
    const call = { path: api(`${place}/actions/jobs`), query: { status }, doing: `list the jobs of ${place}` };
    return this.#all(wire.giteaJobPage, call, signal);
  }

  /** The newest jobs that are over, at most 100. The server sorts by nothing, so usually by their ids. */
  async endedJobs(place: string, signal: AbortSignal): Promise<wire.GiteaJob[]> {
    const call = { path: api(`${place}/actions/jobs`), doing: `list the jobs of ${place} that ended` };
    const at = (page: number) => {
      const query = { status: 'completed', limit: String(pageSize), page: String(page) };
      return this.#rest.read(wire.giteaJobPage, { ...call, query }, signal);
    };
    const first = await at(1);
    const last = Math.ceil(first.total / pageSize);
    const pages = [...new Set([last, last - 1])].filter((page) => page > 1);
    const more = await Promise.all(pages.map(at));
    return [...(last <= 2 ? first.rows : []), ...more.flatMap(({ rows }) => rows)];
  }

  job(repository: string, id: number, signal: AbortSignal): Promise<wire.GiteaJob | null> {
    return this.#rest.find(wire.job, { path: api(`repos/${repository}/actions/jobs/${id}`), doing: `look at job ${id}` }, signal);
  }

  run(repository: string, id: number, signal: AbortSignal): Promise<wire.WorkflowRun | null> {
    const call = { path: api(`repos/${repository}/actions/runs/${id}`), doing: `look at run ${id}` };
    return this.#rest.find(wire.workflowRun, call, signal);
  }

  /** Ids of the newest tasks of a repository that run. A task is one try of a job, and only a runner's own log names it otherwise. */
  async runningTasks(repository: string, signal: AbortSignal): Promise<number[]> {
    const path = api(`repos/${repository}/actions/tasks`);
    const call = { path, query: { limit: '50' }, doing: 'list the tasks of the repository' };
    const found = await this.#rest.read(wire.taskPage, call, signal);
    return found.workflow_runs.filter(({ status }) => status === 'running').map(({ id }) => id);
  }

  async setDisabled(place: string, id: string, disabled: boolean, signal: AbortSignal): Promise<'done' | 'absent'> {
    const doing = `${disabled ? 'disable' : 'enable'} runner ${id} of ${place}`;
    const call = { method: 'PATCH', path: `${runnersOf(place)}/${id}`, body: { disabled }, doing } as const;
    const answered = await this.#rest.ask(call, signal);
    if (answered.ok) return 'done';
    if (answered.status === 404) return 'absent';
    throw this.#rest.unexpected(call, answered);
  }

  /** The server also deletes a runner that has a job, which then ends only when the server gives it up. */
  async deleteRunner(place: string, id: string, signal: AbortSignal): Promise<'removed' | 'absent'> {
    const call = { method: 'DELETE', path: `${runnersOf(place)}/${id}`, doing: `remove runner ${id} from ${place}` } as const;
    const answered = await this.#rest.ask(call, signal);
    if (answered.ok) return 'removed';
    if (answered.status === 404) return 'absent';
    throw this.#rest.unexpected(call, answered);
  }

  /** Registers runners of this place only. The same until somebody resets it. */
  async registrationToken(place: string, signal: AbortSignal): Promise<string> {
    const doing = `get a registration token for ${place}`;
    const call = { method: 'POST', path: `${runnersOf(place)}/registration-token`, doing } as const;
    return (await this.#rest.send(wire.registrationToken, call, signal)).token;
  }

  /**
   * Sent once; names may repeat. null: the registration token is no longer valid. After E_CI_UNREACHABLE, E_CI_ANSWER or an abort the
   * runner may exist.
   */
  async register(
    of: { readonly name: string; readonly token: string; readonly labels: readonly string[]; readonly version: string },
    signal: AbortSignal,
  ): Promise<({ readonly id: number } & RunnerKey) | null> {
    const call = rpc('Register', null, { ...of, ephemeral: true }, `register runner ${of.name}`);
    const answered = await this.#rest.ask(call, signal);
    if (!answered.ok && /registration token/.test(answered.why)) return null;
    return this.#rest.expected(wire.registered, call, answered).runner;
  }

  /**
   * What the server has for this runner, as it came: with a task, which it gives once, or without. Sent once: after an error or an
   * abort the runner may have a task.
   */
  async fetchTask(key: RunnerKey, signal: AbortSignal): Promise<Buffer> {
    // Version 0 of the tasks, so that the server looks for one.
    const proto = Uint8Array.of(8, ...varintOf(0));
    const call: RestCall = { ...rpc('FetchTask', key, undefined, 'ask for a job'), proto, onlyStatus: true };
    const answered = await this.#rest.ask(call, signal);
    if (answered.ok && /^application\/proto\b/.test(answered.headers.get('Content-Type') ?? '')) return answered.bytes;
    throw this.#rest.unexpected(call, answered);
  }

  /** Tells the server that the task is not forgotten. false: it is over, or not this runner's. */
  async touch(key: RunnerKey, task: number, signal: AbortSignal): Promise<boolean> {
    const call = rpc('UpdateTask', key, { state: { id: String(task) } }, `report task ${task}`);
    const answered = await this.#rest.ask(call, signal);
    if (!answered.ok) return false;
    const found = wire.updated.safeParse(answered.body ?? {});
    return found.success && (found.data.state?.result ?? 'RESULT_UNSPECIFIED') === 'RESULT_UNSPECIFIED';
  }

  /** The number of lines that the task's log has; null: it is not this runner's task. `rows`: added, after `from` others; `isLast`: no more follow. */
  async log(
    key: RunnerKey,
    task: number,
    {
      from,
      rows,
      isLast,
    }: { readonly from: number; readonly rows: readonly { time: string; content: string }[]; readonly isLast: boolean },
    signal: AbortSignal,
  ): Promise<number | null> {
    const body = { taskId: String(task), index: String(from), rows, noMore: isLast };
    const call = rpc('UpdateLog', key, body, `write to the log of task ${task}`);
    const answered = await this.#rest.ask(call, signal);
    if (!answered.ok) return null;
    const found = wire.logged.safeParse(answered.body ?? {});
    if (!found.success) throw this.#rest.unexpected(call, answered);
    return found.data.ackIndex;
  }

  /** Ends the task. false: it is over, or not this runner's. `at`: ms since the epoch. */
  async fail(key: RunnerKey, task: number, at: number, signal: AbortSignal): Promise<boolean> {
    const state = { id: String(task), result: 'RESULT_FAILURE', stoppedAt: new Date(at).toISOString() };
    return (await this.#rest.ask(rpc('UpdateTask', key, { state }, `end task ${task}`), signal)).ok;
  }

  #all<T extends { readonly id: number }>(
    schema: z.ZodType<Page<T>>,
    call: Omit<RestCall, 'method'>,
    signal: AbortSignal,
  ): Promise<T[]> {
    return allPages(pageSize, (page) => {
      const query = { ...call.query, limit: String(pageSize), page: String(page) };
      return this.#rest.read(schema, { ...call, query }, signal);
    });
  }
}

/** A call of the runner service. It answers 500 for most of what it refuses. */
function rpc(method: string, key: RunnerKey | null, body: unknown, doing: string): RestCall {
  return {
    method: 'POST',
    path: `/api/actions/runner.v1.RunnerService/${method}`,
    body,
    doing,
    refusesWith500: true,
    signedBy: key === null ? {} : { 'x-runner-uuid': key.uuid, 'x-runner-token': key.token },
  };
}

function runnersOf(place: string) {
  return api(`${place}/actions/runners`);
}

function api(path: string) {
  return `/api/v1/${path}`;
}
