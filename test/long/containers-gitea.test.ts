/** Gitea's jobs with containers: the real server and runner, and an engine of its own for each agent. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { PrivateEngine } from '../support/dockerd.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { boxImage, buildEngineImage, engineForPools, poolWith, starter } from '../support/job-containers.ts';
import { onejob } from '../support/onejob.ts';
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
/** Healthy a second after its start, and not before. */
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
  let engine: PrivateEngine;
  let gitea: Awaited<ReturnType<typeof startGitea>>;
  beforeAll(async () => {
    const made = await engineForPools();
    engine = made.engine;
    gitea = await startGitea({ address: made.address });
  }, 300_000);
  afterAll(async () => {
    await gitea?.[Symbol.asyncDispose]();
    await engine?.[Symbol.asyncDispose]();
    dir[Symbol.dispose]();
  }, 120_000);

  /** Runs a workflow in a repository of its own; how its job ended, and what its log says. */
  async function run(name: string, text: string, binding = 'early') {
    const repository = `acme/${name}`;
    await gitea.repository(repository, { '.gitea/workflows/a.yml': text });
    await using home = await onejob({
      engine: engine.socket,
      config: `services:
  forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, binding: ${binding}, agent: { from: ${starter(dir.path, giteaPrograms.runner)} } }
pools:
  box: { service: forge, queue: ${repository}, agents: 1, ${poolWith(giteaPrograms.runner)}${binding === 'late' ? ', trust: { forks: refuse }' : ''} }
`,
      env: { DOCKER_HOST: engine.url, GITEA_TOKEN: await gitea.tokenFor('write:repository') },
    });
    await buildEngineImage(home);
    const daemon = await home.up();
    await gitea.dispatch(repository, 'a.yml');
    const scope = `/repos/${repository}`;
    const [job] = await gitea.until(([first]) => first?.status === 'completed', 180_000, scope);
    const log = await gitea.log(repository, job?.id ?? 0);
    await daemon.stop();
    return { conclusion: job?.conclusion, log };
  }

  test.each(['early', 'late'])('a job has its container, and a healthy service by its name (%s)', async (binding) => {
    const { conclusion, log } = await run(
      `named-${binding}`,
      workflow(`${container}\n${services}`, ['run: echo "said $SAID"; wget -qO- http://db/']),
      binding,
    );
    expect(conclusion, log).toBe('success');
    expect(log).toContain('said from the workflow');
    expect(log).toContain('hello from the service');
  }, 240_000);
});
