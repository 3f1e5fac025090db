/** `onejob image choose` as a person types it; it needs no daemon. */
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';
import { builtInTables } from '../gpu/tables.ts';
import { explainLines } from './images.ts';
import { createColors } from './text.ts';

const recordings = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'gpu', 'nvidia-smi');
const v100 = join(recordings, 'xml', 'r460-v100s-x8.xml');
const l40s = join(recordings, 'xml', 'r595-l40s.xml');

interface Said {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

async function choose(args: readonly string[], variables: Record<string, string> = {}): Promise<Said> {
  using dir = scratch();
  const { context, stdout, stderr } = testContext(['image', 'choose', ...args], dir.path);
  const code = await runCli({ ...context, variables });
  return { code, stdout: stdout(), stderr: stderr() };
}

test('prints the image of a recorded host and nothing else', async () => {
  expect(await choose(['--from', l40s])).toEqual({ code: 0, stdout: 'nvidia/cuda:13.2.1-devel-ubuntu24.04\n', stderr: '' });
});

test('uses flavour, distribution and architecture', async () => {
  const said = await choose(['--from', l40s, '--flavour', 'base', '--distribution', 'ubuntu22.04', '--arch', 'arm64']);
  expect(said).toMatchObject({ code: 0, stdout: 'nvidia/cuda:13.2.1-base-ubuntu22.04\n' });
});

test('--explain keeps the image alone on standard output', async () => {
  const { code, stdout, stderr } = await choose(['--from', l40s, '--explain']);
  expect({ code, stdout }).toEqual({ code: 0, stdout: 'nvidia/cuda:13.2.1-devel-ubuntu24.04\n' });
  expect(stderr).toMatch(/^1\. host {10}amd64\n {17}from a guess.*--arch arm64/);
  expect(stderr).toContain('driver 595.91.07 can run CUDA 13.2');
  expect(stderr).toMatch(/NVIDIA L40S, compute 8\.9, Ada: CUDA 11\.8 and newer\n/);
});

test('exits with 1 and the reason when no image fits, with the steps if requested', async () => {
  const plain = await choose(['--from', v100]);
  expect(plain).toMatchObject({ code: 1, stdout: '' });
  expect(plain.stderr).toMatch(/^onejob: Driver 460\.73\.01 can run CUDA 11\.2.*driver 470\.42\.01 or newer/);
  const explained = await choose(['--from', v100, '--explain']);
  expect(explained.code).toBe(1);
  expect(explained.stderr).toMatch(/8 × Tesla V100S-PCIE-32GB, compute 7\.0[\s\S]*\nonejob: Driver/);
});

test('--json is one object, whether one fits or not', async () => {
  const good = JSON.parse((await choose(['--from', l40s, '--json'])).stdout);
  expect(good).toMatchObject({ image: 'nvidia/cuda:13.2.1-devel-ubuntu24.04', problem: null });
  expect(good.steps[0]).toEqual({
    about: 'host',
    known: 'amd64',
    from: expect.any(String),
    rulesOut: expect.any(String),
    verified: true,
  });
  const bad = await choose(['--from', v100, '--json']);
  expect(bad).toMatchObject({ code: 1, stderr: '' });
  expect(JSON.parse(bad.stdout)).toMatchObject({ image: null, problem: expect.stringContaining('470.42.01') });
});

test('a device that the recording does not have is refused with those it has', async () => {
  const { code, stderr } = await choose(['--from', l40s, '--device', 'GPU-nowhere']);
  expect(code).toBe(1);
  expect(stderr).toMatch(/no device GPU-nowhere: this host has GPU-/);
});

test('uses the owner’s tables, and refuses invalid ones by name', async () => {
  using dir = scratch();
  const path = join(dir.path, 'tables.json');
  const older = builtInTables.images.filter((each) => each.cuda !== '13.2');
  writeFileSync(path, JSON.stringify({ ...builtInTables, images: older }));
  expect(await choose(['--from', l40s, '--tables', path])).toMatchObject({ stdout: 'nvidia/cuda:13.1.2-devel-ubuntu24.04\n' });
  writeFileSync(path, '{}');
  const { code, stderr } = await choose(['--from', l40s, '--tables', path]);
  expect(code).toBe(1);
  expect(stderr).toContain(path);
});

test('a missing recording is an error, not a host without a GPU', async () => {
  const { code, stdout, stderr } = await choose(['--from', '/nowhere/at/all']);
  expect(code).not.toBe(0);
  expect(stdout).toBe('');
  expect(stderr).toContain('/nowhere/at/all');
});

test.each([['--flavour', 'cudnn'], ['--arch', 'ppc64le'], ['--nonsense']])('%s %s is wrong usage', async (...args) => {
  expect((await choose(args)).code).toBe(2);
});

test('reads this host without --from', async () => {
  using dir = scratch();
  const tool = join(dir.path, 'nvidia-smi');
  writeFileSync(tool, `#!/bin/sh\ncat '${l40s}'\n`);
  chmodSync(tool, 0o755);
  const { code, stdout, stderr } = await choose(['--arch', 'amd64', '--explain'], { PATH: `${dir.path}:/usr/bin:/bin` });
  expect(stdout, stderr).toBe('nvidia/cuda:13.2.1-devel-ubuntu24.04\n');
  expect(code).toBe(0);
  expect(stderr).toContain('from --arch');
});

test('a recording of a tool that failed is not a host without a GPU', async () => {
  const { code, stdout, stderr } = await choose(['--from', join(recordings, 'errors', 'version-mismatch-550.txt')]);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(/Cannot determine which GPUs this host has/);
});

test('names devices that could not be read, and serves the others', async () => {
  using dir = scratch();
  const whole = readFileSync(join(recordings, 'xml', 'r580-h100-x8.xml'), 'utf8');
  writeFileSync(join(dir.path, 'gpus.xml'), whole.slice(0, whole.lastIndexOf('<gpu id')));
  const { code, stdout, stderr } = await choose(['--from', join(dir.path, 'gpus.xml')]);
  expect({ code, stdout }).toEqual({ code: 0, stdout: 'nvidia/cuda:13.0.3-devel-ubuntu24.04\n' });
  expect(stderr).toContain('not all devices could be read');
});

test('wraps the steps on a narrow terminal', () => {
  const step = { about: 'GPU', known: 'a long sentence about a card', from: 'its tool', rulesOut: 'all else', verified: false };
  expect(explainLines([step], createColors(false), 30)).toEqual([
    '1. GPU  a long sentence about',
    '        a card (no source',
    '        confirms this)',
    '        from its tool',
    '        rules out all else',
  ]);
});
