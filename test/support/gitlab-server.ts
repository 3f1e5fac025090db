/**
 * A stand-in for the part of GitLab that runners talk to (API v4, "jobs/request" and what follows it), and the real gitlab-runner
 * beside it. The stand-in has jobs without a repository: each has one script.
 */
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { type Child, startChild } from './child.ts';
import { gitlabRunner } from './gitlab-programs.ts';

export interface GitlabJob {
  readonly id: number;
  readonly token: string;
  readonly asked: JobOptions;
  state: 'pending' | 'running' | 'canceling' | 'canceled' | 'success' | 'failed';
  trace: string;
  reason: string | null;
  code: number | null;
  /** How many archives of artifacts have come. */
  uploads: number;
}

export interface JobOptions {
  readonly script: readonly string[];
  readonly after?: readonly string[];
  readonly image?: string;
  readonly services?: readonly string[];
  readonly variables?: Readonly<Record<string, string>>;
  readonly artifacts?: readonly string[];
  /** Where its repository is; without, it has none. */
  readonly repository?: { readonly url: string; readonly sha: string };
}

export interface Gitlab extends AsyncDisposable {
  readonly url: string;
  queue(options: JobOptions): GitlabJob;
  /** As a person does it in GitLab: the runner hears of it with its next word about the job. */
  cancel(job: GitlabJob): void;
  /** Resolves once `isSo`, which is asked after every request. */
  until(isSo: () => boolean): Promise<void>;
  readonly ended: (job: GitlabJob) => Promise<GitlabJob>;
}

export async function gitlabServer(): Promise<Gitlab> {
  const jobs: GitlabJob[] = [];
  const looks = new Set<() => void>();
  const server = createServer((request, response) => {
    void answer(request, response).finally(() => {
      for (const look of [...looks]) look();
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const url = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const said = await text(request);
    const path = new URL(request.url ?? '', url).pathname.replace('/api/v4', '');
    const send = (status: number, body: unknown = {}, headers: Record<string, string> = {}) => {
      response.writeHead(status, { 'content-type': 'application/json', ...headers });
      response.end(JSON.stringify(body));
    };
    if (path === '/jobs/request') {
      const job = jobs.find(({ state }) => state === 'pending');
      if (job === undefined) return send(204);
      job.state = 'running';
      return send(201, payload(url, job));
    }
    const [, id, what] = /^\/jobs\/(\d+)(?:\/(trace|artifacts))?$/.exec(path) ?? [];
    const job = jobs[Number(id) - 1];
    if (job === undefined) return send(404);
    if (what === 'artifacts') {
      job.uploads += 1;
      return send(201);
    }
    if (what === 'trace') {
      job.trace += said;
      const range = `0-${Buffer.byteLength(job.trace)}`;
      return send(202, {}, { 'Job-Status': job.state, Range: range, 'X-GitLab-Trace-Update-Interval': '1' });
    }
    const { state, failure_reason, exit_code } = JSON.parse(said);
    if (state === 'success' || state === 'failed') {
      job.state = job.state === 'canceling' ? 'canceled' : state;
      job.reason = failure_reason ?? null;
      job.code = exit_code ?? null;
    }
    send(200, {}, { 'Job-Status': job.state });
  }

  const until = (isSo: () => boolean) =>
    new Promise<void>((resolve) => {
      const look = (): void => {
        if (!isSo()) return;
        looks.delete(look);
        resolve();
      };
      looks.add(look);
      look();
    });
  const isOver = ({ state }: GitlabJob) => ['success', 'failed', 'canceled'].includes(state);
  return {
    url,
    queue(asked) {
      const id = jobs.length + 1;
      const job: GitlabJob = {
        id,
        token: `glcbt-${id}-abcdefghijklmnop`,
        asked,
        state: 'pending',
        trace: '',
        reason: null,
        uploads: 0,
        code: null,
      };
      jobs.push(job);
      return job;
    },
    cancel: (job) => {
      job.state = 'canceling';
    },
    until,
    ended: async (job) => {
      await until(() => isOver(job));
      return job;
    },
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** A job as GitLab hands it out. */
function payload(url: string, { id, token, asked }: GitlabJob) {
  const { script, after = [], image, services = [], variables = {}, artifacts = [], repository } = asked;
  const { url: repo_url, sha } = repository ?? { url: `${url}/acme/demo.git`, sha: '0'.repeat(40) };
  const given = {
    CI: 'true',
    CI_JOB_ID: String(id),
    CI_JOB_NAME: 'test',
    CI_PROJECT_PATH: 'acme/demo',
    CI_SERVER_URL: url,
    CI_JOB_TIMEOUT: '3600',
    GITLAB_USER_LOGIN: 'ada',
    CI_COMMIT_SHA: sha,
    ...variables,
    ...(repository === undefined && { GIT_STRATEGY: 'none' }),
  };
  const step = { timeout: 3600, allow_failure: false };
  return {
    id,
    token,
    allow_git_fetch: true,
    cache: [],
    credentials: [],
    dependencies: [],
    job_info: { id, name: 'test', stage: 'test', project_id: 1, project_name: 'demo', project_full_path: 'acme/demo' },
    git_info: {
      repo_url,
      ref: 'main',
      sha,
      before_sha: '0'.repeat(40),
      ref_type: 'branch',
      refspecs: ['+refs/heads/*:refs/remotes/origin/*'],
    },
    runner_info: { timeout: 3600 },
    artifacts:
      artifacts.length === 0
        ? []
        : [{ name: 'files', paths: artifacts, when: 'on_success', artifact_type: 'archive', artifact_format: 'zip' }],
    variables: [
      ...Object.entries(given).map(([key, value]) => ({ key, value, public: true })),
      { key: 'CI_JOB_TOKEN', value: token, public: false, masked: true },
      { key: 'SECRET', value: 'hunter2-hunter2', public: false, masked: true },
    ],
    steps: [
      { ...step, name: 'script', script, when: 'on_success' },
      ...(after.length === 0 ? [] : [{ ...step, name: 'after_script', script: after, when: 'always' }]),
    ],
    image: image === undefined ? null : { name: image },
    services: services.map((name) => ({ name })),
    features: { trace_sections: true, failure_reasons: ['unknown_failure', 'script_failure', 'runner_system_failure'] },
  };
}

/** Starts gitlab-runner with `onejob` as driver. `args`: after the step, for `prepare`. It ends what it runs when it is stopped. */
export function startGitlabRunner(
  { url }: Pick<Gitlab, 'url'>,
  driver: { readonly program: string; readonly env: NodeJS.ProcessEnv; readonly prepare?: readonly string[] },
  concurrent = 1,
): { readonly child: Child; readonly dir: string } & AsyncDisposable {
  const dir = mkdtempSync(join(tmpdir(), 'ojgl-'));
  // Its temporary files, which contain secrets, are looked for by tests.
  mkdirSync(join(dir, 'tmp'));
  const step = (name: string, more: readonly string[] = []) =>
    `    ${name}_exec = ${JSON.stringify(driver.program)}\n    ${name}_args = ${JSON.stringify(['gitlab-executor', name, ...more])}`;
  const config = `concurrent = ${concurrent}
check_interval = 1
shutdown_timeout = 5
[[runners]]
  name = "lab"
  url = "${url}"
  token = "glrt-abcdefghijklmnopqrst"
  executor = "custom"
  limit = ${concurrent}
  request_concurrency = ${concurrent}
  [runners.custom]
${[step('config'), step('prepare', driver.prepare), step('run'), step('cleanup')].join('\n')}
`;
  writeFileSync(join(dir, 'config.toml'), config, { mode: 0o600 });
  const args = ['run', '--config', join(dir, 'config.toml'), '--working-directory', dir];
  const child = startChild(gitlabRunner, args, { cwd: dir, env: { ...driver.env, TMPDIR: join(dir, 'tmp') } });
  return {
    child,
    dir,
    async [Symbol.asyncDispose]() {
      // QUIT waits for its jobs, TERM ends them.
      child.signal('SIGTERM');
      await child.ended;
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
