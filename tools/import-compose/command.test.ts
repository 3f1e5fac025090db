/** `onejob import compose` as a person and a program meet it, and `onejob plan --inventory` with what came out. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { loadComposeImport } from '../../src/cli/compose-import.ts';
import { runCli } from '../../src/cli.ts';
import { testContext } from '../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { composeOf, writeFleet } from './fleets.ts';

const fixture = join(import.meta.dirname, 'fixture');
let home: Scratch;
beforeEach(() => {
  home = scratch();
});
afterEach(() => home[Symbol.dispose]());

async function onejob(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const { context, stdout, stderr } = testContext(args, home.path);
  const code = await runCli(context);
  return { code, stdout: stdout(), stderr: stderr() };
}

describe('import compose', () => {
  test('prints every config, and on standard error the grouping and what was left out', async () => {
    const { code, stdout, stderr } = await onejob('import', 'compose', fixture);
    expect(code).toBe(0);
    expect(stdout.match(/^--- # .*$/gm)).toHaveLength(5);
    expect(stderr).toContain('onejob: host quark: 18 agents (what begins with quark): quark.0, quark.1 … quark.17\n');
    expect(stderr).toMatch(/^fleet\/metal\.1: has no Compose file/m);
    expect(stderr).toMatch(/^image\/Dockerfile:11: COPY hooks/m);
    expect(stderr).toMatch(/^fleet\/\S+\.yml:\d+: note: .* \(and \d+ more\)$/m);
  });

  test('one host alone is printed as it goes into a file', async () => {
    writeFleet(home.path, { 'fleet/a.1/compose.yml': composeOf('a.1') });
    const { stdout } = await onejob('import', 'compose', 'fleet');
    expect(stdout).toMatch(/^# a: one agent/);
    expect(stdout).not.toContain('---');
  });

  test('--out writes a file for each host, and overwrites files only with --force', async () => {
    const first = await onejob('import', 'compose', fixture, '--out', 'hosts');
    expect(first.code).toBe(0);
    expect(first.stdout.trimEnd().split('\n')).toEqual(
      readdirSync(join(home.path, 'hosts'))
        .toSorted()
        .map((name) => join(home.path, 'hosts', name)),
    );
    writeFileSync(join(home.path, 'hosts', 'quark.yml'), 'mine\n');
    writeFleet(home.path, { 'hosts/bench1.yml': '' });
    const again = await onejob('import', 'compose', fixture, '--out', 'hosts', '--host', 'new=bench1');
    expect(again.code).toBe(1);
    expect(again.stderr).toMatch(/existing files: .*quark\.yml/);
    expect(again.stderr).toContain('--force');
    expect(existsSync(join(home.path, 'hosts', 'new.yml'))).toBe(false);
    expect(readFileSync(join(home.path, 'hosts', 'quark.yml'), 'utf8')).toBe('mine\n');
    expect((await onejob('import', 'compose', fixture, '--out', 'hosts', '--force')).code).toBe(0);
    expect(readFileSync(join(home.path, 'hosts', 'quark.yml'), 'utf8')).toContain('agents: 14');
  });

  test('--json is one object with all of it', async () => {
    const { code, stdout, stderr } = await onejob('import', 'compose', fixture, '--json');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const found = JSON.parse(stdout);
    expect(
      found.hosts.map((host: { name: string; agents: unknown[]; written: unknown }) => [
        host.name,
        host.agents.length,
        host.written,
      ]),
    ).toEqual([
      ['arc.example.org', 1, null],
      ['bench1', 1, null],
      ['quark', 18, null],
      ['radeon1.example.org', 1, null],
      ['radeon2.example.org', 1, null],
    ]);
    expect(found.remarks).toContainEqual(expect.objectContaining({ file: 'image/Dockerfile', line: 11, level: 'warning' }));
  });

  test.each([
    [{}, /there is no Compose file/],
    [{ 'fleet/x/compose.yml': 'services: [' }, /one Compose file and no agent/],
    [{ 'fleet/x/compose.yml': 'services: { web: { image: nginx } }' }, /one Compose file and no agent/],
  ])('1 when there is nothing to carry over', async (files, message) => {
    writeFleet(home.path, { 'fleet/': '', ...files });
    const { code, stdout, stderr } = await onejob('import', 'compose', 'fleet');
    expect(code).toBe(1);
    expect(stdout.trim()).toBe('');
    expect(stderr).toMatch(message);
  });

  test('1 when a Compose file cannot be read, with what the others contain', async () => {
    const broken = { 'fleet/b.1/compose.yml': 'services: [', 'fleet/c.1/compose.yml/': '' };
    writeFleet(home.path, { 'fleet/a.1/compose.yml': composeOf('a.1'), ...broken });
    const { code, stdout, stderr } = await onejob('import', 'compose', 'fleet');
    expect(code).toBe(1);
    expect(stdout).toMatch(/^# a: one agent/);
    expect(stderr).toContain('could not read b.1/compose.yml, c.1/compose.yml: agents may be missing');
    const { unread } = JSON.parse((await onejob('import', 'compose', 'fleet', '--json')).stdout);
    expect(unread).toEqual(['b.1/compose.yml', 'c.1/compose.yml']);
  });

  test('an onejob without the tool says where it is', async () => {
    await expect(loadComposeImport(home.path)).rejects.toMatchObject({
      code: 'E_IMPORT',
      message: expect.stringContaining(join(home.path, 'tools', 'import-compose')),
      hint: expect.stringContaining('release archive'),
    });
  });

  test('a release has it built, in the same folder', async () => {
    writeFleet(home.path, { 'tools/import-compose/dist/index.js': 'export const importComposeFolder = () => "built";' });
    const tool = await loadComposeImport(home.path);
    expect(String(tool.importComposeFolder)).toContain('built');
  });

  test('exits with 1 for a missing folder, with 2 for an invalid rule', async () => {
    expect(await onejob('import', 'compose', 'nowhere')).toMatchObject({ code: 1, stderr: expect.stringContaining('nowhere') });
    expect(await onejob('import', 'compose', fixture, '--host', 'lab')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('NAME=GLOB'),
    });
  });
});

describe('plan --inventory', () => {
  const recording = join(fixture, 'recordings', 'quark.txt');

  test('shows the agents of a host with their devices, on any machine', async () => {
    await onejob('import', 'compose', fixture, '--out', 'hosts');
    const { code, stdout, stderr } = await onejob('plan', '--inventory', recording, '--config', 'hosts/quark.yml');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const lines = stdout.trimEnd().split('\n');
    expect(lines).toHaveLength(1 + 18 + 1);
    expect(lines[1]).toMatch(/^upload\/1 +quark\.0 +upload +-$/);
    expect(lines[2]).toMatch(/^a100\/1 +quark\.1 +cuda +MIG-6513270e-\S+ +NVIDIA A100-PCIE-40GB$/);
    const json = await onejob('plan', '--inventory', recording, '--config', 'hosts/quark.yml', '--json');
    const { agents } = JSON.parse(json.stdout);
    expect(agents[16]).toMatchObject({
      slot: 'multigpu/1',
      agent: 'quark.16',
      devices: [{ model: 'Quadro RTX 5000' }, {}],
      lacks: false,
    });
  });

  test('1 and a reason when the host does not have what the config names', async () => {
    await onejob('import', 'compose', fixture, '--out', 'hosts');
    const short = readFileSync(recording, 'utf8')
      .split('\n')
      .filter((line) => !line.includes('MIG-6513270e'))
      .join('\n');
    writeFileSync(join(home.path, 'short.txt'), short);
    const { code, stdout, stderr } = await onejob('plan', '--inventory', 'short.txt', '--config', 'hosts/quark.yml');
    expect(code).toBe(1);
    expect(stdout).toMatch(/^a100\/1 +quark\.1 +cuda +none/m);
    expect(stdout).toMatch(/^a100\/2 +quark\.2 +cuda +MIG-d23f0824/m);
    expect(stderr).toMatch(/pool a100: .*13/);
    expect(stderr).toMatch(/pool a100: It names MIG-6513270e-\S+, which is missing\./);
    expect(stderr).not.toContain('per-device');
    const absent = await onejob('plan', '--inventory', 'absent.txt', '--config', 'hosts/quark.yml');
    expect(absent).toMatchObject({ code: 1, stderr: expect.stringContaining('absent.txt": the file or folder does not exist.') });
    expect(absent.stderr).not.toContain('ENOENT');
  });

  test('a pool that leases for each job shows what it could have', async () => {
    writeFileSync(join(home.path, 'c.yml'), 'pools: { p: { agents: 1, standby: false, devices: { model: RTX 5000 } } }\n');
    const { code, stdout } = await onejob('plan', '--inventory', recording, '--config', 'c.yml');
    expect(code).toBe(0);
    expect(stdout).toMatch(/^p\/1 .*Quadro RTX 5000$/m);
  });
});
