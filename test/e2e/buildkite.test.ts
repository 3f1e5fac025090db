/** Buildkite from end to end: the stand-in, the real agent in containers of the real Engine, the filter and the daemon between. */
import { expect, test } from 'vitest';
import { agentOrSkip, buildkiteBench, expectClean } from '../support/buildkite.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { onejob } from '../support/onejob.ts';

test('jobs run one after the other, each in a fresh sandbox under the same name, and nothing is left at the service', async ({
  skip,
}) => {
  await using bench = await buildkiteBench(agentOrSkip(skip));
  const { buildkite } = bench;
  await using here = await onejob({ config: bench.config({ pool: 'name: "box.{n}"' }) });
  const daemon = await here.up();
  await untilAsking(bench);
  const hosts = new Set<string>();
  let last = '';
  for (let n = 1; n <= 3; n++) {
    const { id, exit, log, agent } = await bench.job(`echo job ${n}; test ! -e /tmp/before; touch /tmp/before; exit ${n - 1}`);
    expect({ exit, name: agent?.name }).toEqual({ exit: n - 1, name: 'box.1' });
    expect(log).toContain(`job ${n}`);
    hosts.add(agent?.id ?? '');
    last = id;
  }
  const whole = await here.cli(['logs', last]).ended;
  // Its own lines, whole: nothing of the agent's, and nothing that only a terminal understands.
  expect(whole).toMatchObject({ code: 0, stdout: expect.stringMatching(/^~~~ [\n -~]*\njob 3\n/), stderr: '' });
  expect(await here.cli(['logs', last.slice(0, 13)]).ended).toMatchObject({ code: 0, stdout: whole.stdout });
  const agents = await here.cli(['logs', '--agent', last]).ended;
  expect(agents.stdout).toMatch(/Successfully registered agent "box\.1"/);
  expect(whole.stdout).not.toContain('registered');
  expect((await here.cli(['logs', 'box.1']).ended).code).toBe(0);
  expect((await here.cli(['jobs', last.slice(0, 13)]).ended).stdout).toContain(last);
  expect(hosts.size).toBe(3);
  await daemon.stop();
  expectClean(bench);
  // The cluster's token comes from this host, and an agent's own words from its container.
  const from = (kinds: readonly string[]) =>
    new Set(buildkite.requests.flatMap((one) => (kinds.includes(one.token) ? [one.from] : [])));
  expect(from(['registration']).intersection(from(['acquisition', 'session', 'job'])).size).toBe(0);
});

test('a job of a fork runs through the filter, with its own rights only', async ({ skip }) => {
  await using bench = await buildkiteBench(agentOrSkip(skip));
  await using here = await onejob({ config: bench.config() });
  const daemon = await here.up();
  await untilAsking(bench);
  const command = [
    'echo "token ${BUILDKITE_AGENT_ACCESS_TOKEN%%_*}"',
    'buildkite-agent meta-data set answer 42; buildkite-agent meta-data get answer',
    'buildkite-agent oidc request-token --audience x 2>&1 | grep -o "trust rule" | head -n 1',
    'echo data > out.txt; buildkite-agent artifact upload out.txt 2>&1 | tail -n 1; exit 3',
  ].join('\n');
  const { exit, log, artifacts, metaData } = await bench.job(command, {
    pullRequest: 7,
    pullRequestRepo: 'https://git.example.org/stranger/demo.git',
  });
  expect({ exit, metaData }).toEqual({ exit: 3, metaData: { answer: '42' } });
  expect(log).toMatch(/token ojf\n/);
  expect(log).toContain('trust rule');
  expect(artifacts).toMatchObject([{ path: 'out.txt', state: 'finished' }]);
  await daemon.stop();
  expectClean(bench);
});
