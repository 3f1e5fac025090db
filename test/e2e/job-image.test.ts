/** A job's own image where there are no images: refused in words, never left out in silence. */
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';

test('a job that asks for an image of its own is refused by processes, with the reason; other jobs continue', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  await here.up();
  const refused = await here.run('--no-workspace', '--image', 'python:3.13', '--', 'echo', 'ran').ended;
  expect(refused.stdout).toBe('');
  expect(refused.code).toBe(125);
  expect(refused.stderr).toMatch(/image "python:3\.13".*pool "default" runs its jobs as processes/s);
  // Nothing waits for what can never run.
  expect(await here.api.jobs({ all: true, pool: null })).toEqual([]);
  expect(await here.run('--no-workspace', '--', 'echo', 'ran').ended).toMatchObject({ code: 0, stdout: 'ran\n' });
  expect((await here.api.status()).pools[0]?.backoff).toBeNull();
});

test('the image that pools have by default is refused in the same way, also by a warm standby', async () => {
  await using here = await onejob({ env: { DOCKER_HOST: 'unix:///nowhere' } });
  const daemon = await here.up();
  const refused = await here.run('--no-workspace', '--image', 'debian:stable-slim', '--', 'echo', 'ran').ended;
  expect(refused.code).toBe(125);
  expect(refused.stdout).toBe('');
  expect(refused.stderr).toMatch(/image "debian:stable-slim".*E_JOB_REQUEST/s);
  expect((await daemon.stop()).code).toBe(0);
});
