/**
 * A GitLab of one runner and its jobs: the part of the API that runners talk to, as a `fetch` for tests in virtual time and faults, and
 * on a port for the real runner. What it answers is from gitlab-runner 19.4 (`network/`) and GitLab's `lib/api/ci/runner.rb`; no real
 * server was asked.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Clock, sleep } from '../../src/core/clock.ts';
import { onPort } from '../standins/kit/port.ts';
import { noPages } from '../standins/kit/server.ts';

export type JobState = 'pending' | 'waiting' | 'running' | 'canceling' | 'success' | 'failed' | 'canceled';

export interface JobRow {
  readonly id: number;
  token: string;
  state: JobState;
  readonly spec: JobSpec;
  trace: Buffer;
  reason: string | null;
  exitCode: number | null;
  /** What runners uploaded. */
  artifacts: Buffer | null;
  /** How often it was given to a runner. */
  given: number;
}

export interface JobSpec {
  /** How many jobs of its project run on runners of the instance; `+Inf`: its runner is not one of these; left out: an old server. */
  readonly runningOnInstance?: string;
  readonly script: readonly string[];
  readonly image?: string | Readonly<Record<string, unknown>>;
  /** Names, or what GitLab says of them besides (gitlab-runner's `common/spec/spec.go`, `Image`). */
  readonly services?: readonly (string | Readonly<Record<string, unknown>>)[];
  readonly variables?: Readonly<Record<string, string>>;
  readonly ref?: string;
  readonly tag?: boolean;
  readonly name?: string;
  /** Paths to keep. */
  readonly artifacts?: readonly string[];
  /** As the server gives it, with keys that end in what the ref is. */
  readonly cache?: readonly Readonly<Record<string, unknown>>[];
  /** Whether its ref is protected; left out: an old server. */
  readonly isProtected?: boolean;
  /** Default `acme/demo`. */
  readonly project?: string;
  /** The commit of `sources` that it begins with; none: it fetches nothing. */
  readonly sha?: string;
  /** Earlier jobs whose artifacts it gets. */
  readonly needs?: readonly number[];
}

export interface GitlabOptions {
  /** Whether a runner must report that it begins a job; an older server takes it for running. */
  readonly twoPhase?: boolean;
  /** ms for which a question for a job is held; 0: none is. */
  readonly holds?: number;
  readonly clock?: Clock;
  readonly url?: string;
  /** Hears of each job that its runner has ended. */
  readonly ended?: (job: JobRow) => void;
  /** A bare repository, with what `git update-server-info` writes. */
  readonly sources?: string;
}

interface Said {
  readonly status: number;
  readonly json?: unknown;
  readonly body?: Buffer;
  readonly headers?: Readonly<Record<string, string>>;
}
interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers: Headers;
  readonly body: Buffer;
  readonly signal?: AbortSignal | null;
}

export type MemoryGitlab = ReturnType<typeof memoryGitlab>;

export const runnerToken = 'glrt-the-token-of-the-runner';
const reasons = [
  ...['unknown_failure', 'script_failure', 'runner_system_failure', 'job_execution_timeout', 'runner_unsupported'],
  ...['image_pull_failure', 'job_canceled'],
];
const over: ReadonlySet<JobState> = new Set(['success', 'failed', 'canceled']);

export function memoryGitlab({
  twoPhase = true,
  holds = 0,
  clock,
  url: first = 'http://lab',
  sources,
  ended = () => {},
}: GitlabOptions = {}) {
  const jobs: JobRow[] = [];
  /** Each call, without secrets: method and path, and what it was answered. */
  const calls: string[] = [];
  /** Bodies of questions for jobs. */
  const requests: Record<string, unknown>[] = [];
  let url = first;
  let token = runnerToken;
  let fault: 'away' | 'lost' | 'busy' | 'silent' | null = null;
  /** How often a job was queued. */
  let queued = 0;
  /** Whether jobs may not ask about themselves. */
  let isShut = false;
  /** Final reports that are accepted first, and done later. */
  let slow = 0;
  let changed = Promise.withResolvers<void>();
  const stir = (): void => {
    changed.resolve();
    changed = Promise.withResolvers();
  };

  const lastUpdate = () => `update-${queued}`;
  const forbidden = (job?: JobRow): Said => ({
    status: 403,
    json: { message: '403 Forbidden' },
    ...(job !== undefined && { headers: { 'Job-Status': statusOf(job) } }),
  });
  const variable = ([key, value]: readonly [string, string], secret = false) => ({ key, value, public: !secret, masked: secret });

  const named = (one: string | Readonly<Record<string, unknown>>) => (typeof one === 'string' ? { name: one } : one);

  function payload({ id, token: own, spec }: JobRow) {
    const {
      image,
      services = [],
      ref = 'main',
      tag = false,
      name = `job ${id}`,
      artifacts,
      needs = [],
      project = 'acme/demo',
    } = spec;
    const predefined = {
      CI: 'true',
      CI_JOB_ID: String(id),
      CI_JOB_NAME: name,
      CI_JOB_URL: `${url}/${project}/-/jobs/${id}`,
      CI_PIPELINE_ID: '7',
      CI_PIPELINE_SOURCE: 'push',
      CI_PROJECT_ID: '1',
      CI_PROJECT_PATH: project,
      CI_SERVER_URL: url,
      CI_COMMIT_REF_NAME: ref,
      GIT_STRATEGY: spec.sha === undefined ? 'none' : 'clone',
    };
    return {
      id,
      token: own,
      allow_git_fetch: true,
      job_info: {
        id,
        name,
        stage: 'test',
        project_id: 1,
        project_name: 'demo',
        project_full_path: project,
        ...(spec.runningOnInstance !== undefined && { project_jobs_running_on_instance_runners_count: spec.runningOnInstance }),
      },
      git_info: {
        repo_url: `${url.replace('://', `://gitlab-ci-token:${own}@`)}/${project}.git`,
        ref,
        sha: spec.sha ?? 'a'.repeat(40),
        before_sha: '0'.repeat(40),
        ref_type: tag ? 'tag' : 'branch',
        ...(spec.isProtected !== undefined && { protected: spec.isProtected }),
        depth: 0,
        refspecs: [`+refs/heads/${ref}:refs/remotes/origin/${ref}`],
      },
      runner_info: { timeout: 3600 },
      variables: [
        ...Object.entries(predefined).map((pair) => variable(pair)),
        variable(['CI_JOB_TOKEN', own], true),
        variable(['MASKED', 's3cret-value-of-the-job'], true),
        ...Object.entries(spec.variables ?? {}).map((pair) => variable(pair)),
      ],
      steps: [{ name: 'script', script: spec.script, timeout: 3600, when: 'on_success', allow_failure: false }],
      image: image === undefined ? null : named(image),
      services: services.map(named),
      artifacts: artifacts === undefined ? [] : [{ paths: artifacts, when: 'always' }],
      cache: spec.cache ?? [],
      credentials: [],
      dependencies: needs.map((other) => {
        const done = jobs.find((one) => one.id === other);
        const file = { filename: 'artifacts.zip', size: done?.artifacts?.length ?? 0 };
        return { id: other, token: done?.token, name: `job ${other}`, artifacts_file: file };
      }),
      features: { trace_sections: true, failure_reasons: reasons, two_phase_job_commit: twoPhase },
    };
  }

  async function request(body: Record<string, unknown>, signal?: AbortSignal | null): Promise<Said> {
    requests.push(body);
    if (fault === 'busy') return { status: 503, json: { message: 'busy' } };
    if (body.token !== token) return forbidden();
    const waiting = () => jobs.find(({ state }) => state === 'pending');
    // Held only for a caller that knows all news, and answered without a word (GitLab Workhorse, `builds/register.go`).
    if (holds > 0 && body.last_update === lastUpdate()) {
      const wait = clock === undefined ? new Promise<void>((done) => setTimeout(done, holds)) : sleep(clock, holds);
      const aborted = new Promise<void>((done) => signal?.addEventListener('abort', () => done(), { once: true }));
      await Promise.race([wait, changed.promise, aborted]);
      signal?.throwIfAborted();
      return { status: 204 };
    }
    // Nothing has been queued since it said that there is no job, so it does not look.
    const job = body.last_update === lastUpdate() ? undefined : waiting();
    if (job === undefined) return { status: 204, headers: { 'X-GitLab-Last-Update': lastUpdate() } };
    job.state = twoPhase ? 'waiting' : 'running';
    job.given += 1;
    return { status: 201, json: payload(job) };
  }

  function put(job: JobRow, body: Record<string, unknown>): Said {
    const say = (status: number): Said => ({ status, json: String(status), headers: { 'Job-Status': statusOf(job) } });
    if (job.state === 'waiting' && body.state === 'pending') return say(200);
    if (job.state === 'waiting' && body.state === 'running') job.state = 'running';
    if (job.state === 'waiting' || job.state === 'pending' || body.state === 'pending') return say(400);
    if (body.state === 'running') return say(200);
    const output = body.output as { bytesize?: number } | undefined;
    if ((output?.bytesize ?? 0) > 0 && output?.bytesize !== job.trace.length) return say(412);
    if (slow > 0) {
      slow -= 1;
      return say(202);
    }
    job.reason = typeof body.failure_reason === 'string' ? body.failure_reason : null;
    job.exitCode = typeof body.exit_code === 'number' ? body.exit_code : null;
    job.state = job.state === 'canceling' ? 'canceled' : body.state === 'success' ? 'success' : 'failed';
    ended(job);
    stir();
    return say(200);
  }

  function patch(job: JobRow, headers: Headers, body: Buffer): Said {
    const from = Number(/^(\d+)-/.exec(headers.get('Content-Range') ?? '')?.[1] ?? Number.NaN);
    if (Number.isNaN(from)) return { status: 400, json: { message: '400 Missing header Content-Range' } };
    if (from !== job.trace.length)
      return { status: 416, json: { message: '416 Range Not Satisfiable' }, headers: { Range: `0-${job.trace.length}` } };
    job.trace = Buffer.concat([job.trace, body]);
    stir();
    const range = { Range: `0-${job.trace.length}`, 'X-GitLab-Trace-Update-Interval': '3' };
    return { status: 202, json: null, headers: { 'Job-Status': statusOf(job), ...range } };
  }

  async function answer({ method, path, headers, body, signal }: Asked): Promise<Said> {
    const json = (): Record<string, unknown> => JSON.parse(body.toString() || '{}');
    if (path === '/api/v4/jobs/request') return request(json(), signal);
    if (path === '/api/v4/runners/verify') return json().token === token ? { status: 200, json: { id: 12, token } } : forbidden();
    const file = /^\/acme\/demo\.git\/([\w./-]+)$/.exec(path)?.[1];
    if (file !== undefined && sources !== undefined) return sent(join(sources, file), headers, jobs);
    if (/^\/acme\/demo\/-\/jobs\/\d+$/.test(path))
      return { status: 200, body: Buffer.from(noPages), headers: { 'content-type': 'text/plain' } };
    const own = jobs.find((one) => one.token === headers.get('JOB-TOKEN'));
    if (path === '/api/v4/job') {
      if (isShut || own === undefined || (own.state !== 'running' && own.state !== 'canceling'))
        return { status: 401, json: { message: '401 Unauthorized' } };
      return { status: 200, json: { id: own.id, status: own.state } };
    }
    const [, id, what] = /^\/api\/v4\/jobs\/(\d+)(?:\/(trace|artifacts))?$/.exec(path) ?? [];
    if (id === undefined) return { status: 404, json: { message: '404 Not Found' } };
    const job = jobs.find((one) => one.id === Number(id));
    if (job === undefined) return { status: 404, json: { message: '404 Not Found' } };
    if (own !== job) return forbidden();
    if (method === 'GET' && what === 'artifacts')
      return job.artifacts === null ? { status: 404, json: {} } : { status: 200, body: job.artifacts };
    if (over.has(job.state)) return forbidden(job);
    if (method === 'PUT' && what === undefined) return put(job, json());
    // A log and files belong to a job that has begun.
    if (job.state === 'waiting') return forbidden(job);
    if (method === 'PATCH' && what === 'trace') return patch(job, headers, body);
    if (method === 'POST' && what === 'artifacts') {
      job.artifacts = partOf(body);
      return { status: 201, json: {} };
    }
    return { status: 405, json: { message: '405 Not Allowed' } };
  }

  async function handle(asked: Asked): Promise<Said> {
    const line = `${asked.method} ${asked.path}`;
    const cut = (code: string) => Object.assign(new Error(code), { code });
    if (fault === 'away') {
      calls.push(`${line} away`);
      throw cut('ECONNREFUSED');
    }
    if (fault === 'silent') {
      calls.push(`${line} silent`);
      await new Promise((_, reject) => asked.signal?.addEventListener('abort', () => reject(cut('ABORT_ERR')), { once: true }));
    }
    const said = await answer(asked);
    calls.push(`${line} ${said.status}`);
    if (fault !== 'lost' || said.status !== 201) return said;
    fault = null;
    throw cut('ECONNRESET');
  }

  const memoryFetch: typeof fetch = async (input, init) => {
    const { pathname } = new URL(String(input));
    // Artifacts are no text.
    const body = init?.body instanceof Uint8Array ? Buffer.from(init.body) : Buffer.from(String(init?.body ?? ''));
    const asked = {
      method: init?.method ?? 'GET',
      path: pathname,
      headers: new Headers(init?.headers),
      body,
      signal: init?.signal ?? null,
    };
    const said = await handle(asked).catch((cause: unknown) => {
      if (init?.signal?.aborted === true) throw init.signal.reason;
      throw new TypeError('fetch failed', { cause });
    });
    return new Response(said.status === 204 ? null : (said.body ?? JSON.stringify(said.json)), {
      status: said.status,
      headers: { 'content-type': 'application/json', ...said.headers },
    });
  };

  return {
    fetch: memoryFetch,
    jobs,
    calls,
    requests,
    get url() {
      return url;
    },
    queue(spec: JobSpec): JobRow {
      const id = jobs.length + 1;
      const fresh = { trace: Buffer.alloc(0), reason: null, exitCode: null, artifacts: null, given: 0 };
      const row: JobRow = { id, token: `glcbt-token-of-job-${id}`, state: 'pending', spec, ...fresh };
      jobs.push(row);
      queued += 1;
      stir();
      return row;
    },
    /** As somebody does on the website. */
    cancel(job: JobRow): void {
      job.state = job.state === 'running' ? 'canceling' : 'canceled';
      stir();
    },
    /** Ends it without its runner, as a timeout of the server does. */
    end(job: JobRow, state: JobState): void {
      job.state = state;
      stir();
    },
    /** What the server does with a job that no runner has accepted in time. */
    requeue(job: JobRow): void {
      job.state = 'pending';
      queued += 1;
      job.token = `${job.token}-again`;
      stir();
    },
    /** From now on, or until `undo` is called. `lost`: the next job is given, and nobody hears of it. `silent`: it never answers. */
    fail(how: 'away' | 'lost' | 'busy' | 'silent'): () => void {
      fault = how;
      return () => {
        fault = null;
      };
    },
    /** As a list of addresses does it that may use the API. */
    shut(): void {
      isShut = true;
    },
    slowly(times: number): void {
      slow = times;
    },
    renewToken(): void {
      token = 'glrt-another';
    },
    /** Resolves once `done`, which is looked at after every change. */
    async until(done: () => boolean, patience = 120_000): Promise<void> {
      const late = AbortSignal.timeout(patience);
      while (!done()) {
        if (late.aborted)
          throw new Error(`Jobs did not get there: ${JSON.stringify(jobs.map(shown))}\n${calls.slice(-20).join('\n')}`);
        await Promise.race([changed.promise, new Promise((resolve) => late.addEventListener('abort', resolve, { once: true }))]);
      }
    },
    /** On a port of this address, for programs. */
    async serve(address: string): Promise<AsyncDisposable> {
      const port = await onPort(memoryFetch, { address });
      url = port.url;
      return port;
    },
  };
}

/** A file of a repository, for a job that signs in with its token. */
function sent(path: string, headers: Headers, jobs: readonly JobRow[]): Said {
  const signed = atob(/^Basic (.+)$/.exec(headers.get('Authorization') ?? '')?.[1] ?? '');
  if (!jobs.some(({ token, state }) => signed === `gitlab-ci-token:${token}` && state === 'running'))
    return { status: 401, json: {}, headers: { 'WWW-Authenticate': 'Basic realm="GitLab"' } };
  return existsSync(path) ? { status: 200, body: readFileSync(path) } : { status: 404, json: {} };
}

/** A job that waits for its runner to accept it counts as pending. */
const statusOf = ({ state }: JobRow): string => (state === 'waiting' ? 'pending' : state);

function shown({ id, state, reason, trace }: JobRow) {
  return { id, state, reason, trace: trace.toString().slice(-500) };
}

/** The file of a multipart body. */
function partOf(body: Buffer): Buffer {
  const head = body.indexOf('\r\n\r\n');
  const mark = body.subarray(0, body.indexOf('\r\n'));
  return body.subarray(head + 4, body.lastIndexOf(mark) - 2);
}
