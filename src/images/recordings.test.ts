/** What is chosen for hosts that exist, from what their tools printed. The image, or why there is none. */
import { globSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { request } from '../../test/kit/images.ts';
import { readRecording } from '../gpu/recording.ts';
import { chooseImage } from './choose.ts';
import { recordedHost } from './request.ts';

const folder = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'gpu');

const hosts: Record<string, string | RegExp> = {
  // No image from before CUDA 11.4 is published any more, and these GPUs or drivers need one.
  'nvidia-smi/xml/r352-grid-k520.xml': /K520.*CUDA 4\.2 to 10\.2/,
  'nvidia-smi/xml/r390-tesla-m10x4.xml': /Driver 390\.94 can run CUDA 9\.1.*470\.42\.01 or newer/,
  'nvidia-smi/xml/r410-rtx2080tix2.xml': /Driver 410\.73 can run CUDA 10\.0/,
  // Its driver is older than the card and does not know its name.
  'nvidia-smi/xml/r418-gtx1660ti.xml': /Graphics Device.*compute capability is unknown/,
  // 450 runs CUDA 11, but the gates of 11.4 to 11.8 let in neither it nor 460.
  'nvidia-smi/xml/r450-quadro-p2200.xml': /11\.8\.0 would still run.*refuses/,
  'nvidia-smi/xml/r460-gtx1080x2.xml': /11\.8\.0 would still run.*refuses/,
  'nvidia-smi/xml/r460-v100s-x8.xml': /11\.8\.0 would still run.*refuses/,
  'nvidia-smi/xml/r510-tesla-p100.xml': '11.6.2-devel-ubuntu20.04',
  'nvidia-smi/xml/r510-a100-40gb-mig.xml': '11.6.2-devel-ubuntu20.04',
  'nvidia-smi/xml/r515-tesla-t4.xml': '11.7.1-devel-ubuntu22.04',
  'nvidia-smi/xml/r525-quadro-p2000.xml': '12.0.1-devel-ubuntu22.04',
  'nvidia-smi/xml/r536-rtx3080-windows-wddm.xml': '12.2.2-devel-ubuntu22.04',
  'nvidia-smi/xml/r570-a100-40gb.xml': '12.8.2-devel-ubuntu24.04',
  'nvidia-smi/xml/r570-rtx3060.xml': '12.8.2-devel-ubuntu24.04',
  'nvidia-smi/xml/r580-h100-x8.xml': '13.0.3-devel-ubuntu24.04',
  'nvidia-smi/xml/r580-gb200-x4-arm64.xml': '13.0.3-devel-ubuntu24.04',
  'nvidia-smi/xml/r580-gb300-x4.xml': '13.0.3-devel-ubuntu24.04',
  'nvidia-smi/xml/r595-l40s.xml': '13.2.1-devel-ubuntu24.04',
  'nvidia-smi/xml/r595-rtx3080.xml': '13.2.1-devel-ubuntu24.04',
  'nvidia-smi/xml/r595-rtx4000-sff-ada.xml': '13.2.1-devel-ubuntu24.04',
  // A card without a driver in the recording, a tool that failed, and those that have no CUDA.
  'nvidia-smi/list/r590-h200.txt': /neither the driver nor its CUDA/,
  'nvidia-smi/list/r540-jetson-orin.txt': /This is a Jetson/,
  'nvidia-smi/errors/driver-not-loaded.txt': /Cannot determine which GPUs/,
  'nvidia-smi/errors/no-devices.txt': /Cannot determine which GPUs/,
  'nvidia-smi/table/r580-gb10-dgx-spark.txt': /Cannot determine which GPUs/,
  'rocm-smi/mi100_rocm602.json': /AMD.*Pin an image/,
  'xpu-smi/discovery.json': /Intel.*Pin an image/,
};

describe('the image for', () => {
  test.each(Object.entries(hosts))('%s', async (path, expected) => {
    const inventory = await readRecording(join(folder, path));
    const { image, problem } = chooseImage(request(inventory, recordedHost(inventory)));
    if (typeof expected === 'string') expect([image, problem]).toEqual([`nvidia/cuda:${expected}`, null]);
    else {
      expect(image).toBeNull();
      expect(problem).toMatch(expected);
    }
  });
});

test('hosts with Grace are Arm without being asked', async () => {
  const inventory = await readRecording(join(folder, 'nvidia-smi/xml/r580-gb200-x4-arm64.xml'));
  expect(recordedHost(inventory)).toMatchObject({ arch: 'arm64', platform: 'sbsa' });
});

test('every recording gives an image or a reason', async () => {
  const files = globSync('**/*.*', { cwd: folder }).filter((path) => !path.endsWith('README.md'));
  expect(files.length).toBeGreaterThan(80);
  for (const path of files) {
    const inventory = await readRecording(join(folder, path));
    const { image, problem } = chooseImage(request(inventory, recordedHost(inventory)));
    expect((image === null) !== (problem === null), path).toBe(true);
    // Nobody may conclude from a recording without a GPU that its host has none.
    if (inventory.devices.length === 0) expect(image, path).toBeNull();
  }
});
