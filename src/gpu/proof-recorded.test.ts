/** The proof over real recordings: what a healthy host shows is clean, what a sick one shows is not. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { noKernelLook } from '../../test/kit/gpu.ts';
import type { Inventory } from './inventory.ts';
import { readRecorded, recordedHost } from './nvidia/recorded.ts';
import { baselineOf, judgeProof, type ProofVerdict } from './proof.ts';
import { readRecording } from './recording.ts';

const fixtures = join(import.meta.dirname, '../../test/fixtures/gpu');

/** Verdicts on the devices of a host that shows `now`, and showed `before`. */
function judgeAll(before: Inventory, now: Inventory, after: number): ProofVerdict[] {
  const at = { boot: 'b', driver: before.driver, mark: noKernelLook.mark, before: null };
  return before.devices.map((device) =>
    judgeProof({
      baseline: baselineOf(device, at),
      inventory: now,
      owners: new Map(),
      ours: { owner: 'o', alive: new Set(), ended: new Set() },
      kernel: noKernelLook,
      boot: 'b',
      shared: false,
      missingNodes: [],
      now: after,
      since: 0,
      wall: 0,
    }),
  );
}
const read = (...path: string[]) => readRecording(join(fixtures, ...path));

test.each([
  ['nvidia-smi/xml/r580-h100-x8.xml', 8, 'clean'],
  ['nvidia-smi/xml/r580-gb200-x4-arm64.xml', 4, 'clean'],
  ['nvidia-smi/xml/r510-tesla-p100.xml', 1, 'clean'],
  // A desktop and nothing else.
  ['nvidia-smi/xml/r536-rtx3080-windows-wddm.xml', 1, 'clean'],
  // A desktop, and on the same card a person's python; a miner.
  ['nvidia-smi/xml/r595-rtx4000-sff-ada.xml', 1, 'occupied'],
  ['nvidia-smi/xml/r460-gtx1080x2.xml', 2, 'occupied'],
  ['nvidia-smi/xml/r460-v100s-x8.xml', 8, 'occupied'],
])('%s: %d devices, %s', async (path, count, kind) => {
  const host = await read(path);
  expect(host.devices).toHaveLength(count);
  expect(judgeAll(host, host, 100_000).map((verdict) => verdict.kind)).toEqual(Array.from({ length: count }, () => kind));
});

test('what no program can use is not clean because it was so before', async () => {
  const xml = readFileSync(join(fixtures, 'nvidia-smi/xml/r580-h100-x8.xml'), 'utf8');
  const licence =
    '<vgpu_software_licensed_product><license_status>Unlicensed (Restricted)</license_status></vgpu_software_licensed_product>';
  const vgpu = '<gpu_virtualization_mode><virtualization_mode>VGPU</virtualization_mode></gpu_virtualization_mode>';
  const bad = [
    xml.replaceAll('<compute_mode>Default<', '<compute_mode>Prohibited<'),
    xml.replaceAll(/<gpu_virtualization_mode>.*?<\/gpu_virtualization_mode>/gs, `${vgpu}${licence}`),
  ].map((text) => recordedHost([{ name: 'gpus.xml', pieces: readRecorded(text).pieces }]));
  for (const host of bad) {
    expect(host.devices.map(({ health }) => health.state)).toEqual(Array.from({ length: 8 }, () => 'failed'));
    expect(judgeAll(host, host, 100_000).map(({ kind }) => kind)).toEqual(Array.from({ length: 8 }, () => 'dirty'));
  }
});

test('one GPU is lost, the other has memory that cannot be repaired: each verdict says what is wrong', async () => {
  const before = await read('nvidia-smi/xml-mock/r580-gb200-healthy.xml');
  const sick = await read('nvidia-smi/xml-mock/r580-gb200-lost.xml');
  expect(judgeAll(before, before, 100_000).map(({ kind }) => kind)).toEqual(['clean', 'clean']);
  expect(judgeAll(before, sick, 100_000)).toMatchObject([
    { kind: 'dirty', code: 'row-remap-failed', remedy: 'replace' },
    { kind: 'dirty', code: 'gpu-lost', remedy: 'reboot' },
  ]);
});

test('no recording makes it fail, and none that says nothing is clean', async () => {
  const folders = readdirSync(join(fixtures, 'nvidia-smi'), { recursive: true, withFileTypes: true });
  const hosts: Inventory[] = [];
  for (const entry of folders) if (entry.isFile()) hosts.push(await readRecording(join(entry.parentPath, entry.name)));
  const nothing: Inventory = { complete: false, driver: null, cuda: null, cudaFrom: null, devices: [], findings: [] };
  expect(hosts.length).toBeGreaterThan(80);
  for (const host of hosts) {
    for (const other of [host, nothing, hosts[0] ?? nothing]) {
      for (const { kind } of judgeAll(host, other, 100_000)) if (other === nothing) expect(kind).toBe('unknown');
    }
  }
});
