/** Two pools, one of them on an Engine that does not answer: a job is told about its own pool only. */
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';

test('run says what concerns the pool of its job, and nothing of another pool', async () => {
  const config = 'pools: { p: { agents: 1, runtime: process }, d: { agents: 1, runtime: docker, image: "some:1" } }';
  await using here = await onejob({ config, env: { DOCKER_HOST: 'unix:///nowhere' } });
  await here.up();
  await expect.poll(async () => (await here.api.status()).problems.join()).toMatch(/nowhere/);
  const p = await here.run('--no-workspace', '--pool', 'p', '--', 'echo', 'ran').ended;
  expect(p).toMatchObject({ code: 0, stdout: 'ran\n' });
  expect(p.stderr).not.toMatch(/nowhere|Docker|Engine/);
  expect(p.stderr).toMatch(/Jobs /);
  const d = here.run('--no-workspace', '--pool', 'd', '--', 'echo', 'ran');
  await d.says(/nowhere/);
  expect(d.stderr).not.toMatch(/Jobs /);
  expect((await here.api.jobs({ all: false, pool: 'd' })).map(({ reason }) => reason)).toEqual([expect.stringMatching(/nowhere/)]);
});
