/**
 * A Gitea of runners and jobs in memory, as a `fetch`, for tests that need thousands of turns or faults that a real server does not have.
 * What it answers was seen from the real 1.26.4, which the tests in `test/long/gitea.test.ts` run.
 */
import { type TaskSpec, taskAnswer } from './gitea-task.ts';

interface RunnerRow {
  readonly id: number;
  readonly name: string;
  readonly uuid: string;
  readonly token: string;
  readonly labels: readonly string[];
  disabled: boolean;
  isOnline: boolean;
}

export interface JobRow {
  readonly id: number;
  readonly task: number;
  readonly labels: readonly string[];
  status: 'queued' | 'in_progress' | 'completed';
  conclusion: string;
  runner: number | null;
  attempt: number;
  log: string[];
  isSealed: boolean;
  /** How its only step ended; null: nobody has begun it. */
  step: string | null;
  /** What is special about its task. */
  spec: TaskSpec;
  /** Runners' reports that it is not forgotten. */
  touches: number;
}

const never = '0001-01-01T00:00:00Z';
const json = (body: unknown, status = 200) =>
  new Response(status === 204 ? null : JSON.stringify(body), { status, headers: { 'content-type': 'application/json' } });
const absent = () => json({ message: 'not found', url: '' }, 404);
const refused = (message: string) => json({ code: 'unknown', message }, 500);

export type MemoryGitea = ReturnType<typeof memoryGitea>;

/** `pageSize`: rows of a page; the real one has 50. */
export function memoryGitea({ pageSize = 50 }: { readonly pageSize?: number } = {}) {
  const runners: RunnerRow[] = [];
  const jobs: JobRow[] = [];
  const calls: string[] = [];
  let made = 0;
  let registrationToken = 'registration-1';
  let failure: 'away' | 'lost' | 'lostTask' | null = null;

  const add = (name: string, labels: readonly string[]): RunnerRow => {
    made += 1;
    const row = { id: made, name, uuid: `uuid-${made}`, token: `key-${made}`, labels, disabled: false, isOnline: false };
    runners.push(row);
    return row;
  };
  const jobView = ({ id, labels, status, conclusion, runner, attempt, step }: JobRow) => ({
    id,
    name: 'j',
    labels,
    status,
    conclusion,
    run_id: id,
    run_attempt: attempt,
    head_branch: 'main',
    url: `http://forge/api/v1/repos/acme/demo/actions/jobs/${id}`,
    html_url: `http://forge/acme/demo/actions/runs/${id}/jobs/0`,
    runner_id: runner ?? undefined,
    steps: step === null ? [] : [{ name: 'run', number: 0, status: 'completed', conclusion: step }],
    created_at: '2026-01-01T00:00:00Z',
    started_at: runner === null ? never : '2026-01-01T00:00:01Z',
    completed_at: never,
  });
  const runnerView = ({ id, name, labels, disabled, isOnline }: RunnerRow) => ({
    id,
    name,
    disabled,
    busy: false,
    ephemeral: true,
    status: isOnline ? 'online' : 'offline',
    labels: labels.map((label, at) => ({ id: at, name: label, type: 'custom' })),
  });
  const paged = <T>(key: string, rows: readonly T[], query: URLSearchParams, view: (row: T) => unknown) => {
    const size = Math.min(Number(query.get('limit') ?? pageSize), pageSize);
    const from = (Number(query.get('page') ?? 1) - 1) * size;
    return json({ total_count: rows.length, [key]: rows.slice(from, from + size).map(view) });
  };
  const remove = (id: number): boolean => {
    const at = runners.findIndex((one) => one.id === id);
    if (at !== -1) runners.splice(at, 1);
    return at !== -1;
  };
  /** `step`: how its step ended. */
  const end = (job: JobRow, conclusion: string, step = conclusion): void => {
    job.status = 'completed';
    job.conclusion = conclusion;
    job.step = step;
    // Ephemeral.
    if (job.runner !== null) remove(job.runner);
  };
  /** What the runner gets when it asks for a task. */
  const fetchTask = (runner: RunnerRow): JobRow | null => {
    if (!runners.includes(runner)) return null;
    runner.isOnline = true;
    if (runner.disabled || jobs.some((one) => one.runner === runner.id)) return null;
    const fits = (one: JobRow) => one.status === 'queued' && one.labels.every((label) => runner.labels.includes(label));
    const job = jobs.find(fits) ?? null;
    if (job === null) return null;
    job.status = 'in_progress';
    job.runner = runner.id;
    job.attempt += 1;
    return job;
  };

  const rest = (method: string, path: string, query: URLSearchParams, body: Record<string, unknown>): Response => {
    if (path === '/version') return json({ version: '1.26.4' });
    if (path === '/repos/search') return json({ ok: true, data: [] });
    if (path === '/user') return json({ login: 'root1' });
    if (/^\/orgs\/[^/]+$/.test(path)) return path === '/orgs/acme' ? json({ id: 1, username: 'acme' }) : absent();
    if (path === '/repos/acme/demo') return json({ id: 1 });
    const [, id, what] = /^\/repos\/acme\/demo\/actions\/(?:jobs\/(\d+)|(tasks)|runs\/\d+)$/.exec(path) ?? [];
    if (what === 'tasks') {
      const running = jobs.filter(({ status }) => status === 'in_progress').toReversed();
      return json({ total_count: running.length, workflow_runs: running.map(({ task }) => ({ id: task, status: 'running' })) });
    }
    if (id !== undefined) {
      const job = jobs.find((one) => one.id === Number(id));
      return job === undefined ? absent() : json(jobView(job));
    }
    if (path.startsWith('/repos/acme/demo/actions/runs/')) return json({ id: 1, event: 'push', path: 'a.yml@refs/heads/main' });
    const scoped = /^\/(?:orgs\/acme|repos\/acme\/demo|admin|user)\/actions\/(jobs|runners)(?:\/(.+))?$/.exec(path);
    if (scoped === null) return absent();
    const [, list, one] = scoped;
    if (list === 'jobs')
      return paged(
        'jobs',
        jobs.filter(({ status }) => (query.get('status') ?? status) === status),
        query,
        jobView,
      );
    if (one === undefined) return paged('runners', runners, query, runnerView);
    if (one === 'registration-token') return json({ token: registrationToken });
    const runner = runners.find((row) => row.id === Number(one));
    if (runner === undefined) return absent();
    if (method === 'DELETE') remove(runner.id);
    if (method === 'PATCH') runner.disabled = body.disabled === true;
    return method === 'DELETE' ? json(null, 204) : json(runnerView(runner));
  };

  const rpc = (method: string, headers: Headers, body: Record<string, unknown>): Response => {
    if (method === 'Register') {
      if (body.token !== registrationToken) return refused('runner registration token not found');
      const { id, uuid, token } = add(String(body.name), body.labels as string[]);
      return json({ runner: { id: String(id), uuid, token } });
    }
    const runner = runners.find(
      ({ uuid, token }) => uuid === headers.get('x-runner-uuid') && token === headers.get('x-runner-token'),
    );
    if (runner === undefined) return refused('rpc error: code = Unauthenticated desc = unregistered runner');
    if (method === 'FetchTask') {
      const job = fetchTask(runner);
      const bytes = taskAnswer(job?.task ?? null, job?.spec);
      return new Response(bytes, { headers: { 'content-type': 'application/proto' } });
    }
    const state = body.state as { id: string; result?: string } | undefined;
    const job = jobs.find(({ task }) => String(task) === (state?.id ?? body.taskId));
    if (job === undefined || job.runner !== runner.id) return refused('invalid runner for task');
    if (state !== undefined) {
      if (state.result === undefined) {
        job.touches += 1;
        return json({ state: { id: state.id } });
      }
      if (job.status !== 'completed') end(job, state.result === 'RESULT_FAILURE' ? 'failure' : 'success');
      return json({ state: {} });
    }
    const rows = (body.rows as { content: string }[] | undefined) ?? [];
    if (job.isSealed && rows.length > 0) return refused('log file has been archived');
    job.log.push(...rows.map(({ content }) => content));
    job.isSealed ||= body.noMore === true;
    return json({ ackIndex: String(job.log.length) });
  };

  const answer: typeof fetch = async (input, init) => {
    const { pathname, searchParams } = new URL(String(input));
    const method = init?.method ?? 'GET';
    calls.push(`${method} ${pathname}`);
    if (failure === 'away')
      throw new TypeError('fetch failed', { cause: Object.assign(new Error('refused'), { code: 'ECONNREFUSED' }) });
    const isProto = new Headers(init?.headers).get('content-type') === 'application/proto';
    const body = isProto ? {} : JSON.parse(String(init?.body ?? '{}'));
    const name = /RunnerService\/(\w+)$/.exec(pathname)?.[1];
    const said =
      name === undefined
        ? rest(method, pathname.replace('/api/v1', ''), searchParams, body)
        : rpc(name, new Headers(init?.headers), body);
    if (!(failure === 'lost' && name === 'Register') && !(failure === 'lostTask' && name === 'FetchTask')) return said;
    failure = null;
    throw new TypeError('fetch failed', { cause: Object.assign(new Error('reset'), { code: 'ECONNRESET' }) });
  };

  return {
    fetch: answer,
    url: 'http://forge',
    runners,
    jobs,
    calls,
    add,
    end,
    fetchTask,
    queue(labels: readonly string[], spec: TaskSpec = {}): JobRow {
      const id = jobs.length + 1;
      const row: JobRow = {
        id,
        task: id + 100,
        labels,
        status: 'queued',
        conclusion: '',
        runner: null,
        attempt: 0,
        log: [],
        isSealed: false,
        step: null,
        spec,
        touches: 0,
      };
      jobs.push(row);
      return row;
    },
    /** As somebody does on the website: the same job waits again. */
    rerun(job: JobRow): void {
      Object.assign(job, { status: 'queued', conclusion: '', runner: null, log: [], isSealed: false, step: null });
    },
    byUuid: (uuid: string) => runners.find((one) => one.uuid === uuid),
    /** The next runner is made, or the next task given, and nobody hears of it. */
    loseAnswer(of: 'lost' | 'lostTask' = 'lost'): void {
      failure = of;
    },
    goAway(): () => void {
      failure = 'away';
      return () => {
        failure = null;
      };
    },
    resetRegistration(): void {
      registrationToken = `registration-${registrationToken.length}-${made}`;
    },
  };
}
