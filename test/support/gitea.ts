/**
 * A real Gitea on the loopback or a bridge, with SQLite, and what tests do there: repositories, workflows, jobs, logs.
 *
 *     await using gitea = await startGitea();
 *     await gitea.repository('acme/demo', { '.gitea/workflows/a.yml': … });
 */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import type { GiteaJob as Answered } from '../../src/ci/gitea/wire.ts';
import { bridgeAddress } from './buildkite-host.ts';
import { startChild } from './child.ts';
import { giteaPrograms } from './gitea-programs.ts';

export interface GiteaJob extends Pick<Answered, 'id' | 'name' | 'status' | 'conclusion' | 'run_id'> {
  readonly runner_id?: number;
  readonly runner_name?: string;
}

export interface GiteaOptions {
  /** Address that sandboxes reach; default that of the Engine's default bridge. */
  readonly address?: string;
  /** What it calls itself, if agents reach it at another address: its port is the same. Default `address`. */
  readonly called?: string;
  /** Lines of `[actions]`, and whole sections after them. */
  readonly more?: string;
}

export async function startGitea({ address = bridgeAddress(), called = address, more = '' }: GiteaOptions = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'gitea-'));
  const port = await freePort(address);
  const url = `http://${address}:${port}`;
  const conf = join(dir, 'app.ini');
  mkdirSync(join(dir, 'data'));
  writeFileSync(conf, settings({ dir, address, called, port, more }));
  const env = { PATH: process.env.PATH, HOME: dir, GITEA_WORK_DIR: dir };
  const run = (...args: string[]) =>
    execFileSync(giteaPrograms.server, ['--config', conf, ...args], { env, stdio: 'pipe' }).toString();
  run('migrate');
  const names = ['--username', 'root1', '--password', 'Passw0rd!x', '--email', 'r@example.org', '--must-change-password=false'];
  const said = run(
    'admin',
    'user',
    'create',
    ...names,
    '--admin',
    '--access-token',
    '--access-token-name',
    't',
    '--access-token-scopes',
    'all',
  );
  const token = /[0-9a-f]{40}/.exec(said)?.[0] ?? '';
  // A closed terminal would make it start another one of itself.
  let server = startChild('setsid', [giteaPrograms.server, '--config', conf, 'web'], { cwd: dir, env });

  async function api<T = unknown>(
    method: string,
    path: string,
    body?: unknown,
  ): Promise<{ status: number; body: T; text: string }> {
    const answer = await fetch(`${url}/api/v1${path}`, {
      method,
      headers: { authorization: `token ${token}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    const isJson = answer.headers.get('content-type')?.includes('json') === true;
    return { status: answer.status, body: (isJson && text !== '' ? JSON.parse(text) : undefined) as T, text };
  }

  const healthy = async (): Promise<void> => {
    for (let tries = 0; ; tries += 1) {
      const ok = await fetch(`${url}/api/healthz`).then(
        (answer) => answer.ok,
        () => false,
      );
      if (ok) return;
      if (tries > 600)
        throw new Error(`Gitea does not answer:\n${readFileSync(join(dir, 'log', 'gitea.log'), 'utf8').slice(-2000)}`);
      await after(50);
    }
  };
  await healthy();

  const gitea = {
    url,
    port,
    token,
    api,
    dir,
    /** A token of the administrator with these scopes only. */
    async tokenFor(...scopes: string[]): Promise<string> {
      const answer = await fetch(`${url}/api/v1/users/root1/tokens`, {
        method: 'POST',
        body: JSON.stringify({ name: `t-${scopes.join('-')}-${performance.now()}`, scopes }),
        headers: { authorization: `Basic ${btoa('root1:Passw0rd!x')}`, 'content-type': 'application/json' },
      });
      return ((await answer.json()) as { sha1: string }).sha1;
    },
    /** An organisation's repository with these files on its branch `main`. */
    async repository(name: string, files: Readonly<Record<string, string>>): Promise<void> {
      const [owner = '', repo = ''] = name.split('/');
      if (owner !== 'root1') await api('POST', '/orgs', { username: owner });
      const path = owner === 'root1' ? '/user/repos' : `/orgs/${owner}/repos`;
      await api('POST', path, { name: repo, private: true, default_branch: 'main' });
      await gitea.push(name, files);
    },
    /** Commits these files on top. `as`: user and password, or user and token. */
    async push(name: string, files: Readonly<Record<string, string>>, branch = 'main', as = `root1:${token}`): Promise<void> {
      const work = mkdtempSync(join(tmpdir(), 'gitea-work-'));
      const git = (...args: string[]) =>
        execFileSync('git', ['-C', work, '-c', 'user.name=t', '-c', 'user.email=t@example.org', ...args], { stdio: 'pipe' });
      try {
        const origin = `${url.replace('://', `://${as}@`)}/${name}.git`;
        git('init', '-q', '-b', branch);
        git('remote', 'add', 'origin', origin);
        try {
          git('pull', '-q', 'origin', 'main');
        } catch {
          // It is empty.
        }
        for (const [path, text] of Object.entries(files)) {
          mkdirSync(dirname(join(work, path)), { recursive: true });
          writeFileSync(join(work, path), text, { mode: text.startsWith('#!') ? 0o755 : 0o644 });
        }
        git('add', '-A');
        git('commit', '-q', '--allow-empty', '-m', 'more');
        git('push', '-q', 'origin', `HEAD:${branch}`);
      } finally {
        rmSync(work, { recursive: true, force: true });
      }
      // It hears of a push a little later, and until then takes a new repository for an empty one.
      for (let tries = 0; (await api<{ empty: boolean }>('GET', `/repos/${name}`)).body.empty; tries += 1) {
        if (tries > 600) throw new Error(`${name} stays empty`);
        await after(50);
      }
    },
    async dispatch(name: string, file: string, inputs: Readonly<Record<string, string>> = {}): Promise<void> {
      const { status, text } = await api('POST', `/repos/${name}/actions/workflows/${file}/dispatches`, { ref: 'main', inputs });
      if (status !== 204) throw new Error(`Cannot dispatch ${file}: ${status} ${text}`);
    },
    /** All jobs, the oldest first. */
    async jobs(scope = '/admin'): Promise<GiteaJob[]> {
      const found: GiteaJob[] = [];
      for (let page = 1; ; page += 1) {
        const { body } = await api<{ total_count: number; jobs: GiteaJob[] | null }>(
          'GET',
          `${scope}/actions/jobs?limit=50&page=${page}`,
        );
        found.push(...(body.jobs ?? []));
        if ((body.jobs ?? []).length === 0 || page * 50 >= body.total_count) return found.sort((a, b) => a.id - b.id);
      }
    },
    job: async (name: string, id: number) => (await api<GiteaJob>('GET', `/repos/${name}/actions/jobs/${id}`)).body,
    log: async (name: string, id: number) => (await api('GET', `/repos/${name}/actions/jobs/${id}/logs`)).text,
    runners: async (scope = '/admin') =>
      (await api<{ runners: { id: number; name: string; status: string }[] | null }>('GET', `${scope}/actions/runners`)).body
        .runners ?? [],
    /** Resolves with all jobs once `done` says so of them. */
    async until(done: (jobs: readonly GiteaJob[]) => boolean, patience = 60_000, scope = '/admin'): Promise<GiteaJob[]> {
      for (const end = performance.now() + patience; ; ) {
        const jobs = await gitea.jobs(scope);
        if (done(jobs)) return jobs;
        if (performance.now() > end) throw new Error(`Jobs did not get there: ${JSON.stringify(jobs.slice(-10))}`);
        await after(100);
      }
    },
    /** As `kill -9`, and it starts again where it was. */
    async restart(): Promise<void> {
      await server.kill();
      server = startChild('setsid', [giteaPrograms.server, '--config', conf, 'web'], { cwd: dir, env });
      await healthy();
    },
    async [Symbol.asyncDispose](): Promise<void> {
      if (server.running) await server.kill();
      rmSync(dir, { recursive: true, force: true, maxRetries: 10 });
    },
  };
  return gitea;
}

async function freePort(host: string): Promise<number> {
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address !== null ? address.port : 0;
}

function settings(of: Required<GiteaOptions> & { readonly dir: string; readonly port: number }): string {
  const { dir, address, called, port, more } = of;
  return `APP_NAME = test
RUN_MODE = prod
RUN_USER = root
WORK_PATH = ${dir}
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
[server]
PROTOCOL = http
HTTP_ADDR = ${address}
HTTP_PORT = ${port}
ROOT_URL = http://${called}:${port}/
STATIC_ROOT_PATH = ${join(giteaPrograms.folder, 'static')}
APP_DATA_PATH = ${dir}/data
DISABLE_SSH = true
OFFLINE_MODE = true
LFS_START_SERVER = false
[database]
DB_TYPE = sqlite3
PATH = ${dir}/data/gitea.db
SQLITE_JOURNAL_MODE = WAL
[security]
INSTALL_LOCK = true
SECRET_KEY = 0123456789abcdef0123456789abcdef
INTERNAL_TOKEN = eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJuYmYiOjE3MDAwMDAwMDB9.0000000000000000000000000000000000000000000
[service]
DISABLE_REGISTRATION = true
[log]
MODE = file
LEVEL = warn
ROOT_PATH = ${dir}/log
[indexer]
ISSUE_INDEXER_TYPE = db
[mailer]
ENABLED = false
[cron]
ENABLED = true
[actions]
ENABLED = true
DEFAULT_ACTIONS_URL = self
${more}
`;
}
