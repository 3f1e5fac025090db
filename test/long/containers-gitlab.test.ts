/** GitLab's jobs with `image:` and `services:`, run by the real gitlab-runner in sandboxes with engines of their own. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type JobSpec, type MemoryGitlab, memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { gitlabRunner, gitlabRunnerVersion } from '../support/gitlab-programs.ts';
import { boxImage, engineForPools, type PoolEngine, poolWith, starter } from '../support/job-containers.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

/** What the runner would pull: its helper, which has the same commands as the runner itself. */
const helper = `registry.gitlab.com/gitlab-org/gitlab-runner/gitlab-runner-helper:x86_64-v${gitlabRunnerVersion}`;
const makeHelper = [
  'mkdir -p /tmp/h/usr/bin && mkdir -m 1777 /tmp/h/tmp && cp -a /bin /etc /tmp/h/ && cp /real/gitlab-runner-* /tmp/h/usr/bin/gitlab-runner-helper',
  `printf '#!/bin/sh\\numask 0000\\nexec sh "$@"\\n' >/tmp/h/usr/bin/gitlab-runner-build && chmod 755 /tmp/h/usr/bin/gitlab-runner-build`,
  `tar -C /tmp/h -c . | docker import - ${helper} >&2 && rm -rf /tmp/h`,
].join(' && ');

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase', 'gitlabRunner'))('jobs of GitLab with containers', () => {
  const dir = scratch();
  let engine: PoolEngine;
  let gitlab: MemoryGitlab;
  let server: AsyncDisposable;
  let home: Home;
  beforeAll(async () => {
    engine = await engineForPools();
    gitlab = memoryGitlab();
    server = await gitlab.serve(engine.address);
    const config = `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${starter(dir.path, gitlabRunner, makeHelper)} } }
pools:
  ci: { service: lab, agents: 1, ${poolWith(gitlabRunner)} }
`;
    home = await engine.home(config, { GITLAB_TOKEN: runnerToken });
    await home.up();
  }, 300_000);
  afterAll(async () => {
    await home?.close();
    await server?.[Symbol.asyncDispose]();
    await engine?.[Symbol.asyncDispose]();
    dir[Symbol.dispose]();
  }, 120_000);

  async function run(spec: JobSpec) {
    const job = gitlab.queue(spec);
    await gitlab.until(() => ['success', 'failed', 'canceled'].includes(job.state));
    return { id: job.id, state: job.state, reason: job.reason, log: job.trace.toString() };
  }

  test('a job has its image, and a service by its alias once that listens', async () => {
    const page = 'echo "$PAGE" >/tmp/index.html; sleep 1; httpd -f -p 80 -h /tmp';
    const { state, log } = await run({
      image: { name: boxImage, entrypoint: [''] },
      services: [
        {
          name: boxImage,
          alias: 'db',
          entrypoint: ['sh', '-c'],
          command: [page],
          variables: [{ key: 'PAGE', value: 'hello from the service' }],
        },
      ],
      variables: { HEALTHCHECK_TCP_PORT: '80' },
      script: ['wget -qO- http://db/'],
    });
    expect(state, log).toBe('success');
    expect(log).toContain('hello from the service');
  }, 240_000);

  test('a job hands files on from its container to one without, which runs containers itself', async () => {
    const first = await run({ image: boxImage, script: ['echo built >made; hostname >who'], artifacts: ['made'] });
    expect(first.state, first.log).toBe('success');
    const script = ['cat made; docker run --rm -v "$PWD:/w" box:1 sh -c "echo again >/w/more"; cat more'];
    const { state, log } = await run({ script, needs: [first.id] });
    expect(state, log).toBe('success');
    expect(log).toMatch(/ built$/m);
    expect(log).toMatch(/ again$/m);
  }, 240_000);

  test('a job fails as its script does in a container, and one of an unknown image for its own reason', async () => {
    const fails = await run({ image: boxImage, script: ['exit 7'] });
    expect([fails.state, fails.reason], fails.log).toEqual(['failed', 'script_failure']);
    const nowhere = await run({ image: '127.0.0.1:9/no/such:1', script: ['true'] });
    expect([nowhere.state, nowhere.log]).toEqual(['failed', expect.stringContaining('127.0.0.1:9/no/such:1')]);
  }, 240_000);
});
