/** `onejob config check` as a person types it; it needs no daemon. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';
import type { CliContext } from './context.ts';

const example = join(import.meta.dirname, '..', '..', 'docs', 'examples', 'eighteen-agents.yml');

async function check(...args: string[]): Promise<{ code: number; said: string }> {
  return await checkOn(null, ...args);
}

/** On a host that cannot have the network `internet`, for that reason. */
async function checkOn(obstacle: string | null, ...args: string[]): Promise<{ code: number; said: string }> {
  return await checkWith({ internetObstacle: async () => obstacle }, ...args);
}

async function checkWith(host: Partial<CliContext['host']>, ...args: string[]): Promise<{ code: number; said: string }> {
  using dir = scratch();
  const nothing = async () => null;
  const more = {
    host: { startDaemon: async () => 1, internetObstacle: nothing, containersObstacle: nothing, ociObstacle: nothing, ...host },
  };
  const { context, stdout, stderr } = testContext(['config', 'check', ...args], dir.path, more);
  const code = await runCli(context);
  return { code, said: stdout() + stderr() };
}

test('the example for 18 agents is valid on a machine without its secrets', async () => {
  const { code, said } = await check('--no-secrets', example);
  expect(said).not.toMatch(/error/);
  expect(code).toBe(0);
  // 17 in numbers; the pool of the lab has one per device.
  expect(said).toMatch(/eighteen-agents\.yml is valid: 5 pools, 17 agents, and one per device in lab/);
  expect(said).toContain('its secrets were not checked');
});

test('reports a missing secret without --no-secrets, and names the option', async () => {
  const { code, said } = await check(example);
  expect(code).toBe(1);
  expect(said).toMatch(/services\.julia\.token/);
  expect(said).toContain('--no-secrets');
});

test('--no-secrets hides no other problem, and is not mentioned for a config without secrets', async () => {
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

test('reports a host that untrusted jobs could reach, unless there are no such jobs or the owner accepts it', async () => {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  const pool = (keys: string): void => {
    const service = `{ type: buildkite, token: { file: ${dir.path}/token } }`;
    writeFileSync(file, `services: { bk: ${service} }\npools: { p: { service: bk${keys} } }\n`, { mode: 0o600 });
  };
  writeFileSync(join(dir.path, 'token'), 'bkct_0123456789', { mode: 0o600 });
  const why = 'only root may change the firewall of this host';
  pool('');
  const { code, said } = await checkOn(why, file);
  expect(code).toBe(1);
  expect(said).toContain(
    `config.yml: pools.p.trust.network: is "internet", which untrusted jobs cannot use on this host: ${why}; write`,
  );
  expect((await check(file)).code).toBe(0);
  expect((await checkOn(why, '--no-secrets', file)).code).toBe(0);
  for (const trust of ['{ forks: refuse, others: refuse }', '{ network: lab }']) {
    pool(`, trust: ${trust}`);
    expect((await checkOn(why, file)).code).toBe(0);
  }
});

test('config show --changed leaves defaults out, as text and as JSON', async () => {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  writeFileSync(file, 'keep_jobs: 3d\npools:\n  a: { agents: 2, runtime: process }\n', { mode: 0o600 });
  const show = async (...args: string[]) => {
    const { context, stdout } = testContext(['config', 'show', ...args, file], dir.path);
    expect(await runCli(context)).toBe(0);
    return stdout();
  };
  const keys = (text: string) =>
    text
      .trim()
      .split('\n')
      .map((line) => line.split(':')[0]);
  const changed = ['config', 'state_dir', 'socket', 'keep_jobs', 'pools.a.agents', 'pools.a.runtime'];
  expect(keys(await show('--changed'))).toEqual(changed);
  expect(JSON.parse(await show('--changed', '--json')).map(({ key }: { key: string }) => key)).toEqual(changed);
  expect(keys(await show()).length).toBeGreaterThan(changed.length);
});

test('reports a host whose agents can have no engine for containers, if a pool wants one', async () => {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  writeFileSync(file, 'pools: { p: { containers: true, image: "debian:12" }, q: { image: "debian:12" } }\n');
  const why = 'the kernel lets only root make user namespaces (sysctl kernel.unprivileged_userns_clone is 0)';
  const { code, said } = await checkWith({ containersObstacle: async () => why }, file);
  expect(code).toBe(1);
  expect(said).toContain(`pools.p.containers: is true, but agents of this host can have no engine: ${why}`);
  expect((await checkWith({ containersObstacle: async () => why }, '--no-secrets', file)).code).toBe(0);
  expect((await check(file)).code).toBe(0);
  writeFileSync(file, 'pools: { q: { image: "debian:12" } }\n');
  expect((await checkWith({ containersObstacle: async () => why }, file)).code).toBe(0);
  const noCards = async (cards: boolean) => (cards ? 'there is no CDI specification' : null);
  const pool = (name: string, devices: string) => `${name}: { containers: true, image: "debian:12", devices: ${devices} }`;
  writeFileSync(file, `pools: { p: { containers: true }, ${pool('q', '{ count: 1, vendor: amd }')}, ${pool('r', '1')} }\n`);
  const { said: unlisted } = await checkWith({ containersObstacle: noCards }, file);
  expect(unlisted.match(/pools.*no engine: there is no CDI specification/g)).toEqual([
    expect.stringContaining('pools.r.containers'),
  ]);
});
