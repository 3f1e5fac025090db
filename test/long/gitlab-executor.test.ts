/**
 * `onejob gitlab-executor` with the real gitlab-runner: what its jobs become, what is left of them, and what others can see. Mostly
 * the image has no git and no gitlab-runner, which jobs without a repository and without artifacts do not need.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import { ensureBuildkiteImages, lacksGit } from '../support/buildkite-images.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { gitlabServer, startGitlabRunner } from '../support/gitlab-server.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { ensureImages, images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const image = 'debian:stable-slim';
const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const secret = 'hunter2-hunter2';
const pool = { agents: 1, runtime: 'docker', image, network: 'none', hold_failed: '10m' };

async function lab({ config = { pools: { default: pool } }, prepare = [] as string[], concurrent = 1 } = {}) {
  await using stack = new AsyncDisposableStack();
  const gitlab = stack.use(await gitlabServer());
  const home = stack.use(await onejob({ config: JSON.stringify(config) }));
  const daemon = await home.up();
  const runner = stack.use(startGitlabRunner(gitlab, { program, env: home.env, prepare }, concurrent));
  const all = stack.move();
  return { gitlab, home, runner, daemon, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

const jobsOf = (home: Home): Promise<JobView[]> => home.api.jobs({ all: true, pool: null });

/** Resolves once the trace of a job contains `text`. */
const says = (
  gitlab: Awaited<ReturnType<typeof gitlabServer>>,
  job: ReturnType<Awaited<ReturnType<typeof gitlabServer>>['queue']>,
  text: string,
) => gitlab.until(() => job.trace.includes(text));

describe.skipIf(lacks('docker', 'image', 'busybox', 'gitlabRunner'))('a custom executor with the real gitlab-runner', () => {
  test('its jobs pass and fail as their scripts do, each in a sandbox of its own', { timeout: 120_000 }, async () => {
    await using here = await lab({ prepare: ['--pool', 'default'] });
    const { gitlab, home } = here;
    const passes = gitlab.queue({
      script: [
        'echo "in $PWD"; echo left >/tmp/left',
        'echo "to stderr" >&2',
        'test "$SECRET" = hunter2-hunter2 && echo has the secret',
      ],
      after: ['cat /tmp/left'],
      image: 'node:24',
    });
    const fails = gitlab.queue({ script: ['ls /tmp', 'exit 7'], after: ['echo and after'] });
    const shown = (await gitlab.ended(passes)).trace;
    expect(passes, shown).toMatchObject({ state: 'success' });
    for (const line of ['in /workspace/builds/acme/demo', 'to stderr', 'has the secret', 'left']) expect(shown).toContain(line);
    expect(shown).toContain('image "node:24" of the job would need --job-images');
    expect(await gitlab.ended(fails)).toMatchObject({ state: 'failed', reason: 'script_failure', code: 7 });
    expect(fails.trace).toContain('and after');
    expect(fails.trace).not.toMatch(/^left$/m);
    await here.runner.child.says(/Removed job from processing list[\s\S]*Removed job from processing list/);
    expect(await jobsOf(home)).toMatchObject([
      { name: 'GitLab job 1 test (acme/demo)', user: 'ada', result: { kind: 'code', code: 0 } },
      { name: 'GitLab job 2 test (acme/demo)', user: 'ada', result: { kind: 'code', code: 7 } },
    ]);
  });

  test('secrets of a job are in no argument, file or log of onejob', { timeout: 120_000 }, async () => {
    await using here = await lab();
    const { gitlab, home } = here;
    const job = gitlab.queue({ script: ['echo "shown $SECRET"', 'echo ready; while sleep 0.5; do echo .; done'] });
    await says(gitlab, job, 'ready');
    const lines = readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map((pid) => {
        try {
          return readFileSync(`/proc/${pid}/cmdline`, 'utf8');
        } catch {
          return '';
        }
      });
    expect(lines.filter((line) => line.includes(secret) || line.includes(job.token))).toEqual([]);
    const [own] = await jobsOf(home);
    const [container] = execFileSync('docker', ['ps', '-q', '--filter', `label=onejob.agent=${own?.agent}`], {
      encoding: 'utf8',
    }).split('\n');
    expect(execFileSync('docker', ['inspect', container ?? ''], { encoding: 'utf8' })).not.toContain(secret);
    gitlab.cancel(job);
    await gitlab.ended(job);
    expect((await home.cli(['logs', own?.id ?? '']).ended).stdout).toBe('');
    const found = execFileSync('sh', ['-c', `grep -rlaE '${secret}|${job.token}' '${home.stateDir}' || true`], {
      encoding: 'utf8',
    });
    expect(found).toBe('');
  });

  test.skipIf(lacksGit() !== null)(
    'a job has its own image and its repository, and GitLab its artifacts',
    { timeout: 120_000 },
    async () => {
      const { git } = await ensureBuildkiteImages();
      using dir = scratch();
      chmodSync(dir.path, 0o755);
      const run = (script: string) => execFileSync('sh', ['-ec', script], { cwd: dir.path, encoding: 'utf8' });
      run('git init -q -b main demo; cd demo; echo hello >file; git add .; git -c user.name=a -c user.email=a@b commit -qm one');
      run('git clone -q --bare demo repo.git');
      const volumes = [`${dir.path}/repo.git:/repo.git`, `${gitlabRunner}:/usr/local/bin/gitlab-runner`];
      const config = { pools: { default: { ...pool, network: 'host', volumes } } };
      await using here = await lab({ config, prepare: ['--job-images'] });
      const { gitlab } = here;
      const repository = { url: 'file:///repo.git', sha: run('git -C demo rev-parse HEAD').trim() };
      const job = gitlab.queue({ script: ['cat file', 'mkdir out; echo x >out/x'], artifacts: ['out/'], repository, image: git });
      expect(await gitlab.ended(job), job.trace).toMatchObject({ state: 'success', uploads: 1 });
      expect(job.trace).toMatch(/ hello$/m);
    },
  );

  test('a cancelled job gets time to end', { timeout: 120_000 }, async () => {
    await using here = await lab();
    const { gitlab, home } = here;
    const job = gitlab.queue({ script: ["trap 'echo tidied up; exit 1' TERM; echo ready; while sleep 0.5; do echo .; done"] });
    await says(gitlab, job, 'ready');
    gitlab.cancel(job);
    await gitlab.ended(job);
    expect(job.state).toBe('canceled');
    expect(job.trace).toContain('tidied up');
    await here.runner.child.says(/Removed job from processing list/);
    expect((await jobsOf(home)).map(({ state }) => state)).toEqual(['done']);
  });

  test('a sandbox that is lost is the fault of the system', { timeout: 120_000 }, async () => {
    await using here = await lab();
    const { gitlab, home } = here;
    const job = gitlab.queue({ script: ['echo ready; sleep 600'] });
    await says(gitlab, job, 'ready');
    const [own] = await jobsOf(home);
    const [container = ''] = execFileSync('docker', ['ps', '-q', '--filter', `label=onejob.agent=${own?.agent}`], {
      encoding: 'utf8',
    }).split('\n');
    execFileSync('docker', ['kill', container]);
    expect(await gitlab.ended(job)).toMatchObject({ state: 'failed', reason: 'runner_system_failure' });
    expect(job.trace).toMatch(/onejob: the sandbox of job \w+ has ended before its script/);
  });

  test('too much memory is said to be so, and is the fault of the job', { timeout: 120_000 }, async () => {
    await using here = await lab({ config: { pools: { default: { ...pool, memory: '64MiB' } as typeof pool } } });
    const { gitlab } = here;
    const job = gitlab.queue({ script: ['echo ready; x=$(head -c 200000000 /dev/zero | tr "\\0" x); echo ${#x}'] });
    expect(await gitlab.ended(job)).toMatchObject({ state: 'failed', reason: 'script_failure' });
    expect(job.trace).toContain('used more memory than its agent is allowed to');
  });

  test('services, and an image without bash, are refused with a sentence', { timeout: 120_000 }, async () => {
    await ensureImages();
    await using here = await lab({ prepare: ['--job-images'] });
    const { gitlab, home } = here;
    const services = gitlab.queue({ script: ['true'], services: ['postgres:17'] });
    expect(await gitlab.ended(services)).toMatchObject({ state: 'failed', reason: 'script_failure' });
    expect(services.trace).toContain('cannot start the services of this job (postgres:17)');
    expect(await jobsOf(home)).toEqual([]);
    const bare = gitlab.queue({ script: ['true'], image: images.base });
    expect(await gitlab.ended(bare)).toMatchObject({ state: 'failed', reason: 'script_failure' });
    expect(bare.trace).toContain('the image has no bash');
  });

  test('a job waits for its turn, says why, and can be ended meanwhile', { timeout: 120_000 }, async () => {
    await using here = await lab();
    const { gitlab, home } = here;
    const first = await home.api.submit({ command: ['sleep', '600'] });
    const job = gitlab.queue({ script: ['echo never'] });
    await says(gitlab, job, 'is waiting in pool default');
    // As it cancels a job; GitLab would be asked only after 30 s without output.
    here.runner.child.signal('SIGTERM');
    await here.runner.child.ended;
    const own = (await jobsOf(home)).at(-1);
    expect(await home.api.settled(own?.id ?? '')).toMatchObject({ result: { kind: 'cancelled' } });
    await home.api.cancel(first.id);
    expect(job.trace).not.toContain('never');
  });

  test('kill -9 of gitlab-runner leaves nothing', { timeout: 120_000 }, async () => {
    await using here = await lab();
    const { gitlab, home, runner, daemon } = here;
    const job = gitlab.queue({ script: ['echo ready; sleep 600'] });
    await says(gitlab, job, 'ready');
    const [own] = await jobsOf(home);
    const from = Date.now();
    await runner.child.kill();
    expect(await home.api.settled(own?.id ?? '')).toMatchObject({ result: { kind: 'cancelled' } });
    expect(Date.now() - from).toBeLessThan(20_000);
    // Nothing of it is left when the daemon ends, which the census checks.
    await daemon.stop();
  });

  test.skipIf(lacks('dockerd', 'root'))('no two of its jobs have the same card', { timeout: 240_000 }, async () => {
    const count = 8;
    const cards = [card(0), card(1)];
    await using gpus = await gpuEngine({ cards });
    const { socket } = gpus.engine;
    await gpus.engine.load(image);
    using host = gpuHost(cards);
    await using gitlab = await gitlabServer();
    const defaults = { runtime: 'docker', image, network: 'none' };
    const pools = { gpu: { agents: 'per-device', devices: 1 } };
    await using home = await onejob({
      config: JSON.stringify({ defaults, pools }),
      env: { ...host.env, DOCKER_HOST: `unix://${socket}` },
      engine: socket,
    });
    const daemon = await home.up();
    await using _runner = startGitlabRunner(gitlab, { program, env: home.env, prepare: ['--pool', 'gpu'] }, 4);
    const script = ['echo "from $(date +%s%N)"; echo "card" /dev/nvidia[0-9]; sleep 1; echo "to $(date +%s%N)"'];
    const jobs = Array.from({ length: count }, () => gitlab.queue({ script }));
    for (const job of jobs) expect(await gitlab.ended(job), job.trace).toMatchObject({ state: 'success' });
    const uses = jobs.map(({ trace }) => {
      const [, from = '', node = '', to = ''] = /from (\d+)$[\s\S]*card (\S+)$[\s\S]*to (\d+)$/m.exec(trace) ?? [];
      return { node, from: BigInt(from), to: BigInt(to) };
    });
    const byCard = Map.groupBy(uses, ({ node }) => node);
    expect([...byCard.keys()].toSorted()).toEqual(['/dev/nvidia0', '/dev/nvidia1']);
    for (const of of byCard.values()) {
      const sorted = of.toSorted((a, b) => Number(a.from - b.from));
      for (const [at, { from }] of sorted.entries()) expect(from >= (sorted[at - 1]?.to ?? 0n)).toBe(true);
    }
    await daemon.stop();
  });
});
