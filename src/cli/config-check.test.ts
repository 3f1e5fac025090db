/** `onejob config check` as a person types it; it needs no daemon. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';

const example = join(import.meta.dirname, '..', '..', 'docs', 'examples', 'eighteen-agents.yml');

async function check(...args: string[]): Promise<{ code: number; said: string }> {
  using dir = scratch();
  const { context, stdout, stderr } = testContext(['config', 'check', ...args], dir.path);
  const code = await runCli(context);
  return { code, said: stdout() + stderr() };
}

test('the example for 18 agents is right on a machine that has none of its secrets', async () => {
  const { code, said } = await check('--no-secrets', example);
  expect(said).not.toMatch(/error/);
  expect(code).toBe(0);
  // 17 in numbers; the pool of the lab has one per device.
  expect(said).toMatch(/eighteen-agents\.yml is right: 5 pools, 17 agents, and one per device in lab/);
  expect(said).toContain('its secrets were not looked for');
});

test('without --no-secrets a secret that is not there is a mistake, and the option is named', async () => {
  const { code, said } = await check(example);
  expect(code).toBe(1);
  expect(said).toMatch(/services\.julia\.token/);
  expect(said).toContain('--no-secrets');
});

test('--no-secrets hides no other mistake, and what has no secrets is said to be right without more words', async () => {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  writeFileSync(file, 'pools:\n  a: { agnets: 2 }\n', { mode: 0o600 });
  const wrong = await check('--no-secrets', file);
  expect(wrong.code).toBe(1);
  expect(wrong.said).toContain('agents');
  writeFileSync(file, 'pools:\n  a: { agents: 2 }\n');
  const right = await check(file);
  expect(right.code).toBe(0);
  expect(right.said).not.toContain('secrets');
});
