/** `/metrics` of a real daemon. */
import http from 'node:http';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';

function get(socketPath: string, path: string): Promise<{ status: number; type: string; text: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; type: string; text: string }>();
  http
    .get({ socketPath, path, agent: false }, async (response) => {
      const { statusCode = 0, headers } = response;
      resolve({ status: statusCode, type: headers['content-type'] ?? '', text: await text(response) });
    })
    .on('error', reject);
  return promise;
}

test('a daemon serves its metrics, and counts the jobs that end', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 2, runtime: process } }' });
  await here.up();
  const metrics = () => get(here.api.socket, '/metrics');
  const first = await metrics();
  expect(first).toMatchObject({ status: 200, type: 'text/plain; version=0.0.4; charset=utf-8' });
  expect(first.text).toContain('onejob_slots{pool="default"} 2\n');
  expect((await here.run('--no-workspace', '--', 'true').ended).code).toBe(0);
  expect((await here.run('--no-workspace', '--', 'sh', '-c', 'exit 3').ended).code).toBe(3);
  const { text: later } = await metrics();
  expect(later).toContain('onejob_jobs_total{pool="default",service="own",verdict="passed"} 1\n');
  expect(later).toContain('onejob_jobs_total{pool="default",service="own",verdict="code"} 1\n');
  expect(later).toContain('onejob_job_run_seconds_count{pool="default"} 2\n');
  await expect.poll(async () => (await metrics()).text).toContain('onejob_slot_gap_seconds_count{pool="default"} 2\n');
});
