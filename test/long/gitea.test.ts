/** Gitea from end to end: the real server, the real runner in containers of the real Engine, and the daemon between. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { attempt } from '../../src/base/errors.ts';
import { engineAt } from '../support/engine-http.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

type Gitea = Awaited<ReturnType<typeof startGitea>>;

const workflow = (run: string, more = '') => `on: workflow_dispatch
${more}
jobs:
  j:
    runs-on: gpu
    steps:
      - run: |
${run.replaceAll(/^/gm, '          ')}
`;
const waits = workflow('echo begin; for i in $(seq 600); do sleep 1; done');

const isOver = ({ status }: { readonly status: string }): boolean => status === 'completed';

describe.skipIf(lacks('docker', 'image', 'gitea'))('with the real Gitea', () => {
  let gitea: Gitea;
  beforeAll(async () => {
    gitea = await startGitea();
  });
  afterAll(() => gitea[Symbol.asyncDispose]());

  /** A repository of its own with these workflows, and a onejob for it alone, or for all of the organisation. */
  async function bench(
    name: string,
    workflows: Readonly<Record<string, string>>,
    more = '',
    queue = `acme/${name}`,
    binding = 'early',
  ) {
    const repository = `acme/${name}`;
    // What docs/ci/gitea.md says that a token needs.
    const scopes = queue === repository ? ['write:repository'] : ['write:organization', 'read:repository'];
    const files = Object.entries(workflows).map(([file, text]) => [`.gitea/workflows/${file}`, text] as const);
    await gitea.repository(repository, Object.fromEntries(files));
    const home: Home = await onejob({
      config: `services:
  forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, ${binding === 'late' ? 'binding: late' : 'boot_timeout: 30s'}, agent: { from: ${giteaPrograms.runner} } }
pools:
  gpu: { service: forge, queue: ${queue}, agents: 1, image: "debian:stable-slim", network: default${more} }
`,
      env: { GITEA_TOKEN: await gitea.tokenFor(...scopes) },
    });
    const scope = `/repos/${repository}`;
    const until = async (done: Parameters<Gitea['until']>[0]) => gitea.until(done, 180_000, scope);
    return {
      repository,
      home,
      until,
      dispatch: (file: string) => gitea.dispatch(repository, file),
      log: (id = 0) => gitea.log(repository, id),
      runners: () => gitea.runners(queue === repository ? scope : `/orgs/${queue}`),
      /** Name of the container of the agent that runs. */
      async sandbox(): Promise<string> {
        const { pools } = await home.api.status();
        const agent = pools[0]?.slots[0]?.agent.agent ?? 'none';
        using engine = engineAt();
        const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Names: string[] }[];
        return list.find(({ Names: names }) => names.some((one) => one.includes(agent)))?.Id ?? '';
      },
      [Symbol.asyncDispose]: () => home.close(),
    };
  }

  test('jobs run one after the other, each with a runner of its own, and nothing is left', async () => {
    const again = workflow('echo hello from $GITHUB_REPOSITORY; test ! -e /tmp/before; touch /tmp/before');
    const workflows = { 'two.yml': again, 'bad.yml': workflow('echo about to fail; exit 7') };
    await using here = await bench('one', workflows, '', 'acme');
    const daemon = await here.home.up();
    for (const file of ['two.yml', 'bad.yml', 'two.yml']) await here.dispatch(file);
    const jobs = await here.until((all) => all.length === 3 && all.every(isOver));
    const doctor = await here.home.cli(['doctor']).ended;
    expect(doctor.stdout).toMatch(/onejob may manage the runners of acme: /);
    expect(doctor.stdout).not.toMatch(/service forge.*does not allow/);
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure', 'success']);
    expect(new Set(jobs.map(({ runner_id: id }) => id)).size).toBe(3);
    expect(await here.log(jobs[0]?.id)).toContain('hello from acme/one');
    const listed = async () =>
      (await here.home.api.jobs({ all: true, pool: null })).map(({ about, verdict }) => [about?.title, verdict?.kind]);
    const title = expect.stringMatching(/^(two|bad)\.yml #\d j$/);
    const passed = [title, 'passed'];
    const isListed = expect.poll(listed, { timeout: 60_000 }).toEqual([passed, [title, 'code'], passed]);
    await isListed.catch(async (cause: unknown) => {
      throw new Error(`The jobs are ${JSON.stringify(await here.home.api.jobs({ all: true, pool: null }), null, 1)}`, { cause });
    });
    await daemon.stop();
    expect(await here.runners()).toEqual([]);
  });

  test('a job that wants an Engine is not to blame for its failure, and says what to do', async () => {
    const wants = workflow('true').replace('    runs-on: gpu\n', '    runs-on: gpu\n    container: debian:stable-slim\n');
    await using here = await bench('container', { 'image.yml': wants, 'bad.yml': workflow('exit 3') });
    await here.home.up();
    for (const file of ['image.yml', 'bad.yml']) await here.dispatch(file);
    const jobs = await here.until((all) => all.length === 2 && all.every(isOver));
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['failure', 'failure']);
    const listed = async () => (await here.home.api.jobs({ all: true, pool: null })).map(({ verdict }) => verdict?.kind);
    await expect.poll(listed, { timeout: 60_000 }).toEqual(['unknown', 'code']);
    const [first] = await here.home.api.jobs({ all: true, pool: null });
    const { stdout } = await here.home.cli(['jobs', first?.id ?? '']).ended;
    expect(stdout).toMatch(/failed \(failure\) .*"container:" in its workflow wants an Engine/s);
  });

  test('a job that is cancelled ends at once, with its sandbox', async () => {
    const one = workflow('for i in $(seq 600); do echo $i; sleep 1; done', 'concurrency: { group: c, cancel-in-progress: true }');
    await using here = await bench('cancel', { 'long.yml': one }, '', 'acme');
    await here.home.up();
    await here.dispatch('long.yml');
    await here.until(([first]) => first?.status === 'in_progress');
    await expect.poll(async () => (await here.home.api.jobs({ all: false, pool: null })).length).toBe(1);
    const sandbox = await here.sandbox();
    await here.dispatch('long.yml');
    await here.until(([first, second]) => first?.conclusion === 'cancelled' && second?.status === 'in_progress');
    using engine = engineAt();
    await expect.poll(async () => (await engine.call('GET', `/containers/${sandbox}/json`)).status, { timeout: 30_000 }).toBe(404);
  });

  test('a job whose sandbox is killed ends at once, with the reason in its log', async () => {
    await using here = await bench('killed', { 'long.yml': waits }, '', 'acme');
    await here.home.up();
    await here.dispatch('long.yml');
    await here.until(([first]) => first?.status === 'in_progress');
    using engine = engineAt();
    await engine.ok('POST', `/containers/${await here.sandbox()}/kill`);
    const [job] = await here.until(([first]) => first !== undefined && isOver(first));
    expect(job?.conclusion).toBe('failure');
    expect(await here.log(job?.id)).toMatch(/onejob: the sandbox was killed \(exit code 137\)\./);
  });

  test('a job that ends with its daemon has failed, with the reason in its log', async () => {
    await using here = await bench('down', { 'long.yml': waits });
    const daemon = await here.home.up();
    await here.dispatch('long.yml');
    const [begun] = await here.until(([first]) => first?.status === 'in_progress');
    await expect.poll(() => here.log(begun?.id), { timeout: 60_000 }).toContain('begin');
    await daemon.stop();
    const [job] = await here.until(([first]) => first !== undefined && isOver(first));
    expect(job?.conclusion).toBe('failure');
    expect(await here.log(job?.id)).toMatch(/onejob: the job was ended, because its host stopped onejob\. Run it again\./);
    expect(await here.runners()).toEqual([]);
  });

  test('a job continues while the daemon is dead, and ends with its own result', async () => {
    await using here = await bench('dead', { 'a.yml': workflow('echo begin; sleep 6; echo the end') });
    const first = await here.home.up();
    await here.dispatch('a.yml');
    await here.until(([one]) => one?.status === 'in_progress');
    await first.kill();
    const [job] = await here.until(([one]) => one !== undefined && isOver(one));
    expect(job?.conclusion).toBe('success');
    expect(await here.log(job?.id)).toContain('the end');
    await (await here.home.up()).stop();
    expect(await here.runners()).toEqual([]);
  });

  test('the next daemon ends a job whose sandbox died with the daemon', async () => {
    await using here = await bench('both', { 'long.yml': waits });
    const first = await here.home.up();
    await here.dispatch('long.yml');
    await here.until(([one]) => one?.status === 'in_progress');
    const sandbox = await here.sandbox();
    await first.kill();
    using engine = engineAt();
    await engine.ok('POST', `/containers/${sandbox}/kill`);
    await here.home.up();
    const [job] = await here.until(([one]) => one !== undefined && isOver(one));
    expect(job?.conclusion).toBe('failure');
    expect(await here.log(job?.id)).toContain('onejob: ');
  });

  /** As `bench`, where onejob takes each job before there is a sandbox for it. */
  const lateBench = (name: string, workflows: Readonly<Record<string, string>>) =>
    bench(name, workflows, ', trust: { forks: refuse }', undefined, 'late');

  test('a job that is bound late runs with the server’s own address, and nothing of its runner is left', async () => {
    const run = 'echo hello from $GITHUB_REPOSITORY at $GITHUB_SERVER_URL; echo "$SAID"';
    await using here = await lateBench('late', {
      'a.yml': workflow(run, 'env: { SAID: "on: yes" }'),
      'bad.yml': workflow('exit 7'),
    });
    const daemon = await here.home.up();
    await here.dispatch('a.yml');
    await here.dispatch('bad.yml');
    const jobs = await here.until((all) => all.length === 2 && all.every(isOver));
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure']);
    const said = await here.log(jobs[0]?.id);
    expect(said).toContain(`hello from acme/late at ${gitea.url}\n`);
    expect(said).toContain(' on: yes');
    await expect.poll(async () => (await here.home.api.jobs({ all: true, pool: null })).length, { timeout: 60_000 }).toBe(2);
    await daemon.stop();
    expect(await here.runners()).toEqual([]);
    expect(readdirSync(join(here.home.stateDir, 'jobs-forge'))).toEqual([]);
  });

  test('what a job keeps as actions/cache does is found by the next job of its repository', async () => {
    const run = `call() {
  local url=\${ACTIONS_CACHE_URL#http://} body=\${3-}
  local host=\${url%%/*}
  exec 3<>/dev/tcp/\${host%:*}/\${host##*:}
  printf '%s /%s%s HTTP/1.1\\r\\nHost: %s\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\nContent-Range: bytes 0-%d/*\\r\\nContent-Length: %d\\r\\n\\r\\n%s' \\
    "$1" "\${url#*/}" "$2" "$host" "$ACTIONS_RUNTIME_TOKEN" $((\${#body} - 1)) \${#body} "$body" >&3
  tr -d '\\r' <&3
}
at=_apis/artifactcache
location=$(call GET "$at/cache?keys=npm-&version=v" | sed -n 's/.*"archiveLocation":"\\([^"]*\\)".*/\\1/p')
[ -z "$location" ] || echo "found: $(call GET "\${location#"$ACTIONS_CACHE_URL"}" | tail -n 1)"
id=$(call POST $at/caches '{"key":"npm-1","version":"v","cacheSize":5}' | sed -n 's/.*"cacheId":\\([0-9]*\\).*/\\1/p')
call PATCH $at/caches/$id hello | head -n 1
call POST $at/caches/$id '{"size":5}' | head -n 1`;
    await using here = await lateBench('cached', { 'a.yml': workflow(run) });
    await here.home.up();
    await here.dispatch('a.yml');
    const [first] = await here.until(([one]) => one !== undefined && isOver(one));
    expect(await here.log(first?.id)).toMatch(/200 OK[\s\S]*200 OK/);
    await here.dispatch('a.yml');
    const jobs = await here.until((all) => all.length === 2 && all.every(isOver));
    const said = await Promise.all(jobs.map(({ id }) => here.log(id)));
    expect(said.filter((text) => text.includes('found: hello'))).toHaveLength(1);
    expect(said.join('')).not.toContain('ojf_');
    const listed = await here.home.cli(['caches', '--json']).ended;
    expect(JSON.parse(listed.stdout)).toMatchObject({
      kind: 'service',
      of: 'forge',
      name: 'npm-1',
      project: 'acme/cached',
      trusted: true,
    });
  });

  test('a fork’s pull request is refused before any sandbox has it, with the reason in its log', async () => {
    const checked = workflow('echo from a fork').replace('on: workflow_dispatch', 'on: pull_request');
    await using here = await lateBench('forked', { 'check.yml': checked });
    await here.home.up();
    await gitea.api('POST', '/repos/acme/forked/forks', {});
    await gitea.push('root1/forked', { 'new.txt': 'new' }, 'change');
    await gitea.api('POST', '/repos/acme/forked/pulls', { title: 'change', head: 'root1:change', base: 'main' });
    const [job] = await here.until(([first]) => first !== undefined && isOver(first));
    const said = await here.log(job?.id);
    expect(job?.conclusion).toBe('failure');
    expect(said).toMatch(
      /onejob: this job was refused: it is pull request 1 from \S+root1\/forked, not from \S+acme\/forked \(rule "trust\.forks/,
    );
    expect(said).not.toContain('received task');
  });

  test('a job continues if the daemon is killed as soon as it has taken it', async () => {
    await using here = await lateBench('taken', { 'a.yml': workflow('echo hello; sleep 3') });
    const first = await here.home.up();
    /** What is whole on disk: runners that ask, and jobs. */
    const kept = (what: string) => {
      const dir = join(here.home.stateDir, `${what}-forge`);
      return (attempt(() => readdirSync(dir)) ?? []).filter((file) => file.endsWith('.json')).length;
    };
    await expect.poll(() => kept('runners'), { timeout: 60_000 }).toBe(1);
    const written = readFileSync(join(here.home.dir, 'config.yml'), 'utf8');
    here.home.configure(written.replace('binding: late', 'boot_timeout: 30s').replace(', trust: { forks: refuse }', ''));
    await expect(here.home.api.call('POST /v1/config/apply', { body: { dryRun: false } })).rejects.toThrow(
      'Cannot change "binding" of service forge while it has agents',
    );
    here.home.configure(written);
    await here.dispatch('a.yml');
    await expect.poll(() => kept('jobs'), { timeout: 60_000, interval: 2 }).toBe(1);
    await first.kill();
    await here.home.up();
    const [job] = await here.until(([one]) => one !== undefined && isOver(one));
    expect(job?.conclusion).toBe('success');
    expect(await here.log(job?.id)).toContain('hello');
  });
});
