/** GitHub's jobs with containers: an independent runner at the stand-in, and an engine of its own for each agent. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { QueueOptions } from '../kit/github-world.ts';
import { build, clientImage } from '../support/engine-base.ts';
import { ensureGithubBase, writeRunnerPackage } from '../support/github-image.ts';
import { startGitHub } from '../support/github-server.ts';
import { boxAtRegistry as box, engineForPools, makeBox, type PoolEngine, serveBox } from '../support/job-containers.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const healthy = '--health-cmd "test -e /ready" --health-interval 1s --health-retries 30';

/** The image of the sandboxes: that of other tests of GitHub, and the docker command. */
const base = 'onejob-test/github-docker:1';

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase', 'github'))('jobs of GitHub with containers', () => {
  const dir = scratch();
  let engine: PoolEngine;
  let github: Awaited<ReturnType<typeof startGitHub>>;
  let home: Home;
  beforeAll(async () => {
    engine = await engineForPools();
    const below = await ensureGithubBase(engine.socket);
    await build(engine.api, base, `FROM ${below}\nCOPY --from=${clientImage} / /\n`);
    github = await startGitHub({ address: engine.address });
    const key = join(dir.path, 'app.pem');
    writeFileSync(key, github.app.key.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
    // This runner pulls images also where they are, and runs jobs without a container in its cache.
    const from = await writeRunnerPackage(dir.path, `${makeBox} && ${serveBox}`);
    home = await engine.home(`services:
  hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: ${key} } }, poll: 5s, agent: { from: ${from} } }
pools:
  ci: { service: hub, queue: acme, agents: 1, image: { base: "${base}" }, network: default, tags: gpu, containers: true, env: { XDG_CACHE_HOME: /workspace/.cache } }
`);
    await home.up();
  }, 300_000);
  afterAll(async () => {
    await home?.close();
    await github?.[Symbol.asyncDispose]();
    await engine?.[Symbol.asyncDispose]();
    dir[Symbol.dispose]();
  }, 120_000);

  async function run(options: QueueOptions) {
    const job = github.queue({ labels: ['gpu'], ...options });
    await expect.poll(() => job.status, { timeout: 180_000 }).toBe('completed');
    return job;
  }

  test('a sandbox does not look like a container of Docker, in which the official runner refuses containers', async () => {
    const { log, conclusion } = await run({ steps: [['cat /proc/1/cgroup; ! grep -i ":/docker/" /proc/1/cgroup']] });
    expect(conclusion, log).toBe('success');
  }, 240_000);

  test('a job has its container, and a healthy service by its name', async () => {
    const { log, conclusion } = await run({
      container: { image: box, env: { SAID: 'from the workflow' } },
      services: { db: { image: box, env: { PAGE: 'hello from the service' }, options: healthy } },
      steps: [['echo "said $SAID"; wget -qO- http://db/']],
    });
    expect(conclusion, log).toBe('success');
    expect(log).toContain('said from the workflow');
    expect(log).toContain('hello from the service');
  }, 240_000);

  test('a step may be an image, or an action that is built', async () => {
    const action = [
      'mkdir action; echo "FROM $IMAGE" >action/Dockerfile; echo \'ENTRYPOINT ["echo", "said by an action"]\' >>action/Dockerfile',
      'echo "{ name: a, description: a, runs: { using: docker, image: Dockerfile } }" >action/action.yml',
    ];
    const { log, conclusion } = await run({
      container: { image: box, env: { IMAGE: box } },
      steps: [{ uses: `docker://${box}`, with: { entrypoint: '/bin/echo', args: 'said by a step' } }, action, { uses: './action' }],
    });
    expect(conclusion, log).toBe('success');
    expect(log).toContain('said by a step');
    expect(log).toContain('said by an action');
  }, 240_000);

  test('a job without a container of its own runs containers', async () => {
    const { log, conclusion } = await run({
      steps: [['docker run --rm -v "$PWD:/w" box:1 sh -c "echo made >/w/made"; cat made']],
    });
    expect(conclusion, log).toBe('success');
    expect(log).toMatch(/ made$/m);
  }, 240_000);
});
