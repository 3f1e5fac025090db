import { existsSync, mkdirSync, mkdtempSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import type { AgentPackageConfig } from '../../config/config.ts';
import { mountedProgram } from './mounted-program.ts';

const dir = mkdtempSync(join(tmpdir(), 'onejob-program-'));
afterEach(() => rmSync(dir, { recursive: true, force: true }));
const never = new AbortController().signal;

function program(version: string, wall = 0) {
  const config: AgentPackageConfig = { version, from: null, sha256: null };
  const folder = join(dir, `buildkite-agent-${version}`);
  const kept: string[] = [];
  const binary = {
    async ready() {
      mkdirSync(folder, { recursive: true });
      writeFileSync(join(folder, 'buildkite-agent'), version);
      return join(folder, 'buildkite-agent');
    },
    async prune(isUsed: (path: string) => boolean) {
      for (const one of ['1.0.0', '2.0.0']) if (isUsed(join(dir, `buildkite-agent-${one}`, 'buildkite-agent'))) kept.push(one);
    },
  };
  return { kept, folder, ...{ program: mountedProgram({ config, pinned: '9.9.9', binary, dir, wall: () => wall }) } };
}

test('the folder is known before the program is, and leads to it afterwards', async () => {
  const { program: one, folder } = program('1.0.0');
  const named = one.folder ?? '';
  expect(existsSync(named)).toBe(false);
  await one.ready(never);
  await one.ready(never);
  expect(readlinkSync(named)).toBe(folder);
  expect(program('1.0.0').program.folder).toBe(named);
  expect(program('2.0.0').program.folder).not.toBe(named);
});

test('programs of other services are kept, those that nobody asked for in a month are not', async () => {
  const first = program('1.0.0', 0);
  await first.program.ready(never);
  const soon = program('2.0.0', 86_400_000);
  await soon.program.ready(never);
  expect(soon.kept).toEqual(['1.0.0', '2.0.0']);
  const late = program('2.0.0', 32 * 86_400_000);
  await late.program.ready(never);
  expect(late.kept).toEqual(['2.0.0']);
  expect(existsSync(first.program.folder ?? '')).toBe(false);
});

test('an image that brings its own needs none', async () => {
  const binary = { ready: async () => null, prune: async () => {} };
  const config = { version: null, from: 'image', sha256: null };
  const one = mountedProgram({ config, pinned: '9.9.9', binary, dir, wall: () => 0 });
  expect(one.folder).toBeNull();
  await one.ready(never);
});
