/** `doctor` says what keeps jobs from running, whatever it is, and what to do about it. */
import { mkdirSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { FindingView } from '../../src/contract/schema.ts';
import { onejob } from '../support/onejob.ts';

test('a pool that backs off, is paused or drains is a warning with what to do', async () => {
  await using here = await onejob({ config: '' });
  const data = join(here.dir, 'data');
  mkdirSync(data);
  here.configure(`pools:
  default: { agents: 1, runtime: process }
  broken: { agents: 1, runtime: process, standby: false, volumes: ["${data}:${data}"] }
`);
  await here.up();
  rmdirSync(data);
  expect((await here.cli(['doctor']).ended).stdout).not.toMatch(/pool (default|broken)/);
  await here.run('--detach', '--no-workspace', '--pool', 'broken', '--', 'true').ended;
  await expect.poll(async () => (await here.api.status()).pools[1]?.backoff, { timeout: 10_000 }).not.toBeNull();
  await here.cli(['pause', 'default', '--reason', 'alice']).ended;
  await here.cli(['drain', 'default']).ended;
  const { stdout } = await here.cli(['doctor']).ended;
  const words = stdout.replace(/\s+/g, ' ');
  expect(words).toMatch(/warning pool broken: It failed (once|\d+ times in a row) and waits before it tries again: Cannot mount/);
  expect(words).toContain('warning pool default: It is paused by alice. -> Type "onejob resume default --reason alice"');
  expect(words).toContain('warning pool default: It is draining: nothing new starts. -> Type "onejob resume default"');
  const found = JSON.parse((await here.cli(['doctor', '--json']).ended).stdout) as readonly FindingView[];
  expect(found.filter(({ code }) => code === undefined)).toEqual([]);
  const ofPools = found.filter(({ subject }) => subject.startsWith('pool '));
  expect(ofPools.map(({ subject, code }) => `${subject}: ${code}`).sort()).toEqual([
    'pool broken: pool-fails',
    'pool default: pool-draining',
    'pool default: pool-paused',
  ]);
});
