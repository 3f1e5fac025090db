/**
 * The few calls of GitLab that onejob makes: with the runner's token it asks for jobs and verifies itself, and with a job's own token
 * it asks about that job and ends it. Calls from gitlab-runner 19.4 (`network/gitlab.go`), answers from GitLab (`lib/api/ci/runner.rb`).
 */

import { hasCode, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { Rest, type RestCall } from '../kit/rest.ts';
import * as wire from './wire.ts';

export interface GitlabClientOptions {
  /** Of the server, without a slash at its end. */
  readonly url: string;
  /** Of the runner. @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  /** By which the server tells this installation from others with the same token. */
  readonly systemId: string;
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  readonly version: string;
}

/** ms for one answer. A server that holds a call for a job does so for up to 50 s (workhorse, `apiCiLongPollingDuration`). */
const timeout = 65_000;

/** What the runner in the sandbox can do (19.4: `network/gitlab.go`, `shells/abstract.go`, `executors/shell`). */
const features = Object.fromEntries(
  [
    ...['variables', 'artifacts', 'cache', 'fallback_cache_keys', 'upload_multiple_artifacts', 'upload_raw_artifacts', 'refspecs'],
    ...['masking', 'raw_variables', 'artifacts_exclude', 'multi_build_steps', 'trace_reset', 'trace_checksum', 'trace_size'],
    ...['vault_secrets', 'cancelable', 'return_exit_code', 'cancel_gracefully', 'two_phase_job_commit', 'shared'],
  ].map((name) => [name, true]),
);

/** Whose runner it is, as jobs have said since the start: one of the whole instance, or of a group or a project. */
export type RunnerScope = 'no-job' | 'untold' | 'instance' | 'smaller';

/** Methods throw OnejobError E_CI_*, E_SECRET, or the reason of `signal`. */
export class GitlabClient {
  readonly #parts: GitlabClientOptions;
  readonly #rest: Rest;
  #lastUpdate: string | null = null;
  #scope: RunnerScope = 'no-job';

  constructor(parts: GitlabClientOptions) {
    this.#parts = parts;
    this.#rest = new Rest({
      ...this.#parts,
      timeout,
      base: this.#parts.url,
      authorization: async () => '',
      hints: {
        credential: 'Put the token of a runner (it begins with "glrt-") where "token" of the service points.',
        denied: 'Look at the job at the server.',
        answer: 'Check "url" of the service, and what answers there.',
      },
    });
  }

  get runnerScope(): RunnerScope {
    return this.#scope;
  }

  /**
   * A job that the server now counts as this runner's; null: none waits. `agent`: version of the runner in the sandboxes. `mayHold`:
   * the server may hold the call until there is news; it does so only for a caller that says which news it has (Workhorse's long poll).
   */
  async request(agent: string, mayHold: boolean, signal: AbortSignal): Promise<wire.GivenJob | null> {
    const doing = 'ask for a job';
    const more = this.#lastUpdate === null || !mayHold ? {} : { last_update: this.#lastUpdate };
    const { call, answered } = await this.#asRunner('jobs/request', doing, agent, more, signal);
    this.#lastUpdate = answered.headers.get('X-GitLab-Last-Update') ?? this.#lastUpdate;
    if (answered.status === 204) return null;
    const found = answered.status === 201 ? wire.givenJob.safeParse(answered.body) : null;
    if (found?.success === true) {
      const { project_jobs_running_on_instance_runners_count: running } = found.data.job_info;
      if (running != null) this.#scope = running === '+Inf' ? 'smaller' : 'instance';
      else if (this.#scope === 'no-job') this.#scope = 'untold';
      return found.data;
    }
    throw this.#rest.unexpected(call, found === null ? answered : { ...answered, why: 'with a job that onejob cannot read' });
  }

  /** The runner's id; null: the server did not say. Makes the server notice this installation. */
  async verify(agent: string, signal: AbortSignal): Promise<{ readonly id: number | null; readonly date: string | null }> {
    const { call, answered } = await this.#asRunner('runners/verify', 'verify the token of the runner', agent, {}, signal);
    const { id = null } = this.#rest.expected(wire.verified, call, answered);
    return { id, date: answered.headers.get('Date') };
  }

  /** State of a job; null: its token is refused, mostly because it is over. Changes nothing. */
  async state(job: wire.JobKey, signal: AbortSignal): Promise<string | null> {
    const call: RestCall = { ...asJob(job, { method: 'GET', doing: `look at job ${job.id}` }), path: '/api/v4/job' };
    const answered = await this.#rest.ask(call, signal);
    if ([401, 403, 404].includes(answered.status)) return null;
    return this.#rest.expected(wire.ownJob, call, answered).status;
  }

  /**
   * Reports the job as running, or as waiting for its runner, and hears its state: `gone` when it is not this host's any more, `over`
   * when the server only says that its token is no longer valid. A job that runs, or that no runner has to accept, cannot wait, which
   * is answered with 400 (GitLab's `UpdateBuildStateService`).
   */
  async touch(job: wire.JobKey, state: 'running' | 'pending', signal: AbortSignal): Promise<string> {
    const call = asJob(job, { method: 'PUT', body: { token: job.token, state }, doing: `report job ${job.id}` });
    const answered = await this.#rest.ask(call, signal);
    const told = answered.headers.get('Job-Status');
    const isRefused = answered.status === 400 || answered.status === 409;
    if (answered.status === 404 || (isRefused && state === 'running')) return 'gone';
    if (answered.ok || isRefused) return told ?? 'running';
    if (answered.status === 401 || answered.status === 403) return told ?? 'over';
    throw this.#rest.unexpected(call, answered);
  }

  /** Adds to the end of the job's log. Whether the server took it. */
  async write(job: wire.JobKey, text: string, signal: AbortSignal): Promise<boolean> {
    const bytes = Buffer.byteLength(text);
    // A wrong place is answered with the right one.
    for (let [from, tries] = [0, 0]; tries < 3; tries += 1) {
      const headers = { 'Content-Range': `${from}-${from + bytes - 1}` };
      const call = asJob(job, { method: 'PATCH', text, headers, doing: `write to the log of job ${job.id}` }, '/trace');
      const answered = await this.#rest.ask(call, signal);
      if (answered.status !== 416) return answered.ok;
      from = Number(/^(?:bytes=)?\d+-(\d+)$/.exec(answered.headers.get('Range') ?? '')?.[1] ?? 0);
    }
    return false;
  }

  /** Ends the job as failed; false: it was over already. `reason`: one that the job's server knows. */
  async fail(job: wire.JobKey, reason: string, signal: AbortSignal): Promise<boolean> {
    const body = { token: job.token, state: 'failed', failure_reason: reason };
    const call = asJob(job, { method: 'PUT', body, doing: `end job ${job.id}` });
    for (let tries = 0; ; tries += 1) {
      const answered = await this.#rest.ask(call, signal);
      // The server still stores the log, and wants to be asked again.
      if (answered.status === 202 && tries < 10) await sleep(this.#parts.clock, 1_000, signal);
      else if (answered.ok) return true;
      else if ([400, 401, 403, 404].includes(answered.status)) return false;
      else throw this.#rest.unexpected(call, answered);
    }
  }

  /** A call with the runner's token, which the server refuses with a 403. */
  async #asRunner(path: string, doing: string, agent: string, more: object, signal: AbortSignal) {
    const own = (await this.#parts.token()).trim();
    const info = { name: 'gitlab-runner', version: agent, executor: 'shell', shell: 'bash', platform: 'linux', features };
    const body = { token: own, system_id: this.#parts.systemId, info, ...more };
    const call: RestCall = { method: 'POST', path: `/api/v4/${path}`, body, doing, signedBy: { 'RUNNER-TOKEN': own } };
    try {
      return { call, answered: await this.#rest.ask(call, signal) };
    } catch (error) {
      if (!hasCode(error, 'E_CI_DENIED')) throw error;
      const message = error.message.replace('does not allow it', 'refuses the token of the runner');
      const hint = 'Check that the runner still exists at the server, and put its token where "token" of the service points.';
      throw new OnejobError('E_CI_CREDENTIAL', message, { hint, cause: error });
    }
  }
}

function asJob({ id, token: own }: wire.JobKey, call: Omit<RestCall, 'path' | 'signedBy'>, below = ''): RestCall {
  return {
    ...call,
    path: `/api/v4/jobs/${id}${below}`,
    signedBy: { 'JOB-TOKEN': own },
    onlyStatus: true,
  };
}
