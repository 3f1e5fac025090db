/** Commands of `cloud` that end before a cloud is asked. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { runCli } from '../cli.ts';
import { unlistedWords } from './cloud.ts';

const folder = mkdtempSync(join(tmpdir(), 'onejob-cloud-'));
afterAll(() => rmSync(folder, { recursive: true }));

async function type(config: string, ...args: string[]) {
  const file = join(folder, 'config.yml');
  writeFileSync(file, config);
  const { context, stderr } = testContext(['cloud', ...args, '--config', file], folder);
  return { code: await runCli(context), stderr: stderr() };
}

it.each([['check'], ['list'], ['sweep'], ['console', 'burst']])('%s without clouds is wrong usage', async (...args) => {
  const { code, stderr } = await type('pools: { default: {} }\n', ...args);
  expect([code, stderr]).toEqual([2, expect.stringContaining('The config names no cloud.')]);
});

it.each([['list'], ['sweep']])('%s of nobody knows whom is wrong usage', async (...args) => {
  const clouds = 'clouds: { aws: { type: aws, region: us-west-2, scheduler_role: "arn:aws:iam::123456789012:role/onejob" } }';
  const { code, stderr } = await type(`state_dir: ${join(folder, 'state')}\n${clouds}\n`, ...args);
  expect([code, stderr]).toEqual([2, expect.stringContaining('Cannot tell whose machines are meant')]);
});

it('what could not be listed for one reason is one line, which says how to learn more', () => {
  const reason = '(E_CLOUD_CREDENTIAL)';
  const lines = unlistedWords('burst', [
    `cloud aws: instances in us-west-2 ${reason}`,
    `cloud aws: volumes in us-west-2 ${reason}`,
    'cloud aws: schedules in us-west-2 (no answer)',
    'cloud gcp: Cannot sign in.',
  ]);
  expect(lines).toEqual([
    `could not list cloud aws: instances in us-west-2, volumes in us-west-2 ${reason}`,
    'could not list cloud aws: schedules in us-west-2 (no answer)',
    'could not list cloud gcp: Cannot sign in.',
    '"onejob cloud check burst" may say why',
  ]);
  expect(unlistedWords('burst', [])).toEqual([]);
});
