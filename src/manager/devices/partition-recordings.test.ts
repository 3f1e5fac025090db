import { globSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { oneDevice } from '../../../test/support/devices.ts';
import { fits } from '../../config/conditions.ts';
import type { DeviceRequest } from '../../config/config.ts';
import { readRecording } from '../../gpu/recording.ts';
import { type PartitionInput, partition } from './partition.ts';

const fixtures = join(import.meta.dirname, '../../../test/fixtures/gpu');

async function slots(file: string, devices: DeviceRequest): Promise<readonly string[]> {
  const { devices: there } = await readRecording(join(fixtures, file));
  const nothing = { leases: [], inUse: new Set<string>(), barred: new Set<string>(), occupied: new Set<string>(), demands: [] };
  const pools = [{ name: 'p', agents: 'per-device', standby: true, devices }] as const;
  const endOf = () => ({ until: null, job: null, isSure: false });
  const input: PartitionInput = { ...nothing, pools, devices: there, near: () => 0, endOf, lineOf: () => [], now: 0 };
  return partition(input).slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid));
}

test.each([
  ['nvidia-smi/xml/r580-h100-x8.xml', 8, 0],
  ['nvidia-smi/xml/r460-v100s-x8.xml', 8, 0],
  ['nvidia-smi/xml/r390-tesla-m10x4.xml', 4, 0],
  ['nvidia-smi/xml/r460-gtx1080x2.xml', 2, 0],
  ['nvidia-smi/xml/r580-gb200-x4-arm64.xml', 4, 0],
  ['nvidia-smi/list/r590-h100-mig.txt', 0, 4],
  ['nvidia-smi/xml/r595-l40s.xml', 1, 0],
  ['nvidia-smi/errors/driver-not-loaded.txt', 0, 0],
])('an agent per device on %s: %i whole cards, %i MIG instances', async (file, whole, instances) => {
  expect(await slots(file, oneDevice)).toHaveLength(whole);
  expect(await slots(file, { ...oneDevice, mig: true })).toHaveLength(instances);
});

test.each(globSync('{nvidia-smi/{xml,xml-mock,list},rocm-smi,xpu-smi}/*.{xml,txt,json}', { cwd: fixtures }))(
  'on %s each device that fits is dealt once, and no card together with an instance of it',
  async (file) => {
    const { devices } = await readRecording(join(fixtures, file));
    const whole = await slots(file, oneDevice);
    expect(whole.toSorted()).toEqual(
      devices
        .filter((device) => fits(device, oneDevice))
        .map(({ uuid }) => uuid)
        .toSorted(),
    );
    const parents = new Map(devices.map(({ uuid, parent }) => [uuid, parent]));
    for (const uuid of await slots(file, { ...oneDevice, mig: true })) expect(whole).not.toContain(parents.get(uuid));
  },
);
