/**
 * Makes the picture in docs/ci/buildkite.md from a real run: the stand-in for Buildkite, its own agent, and `onejob` with a pool of
 * three slots in a terminal of 100 columns. Needs tmux, a Docker Engine with the image, and the agent
 * (`node test/support/buildkite-agent.ts`). What it made is gone afterwards.
 *
 *     node scripts/picture-buildkite.ts
 */
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type JobSpec, startBuildkite } from '../test/standins/buildkite/standin.ts';
import { lacksAgent, realAgent } from '../test/support/buildkite-agent.ts';
import { bridgeAddress } from '../test/support/buildkite-host.ts';
import { ansiToSvg } from './ansi-svg.ts';
import { allReady, film, type Lab } from './lab.ts';
import { until } from './terminal.ts';

const [columns, rows] = [100, 40];

const agent = realAgent();
if (agent === null) throw new Error(`Cannot make the picture: ${lacksAgent()}.`);

// The service outlives the daemon, which has to end its stack there.
await using buildkite = await startBuildkite({ host: '0.0.0.0', publicHost: bridgeAddress() });
const text = await film({ columns, rows }, async ({ dir, env, up, type }) => {
  const token = join(dir, 'token');
  writeFileSync(token, buildkite.token, { mode: 0o600 });
  const secret = encrypted(env, join(dir, 'secrets.key'));
  const client = await up(`services:
  buildkite: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${token} }, agent: { from: "${agent}" } }
secrets: { key: { file: ${join(dir, 'secrets.key')} } }
pools:
  gpu:
    service: buildkite
    queue: default
    agents: 3
    name: "gpuci.{n}"
    image: debian:stable-slim
    env: { BUILDKITE_SKIP_CHECKOUT: "true" }
    trust: { branches: [main], forks: run-without-secrets, others: refuse }
`);
  const queue = (pipeline: string, label: string, spec: JobSpec) =>
    buildkite.queueJob({
      pipeline,
      repo: `https://github.com/acme/${pipeline}.git`,
      command: 'sleep 60',
      ...spec,
      env: { SECRET_CODECOV_TOKEN: secret, BUILDKITE_LABEL: label },
    });
  const pullRequest = { pullRequest: 318, pullRequestRepo: 'https://github.com/mallory/solver.git', branch: 'mallory:main' };
  for (const [label, spec] of [
    ['solver on CUDA 13', {}],
    ['solver on CUDA 13', pullRequest],
  ] as const) {
    const id = queue('solver', label, spec);
    await until(async () => buildkite.job(id).state === 'running');
  }
  await buildkite.jobEnded(queue('solver', 'benchmarks', { branch: 'wip' }));
  await buildkite.jobEnded(queue('docs', 'manual', {}));
  await until(() => allReady(client));
  await type('onejob status');
  await type('onejob jobs --all');
  const running = buildkite.jobs().filter(({ state }) => state === 'running');
  for (const { id } of running) buildkite.cancel(id);
  await Promise.all(running.map(({ id }) => buildkite.jobEnded(id)));
  await until(() => allReady(client));
});
const title = 'onejob status and onejob jobs with jobs of Buildkite';
writeFileSync(join(import.meta.dirname, '..', 'docs/pictures/buildkite.svg'), ansiToSvg(text, { columns, title }));

/** A value for jobs of `acme/solver`, whose key it makes. */
function encrypted(env: Lab['env'], key: string): string {
  const publicKey = `${key}.pub`;
  writeFileSync(publicKey, execFileSync('onejob', ['secret', 'keygen', key], { env, stdio: ['ignore', 'pipe', 'ignore'] }));
  const args = ['--key', publicKey, '--name', 'CODECOV_TOKEN', '--pipeline', 'acme/solver'];
  return execFileSync('onejob', ['secret', 'encrypt', ...args], { env, input: 'correct horse', encoding: 'utf8' }).trim();
}
