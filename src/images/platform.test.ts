import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { card } from '../../test/kit/images.ts';
import { scratch } from '../../test/support/scratch.ts';
import { archOf, platformOf, readPlatform, recordedHost } from './request.ts';

const r36 = '# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic, EABI: aarch64\n';

test.each([
  ['x86', 'amd64', null, null, null],
  ['a server', 'arm64', null, null, 'sbsa'],
  ['JetPack 6', 'arm64', r36, 'NVIDIA Jetson AGX Orin Developer Kit\0', 'l4t'],
  ['a release that cannot be read', 'arm64', 'odd', null, 'l4t'],
  ['a Jetson by its model alone', 'arm64', null, 'NVIDIA Jetson Orin Nano\0', 'l4t'],
  ['Thor', 'arm64', r36.replace('R36', 'R38'), 'NVIDIA Jetson AGX Thor Developer Kit\0', 'sbsa'],
  ['Thor by its model alone', 'arm64', null, 'NVIDIA Jetson AGX Thor Developer Kit\0', 'sbsa'],
] as const)('the platform of %s', (_, arch, release, model, expected) => {
  expect(platformOf(arch, release, model)).toBe(expected);
});

test('a host is asked by its files, and one without them is a server', async () => {
  using dir = scratch();
  expect(await readPlatform('arm64', dir.path)).toBe('sbsa');
  mkdirSync(join(dir.path, 'etc'));
  writeFileSync(join(dir.path, 'etc', 'nv_tegra_release'), r36);
  expect(await readPlatform('arm64', dir.path)).toBe('l4t');
});

test('architectures have the names of images', () => {
  expect(['x64', 'arm64', 'riscv64'].map(archOf)).toEqual(['amd64', 'arm64', null]);
});

test.each([
  ['NVIDIA GH200 480GB', 'arm64', 'sbsa'],
  ['NVIDIA GB10', 'arm64', 'sbsa'],
  ['NVIDIA T4G', 'arm64', 'sbsa'],
  ['Orin (nvgpu)', 'arm64', 'l4t'],
  ['NVIDIA H100 80GB HBM3', 'amd64', null],
  ['Tesla T4', 'amd64', null],
])('a recording with %s is of %s, %s', (model, arch, platform) => {
  expect(recordedHost({ devices: [card(model, null)], findings: [] })).toMatchObject({ arch, platform });
});

test('a Jetson whose GPU has no UUID is still one', () => {
  const message = 'Orin (nvgpu) has no UUID in this output.';
  const finding = { level: 'error', code: 'no-uuid', subject: 'host', message, hint: null } as const;
  expect(recordedHost({ devices: [], findings: [finding] }).platform).toBe('l4t');
});

test('that nothing said so is said', () => {
  expect(recordedHost({ devices: [], findings: [] })).toMatchObject({ arch: 'amd64', archFrom: expect.stringContaining('--arch') });
});
