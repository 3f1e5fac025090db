/** Buildkite from end to end: the stand-in, the real agent in containers of the real Engine, the broker and the daemon between. */
import { expect, test } from 'vitest';
import { agentOrSkip, buildkiteBench, expectClean, untilIdle } from '../support/buildkite.ts';
import { onejob } from '../support/onejob.ts';

test('jobs run one after the other, each in a fresh sandbox under the same name, and nothing is left at the service', async ({
  skip,
}) => {
  await using bench = await buildkiteBench(agentOrSkip(skip));
  const { buildkite } = bench;
  await using here = await onejob({ config: bench.config({ pool: 'name: "box.{n}"' }) });
  const daemon = await here.up();
  await untilIdle(bench);
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
  expect(buildkite.requests.filter(({ token }) => token === 'registration').every(({ from }) => from === '127.0.0.1')).toBe(true);
});
