/** GitHub Actions from end to end: its stand-in, a real runner in containers of the real Engine, and the daemon between. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Job } from '../kit/github-world.ts';
import { bridgeAddress } from '../support/buildkite-host.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureGithubBase, writeRunnerPackage } from '../support/github-image.ts';
import { startGitHub } from '../support/github-server.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const soon = { timeout: 120_000 };

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describe.skipIf(lacks('docker', 'image', 'github'))('with a runner of GitHub in sandboxes', () => {
  const dir = scratch();
  let base: string;
  let runner: string;
  beforeAll(async () => {
    base = await ensureGithubBase();
    runner = await writeRunnerPackage(dir.path);
  });
  afterAll(() => dir[Symbol.dispose]());

  /** A GitHub of its own, and a onejob for its organisation `acme`. */
  async function bench(more: { readonly agent?: string; readonly service?: string; readonly image?: string } = {}) {
    const github = await startGitHub({ address: bridgeAddress() });
    const key = join(dir.path, 'app.pem');
    writeFileSync(key, github.app.key.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
    const home: Home = await onejob({
      config: `services:
  hub:
    type: github
    url: "${github.origin}"
    app: { id: ${github.app.id}, private_key: { file: ${key} } }
    poll: 5s
    agent: { ${more.agent ?? `from: ${runner}`} }
${more.service ?? ''}
pools:
  ci: { service: hub, queue: acme, agents: 1, image: ${more.image ?? `{ base: "${base}" }`}, network: default, tags: gpu }
`,
    });
    return {
      github,
      home,
      until: (job: Job, status: Job['status']) => expect.poll(() => job.status, soon).toBe(status),
      /** Id of the container of the agent that runs. */
      async sandbox(): Promise<string> {
        const { pools } = await home.api.status();
        const agent = pools[0]?.slots[0]?.agent.agent ?? 'none';
        using engine = engineAt();
        const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Names: string[] }[];
        return list.find(({ Names: names }) => names.some((one) => one.includes(agent)))?.Id ?? '';
      },
      async [Symbol.asyncDispose](): Promise<void> {
        await home.close();
        await github[Symbol.asyncDispose]();
      },
    };
  }

  test('jobs run one after the other, each with a runner of its own, and nothing is left', async () => {
    await using here = await bench();
    const { github, home } = here;
    const daemon = await home.up();
    const good = ['echo hello from $GITHUB_REPOSITORY; test ! -e /tmp/before; touch /tmp/before'];
    const jobs = [good, ['echo about to fail; exit 7'], good].map((step) => github.queue({ labels: ['gpu'], steps: [step] }));
    for (const job of jobs) await here.until(job, 'completed');
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure', 'success']);
    expect(new Set(jobs.map(({ ranOn }) => ranOn?.name)).size).toBe(3);
    expect(jobs[0]?.log).toContain('hello from acme/demo');
    const { stdout } = await home.cli(['doctor']).ended;
    expect(stdout).toMatch(/onejob may list the runners of acme: /);
    expect(stdout).toContain('GitHub Enterprise Server 3.19.0');
    await daemon.stop();
    expect(github.runners.size).toBe(0);
  });

  test('a job that is cancelled ends, and the next one runs', async () => {
    await using here = await bench();
    const { github } = here;
    await here.home.up();
    const long = github.queue({ labels: ['gpu'], steps: [['echo begun; sleep 600']] });
    await here.until(long, 'in_progress');
    github.cancel(long);
    await here.until(long, 'completed');
    expect(long.conclusion).toBe('cancelled');
    const next = github.queue({ labels: ['gpu'], steps: [['true']] });
    await here.until(next, 'completed');
    expect(next.conclusion).toBe('success');
  });

  test('a job continues while the daemon is dead, and ends with its own result', async () => {
    await using here = await bench();
    const { github, home } = here;
    const first = await home.up();
    const job = github.queue({ labels: ['gpu'], steps: [['echo begun; sleep 6; echo the end']] });
    await here.until(job, 'in_progress');
    await first.kill();
    await here.until(job, 'completed');
    expect([job.conclusion, job.log]).toEqual(['success', expect.stringContaining('the end')]);
    await (await home.up()).stop();
    expect(github.runners.size).toBe(0);
  });

  test('a sandbox that is killed frees its slot for the next job, whatever GitHub still believes', async () => {
    await using here = await bench();
    const { github } = here;
    await here.home.up();
    const lost = github.queue({ labels: ['gpu'], steps: [['sleep 600']] });
    await here.until(lost, 'in_progress');
    using engine = engineAt();
    await engine.ok('POST', `/containers/${await here.sandbox()}/kill`);
    const next = github.queue({ labels: ['gpu'], steps: [['true']] });
    await here.until(next, 'completed');
    expect([next.conclusion, lost.status]).toEqual(['success', 'in_progress']);
    // Ten minutes later, GitHub gives the job up; then its runner can be removed.
    for (const runner of github.runners.values()) if (runner.job === lost) runner.job = null;
    await expect.poll(() => [...github.runners.values()].filter((one) => one === lost.ranOn), soon).toEqual([]);
  });

  test('a scale set runs its jobs, and its numbers show in the status', async () => {
    await using here = await bench({ service: '    mode: scale-set' });
    const { github, home } = here;
    const daemon = await home.up();
    await expect.poll(() => github.sets[0]?.session ?? null, soon).not.toBeNull();
    const jobs = [1, 2].map((n) => github.queue({ labels: ['gpu'], name: `job-${n}`, steps: [[`echo this is ${n}`]] }));
    for (const job of jobs) await here.until(job, 'completed');
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'success']);
    const listed = async () =>
      (await home.api.jobs({ all: true, pool: null })).map(({ about, verdict }) => [about?.repository, verdict?.kind]);
    await expect.poll(listed, soon).toEqual([
      ['acme/demo', 'passed'],
      ['acme/demo', 'passed'],
    ]);
    await daemon.stop();
    expect([github.sets[0]?.session, github.runners.size]).toEqual([null, 0]);
  });

  test('a runner that is mounted read-only runs jobs in a sandbox that is read-only, too', async () => {
    const folder = join(dir.path, 'mounted');
    mkdirSync(folder);
    execFileSync('tar', ['xzf', runner, '-C', folder]);
    execFileSync('chmod', ['-R', 'a+rX', folder]);
    await using here = await bench({ agent: `folder: ${folder}`, image: `${base}, read_only: true, env: { HOME: /workspace }` });
    const { github } = here;
    await here.home.up();
    const job = github.queue({ labels: ['gpu'], steps: [['pwd; touch here && echo done']] });
    await here.until(job, 'completed');
    expect([job.conclusion, job.log]).toEqual(['success', expect.stringContaining('done')]);
    expect(readdirSync(folder)).toEqual(['bin']);
  });

  test('a job uses the Engine of the config, which finds its files at the same path, and nothing of them is left', async () => {
    const folder = join(dir.path, 'jobs');
    mkdirSync(folder);
    const docker = `    docker: { socket: /var/run/docker.sock, folder: ${folder} }`;
    await using here = await bench({ service: docker, image: `{ base: "${base}" }, user: "0:0"` });
    const { github } = here;
    const daemon = await here.home.up();
    // What the runner does for "container:": a container that has the job's folder mounted.
    const ask = `
const http = require('http');
const call = (method, path, body) => new Promise((resolve, reject) => {
  const request = http.request({ socketPath: '/var/run/docker.sock', method, path, headers: { 'content-type': 'application/json' } }, (answer) => {
    let text = '';
    answer.on('data', (piece) => { text += piece; }).on('end', () => resolve(text === '' ? null : JSON.parse(text)));
  });
  request.on('error', reject).end(body === undefined ? '' : JSON.stringify(body));
});
(async () => {
  const { Version } = await call('GET', '/version');
  const made = { Image: '${base}', Cmd: ['bash', '-c', 'cat /__w/told >/__w/answer'], HostConfig: { Binds: [process.cwd() + ':/__w'] } };
  const { Id, message } = await call('POST', '/containers/create', made);
  if (message) throw new Error(message);
  await call('POST', '/containers/' + Id + '/start');
  const { StatusCode } = await call('POST', '/containers/' + Id + '/wait');
  await call('DELETE', '/containers/' + Id + '?v=1&force=1');
  console.log('Engine ' + Version + ' ended with ' + StatusCode + ' and ' + require('fs').readFileSync('answer'));
})();
`;
    const step = [`cat >ask.js <<'END'${ask}END`, `cd ${folder}/*/_work && echo the same file >told && node $OLDPWD/ask.js`];
    const job = github.queue({ labels: ['gpu'], steps: [[step.join('\n')]] });
    await here.until(job, 'completed');
    expect(job.log).toMatch(/Engine [\d.]+\S* ended with 0 and the same file/);
    await daemon.stop();
    expect(readdirSync(folder)).toEqual([]);
  });

  test('a webhook tells the daemon what waits for an organisation', async () => {
    const secret = join(dir.path, 'webhook.secret');
    writeFileSync(secret, 'a secret of the test\n', { mode: 0o600 });
    const port = await freePort();
    await using here = await bench({ service: `    webhook: { listen: "127.0.0.1:${port}", secret: { file: ${secret} } }` });
    const { github, home } = here;
    await home.up();
    const long = github.queue({ labels: ['gpu'], steps: [['sleep 600']] });
    await here.until(long, 'in_progress');
    const next = github.queue({ labels: ['gpu'], steps: [['true']] });
    const hook = fetch(`http://127.0.0.1:${port}/github`, github.webhook('queued', next, 'a secret of the test'));
    expect((await hook).status).toBe(204);
    await expect.poll(async () => (await home.api.status()).pools[0]?.waiting, soon).toBe(1);
    expect((await home.cli(['doctor']).ended).stdout).toContain('The last webhook came in');
    github.cancel(long);
    await here.until(next, 'completed');
  });

  test('no credential is anywhere that a job can look', async () => {
    await using here = await bench();
    const { github, home } = here;
    await home.up();
    // Split, so that the job does not find its own words.
    const [line = ''] = github.app.pem.split('\n').slice(2);
    const [one, two] = [line.slice(0, 20), line.slice(20, 40)];
    const all = `all=$(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')`;
    const environments = `case "$all" in *"${one}""${two}"* | *"AR""EG"*) echo found ;; *) echo clean ;; esac`;
    const files = `find /workspace /tmp /home /root /opt /etc /run -type f -exec grep -lE "${one}""${two}|AR""EG" {} + 2>/dev/null`;
    const look = `${all}; echo "environments: $(${environments})"; echo "files: $(${files})."`;
    const job = github.queue({ labels: ['gpu'], steps: [[look]] });
    await here.until(job, 'completed');
    expect(job.log).toContain('environments: clean\n');
    expect(job.log).toContain('files: .\n');
  });
});
