/** Gitea's jobs with containers: the real server and runner, and an engine of its own for each agent. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { boxImage, engineForPools, type PoolEngine, poolWith, starter } from '../support/job-containers.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

/** A workflow of one job. */
const workflow = (job: string, steps: readonly string[]): string => `on: workflow_dispatch
jobs:
  j:
    runs-on: box
${job.replaceAll(/^/gm, '    ')}
    steps:
${steps.map((step) => `      - ${step.replaceAll('\n', '\n        ')}`).join('\n')}
`;

const container = `container: { image: "${boxImage}", env: { SAID: from the workflow } }`;
/** Ready a second after its start. The runner hands the health options on, but does not wait for them (1.0.8, run_context.go). */
const services = `services:
  db:
    image: "${boxImage}"
    env: { PAGE: hello from the service }
    cmd: [sh, -c, 'mkdir /www; echo "$PAGE" >/www/index.html; sleep 1; touch /ready; httpd -f -p 80 -h /www']
    options: >-
      --health-cmd "test -e /ready"
      --health-interval 1s
      --health-retries 30`;

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase', 'gitea'))('jobs of Gitea with containers', () => {
  const dir = scratch();
  let engine: PoolEngine;
  let gitea: Awaited<ReturnType<typeof startGitea>>;
  let home: Home;
  beforeAll(async () => {
    engine = await engineForPools();
    gitea = await startGitea({ address: engine.address });
    for (const name of ['early', 'late']) await gitea.repository(`acme/${name}`, {});
    const from = starter(dir.path, giteaPrograms.runner);
    const common = `type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, agent: { from: ${from} }`;
    const pool = `agents: 1, tags: box, ${poolWith(giteaPrograms.runner)}`;
    const config = `services:
  early: { ${common} }
  late: { ${common}, binding: late }
pools:
  early: { service: early, queue: acme/early, ${pool} }
  late: { service: late, queue: acme/late, ${pool} }
`;
    home = await engine.home(config, { GITEA_TOKEN: await gitea.tokenFor('write:repository') });
    await home.up();
  }, 300_000);
  afterAll(async () => {
    await home?.close();
    await gitea?.[Symbol.asyncDispose]();
    await engine?.[Symbol.asyncDispose]();
    dir[Symbol.dispose]();
  }, 120_000);

  /** Runs a workflow; how its job ended, and what its log says. */
  async function run(binding: string, text: string) {
    const repository = `acme/${binding}`;
    const scope = `/repos/${repository}`;
    const before = (await gitea.jobs(scope)).length;
    const file = `${before}.yml`;
    await gitea.push(repository, { [`.gitea/workflows/${file}`]: text });
    await gitea.dispatch(repository, file);
    const job = (await gitea.until((jobs) => jobs[before]?.status === 'completed', 180_000, scope))[before];
    return { conclusion: job?.conclusion, log: await gitea.log(repository, job?.id ?? 0) };
  }

  test.each(['early', 'late'])(
    'a job has its container, and a service by its name (%s)',
    async (binding) => {
      const steps = ['run: echo "said $SAID"; until wget -qO- http://db/; do sleep 0.2; done'];
      const { conclusion, log } = await run(binding, workflow(`${container}\n${services}`, steps));
      expect(conclusion, log).toBe('success');
      expect(log).toContain('said from the workflow');
      expect(log).toContain('hello from the service');
    },
    240_000,
  );

  test('a container of a job finds the engine, and a step may be an image of its own', async () => {
    const steps = [
      'run: test -S /var/run/docker.sock && echo has the socket',
      `uses: docker://${boxImage}\nwith: { entrypoint: /bin/echo, args: said by a step }`,
    ];
    const { conclusion, log } = await run('early', workflow(container, steps));
    expect(conclusion, log).toBe('success');
    expect(log).toContain('has the socket');
    expect(log).toContain('said by a step');
  }, 240_000);

  test('a job without a container of its own runs containers, too', async () => {
    const steps = [
      'run: docker run --rm -v "$PWD:/w" box:1 sh -c "echo made >/w/made"; cat made',
      `uses: docker://${boxImage}\nwith: { entrypoint: /bin/echo, args: said by a step }`,
    ];
    const { conclusion, log } = await run('early', workflow('env: { A: b }', steps));
    expect(conclusion, log).toBe('success');
    expect(log).toMatch(/ made$/m);
    expect(log).toContain('said by a step');
  }, 240_000);
});
