/** `onejob doctor` and the counts of `status` for Buildkite: real sandboxes of the real Engine try the way to the service and to a real filter. */
import { writeFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import type { FindingView } from '../../src/contract/schema.ts';
import { agentOrSkip, buildkiteBench, expectClean } from '../support/buildkite.ts';
import { bridgeAddress, untilAsking } from '../support/buildkite-host.ts';
import { onejob } from '../support/onejob.ts';

/** For jobs: the agent's own calls must find past it. */
const proxy = `env: { HTTP_PROXY: "http://127.0.0.1:1", NO_PROXY: "${bridgeAddress()}" }`;

function lines(found: readonly FindingView[], level: FindingView['level']): string {
  return found
    .filter((one) => one.level === level)
    .map(({ subject, message, hint }) => `${subject}: ${message} ${hint ?? ''}`)
    .join('\n');
}

test('from inside its sandboxes the service and the filter are reached, on each of their networks, and what images lack is named', async ({
  skip,
}) => {
  await using bench = await buildkiteBench(agentOrSkip(skip));
  await using here = await onejob({
    config: bench.config({ pool: `trust: { network: internet }, caches: ["home:/root"], ${proxy}` }),
  });
  const daemon = await here.up();
  await untilAsking(bench);
  const agents = bench.buildkite.agents().length;
  const found = await here.api.call('GET /v1/doctor');
  expect(lines(found, 'error')).toMatch(/^pool ci: There is no git in image "debian:stable-slim"[^\n]*$/);
  const ok = lines(found, 'ok');
  expect(ok).toContain('accepts the token of organisation acme');
  expect(ok).toMatch(/http\S+ can be reached from network "default" by agents of pool ci\./);
  expect(ok).toMatch(/The filter at [\d.]+:\d+ can be reached from network "internet" by untrusted jobs of pool ci\./);
  expect(JSON.stringify(found)).not.toContain(bench.buildkite.token);
  // A look is not an agent, and takes no job.
  expect(bench.buildkite.agents()).toHaveLength(agents);
  await daemon.stop();
  expectClean(bench);
});

test('before the first start nothing is wrong, and services are left to the daemon', async ({ skip }) => {
  await using bench = await buildkiteBench(agentOrSkip(skip));
  await using here = await onejob({ config: bench.config({ pool: 'env: { BUILDKITE_SKIP_CHECKOUT: "true" }' }) });
  const { code, stdout } = await here.cli(['doctor']).ended;
  expect(code, stdout).toBe(0);
  expect(stdout.replace(/\s+/g, ' ')).toContain('Only a daemon checks slots, images, caches, GPUs and CI services');
});

test('jobs of the queue are counted; a token that may not count costs the counts alone', async ({ skip }) => {
  await using bench = await buildkiteBench(agentOrSkip(skip), { metricsPollSeconds: 1 });
  const { buildkite, tokenFile } = bench;
  const metrics = `${tokenFile}.metrics`;
  writeFileSync(metrics, 'bkct_wrongwrong', { mode: 0o600 });
  await using here = await onejob({ config: bench.config({ pool: proxy, service: `metrics_token: { file: ${metrics} }` }) });
  const daemon = await here.up();
  await untilAsking(bench);
  const waiting = async () => (await here.api.status()).pools[0]?.waiting;
  expect(await waiting()).toBeNull();
  const found = await here.api.call('GET /v1/doctor');
  expect(lines(found, 'error')).toMatch(/^pool ci: There is no git in image "debian:stable-slim"[^\n]*$/);
  expect(lines(found, 'warning')).toMatch(/answered 401.*Put it into file \S+token\.metrics/);
  const running = bench.hold('a');
  const ids = ['b', 'c'].map((name) => bench.hold(name));
  writeFileSync(metrics, buildkite.metricsToken, { mode: 0o600 });
  await expect.poll(waiting, { timeout: 20_000 }).toBe(2);
  for (const name of ['a', 'b', 'c']) bench.go(name);
  for (const id of [running, ...ids]) expect((await buildkite.jobEnded(id)).exit).toBe(0);
  await daemon.stop();
  expectClean(bench);
});
