import { expect, test } from 'vitest';
import { type Device, type Inventory, inOrder, mergeInventories, noGpus } from './inventory.ts';

const device = (uuid: string, pciId: string | null, parent: string | null = null) => ({ uuid, pciId, parent }) as Device;
const uuids = (devices: readonly Device[]) => devices.map(({ uuid }) => uuid);
const host = (change: Partial<Inventory>): Inventory => ({ ...noGpus, ...change });

test('GPUs by address, each with its instances; who has no GPU comes last', () => {
  const devices = [
    device('lone', '0000:01:00.0', 'gone'),
    device('c', null),
    device('b', '0000:41:00.0'),
    device('b1', '0000:41:00.0', 'b'),
    device('b2', '0000:41:00.0', 'b'),
    device('a', '0000:09:00.0'),
  ];
  expect(uuids(inOrder(devices))).toEqual(['a', 'b', 'b1', 'b2', 'c', 'lone']);
});

test('the driver and the CUDA are of those that have one', () => {
  expect(
    mergeInventories([noGpus, host({ driver: '6.3.6' }), host({ driver: '550.1', cuda: '12.4', cudaFrom: 'tool' })]),
  ).toMatchObject({
    driver: '6.3.6',
    cuda: '12.4',
    cudaFrom: 'tool',
  });
});

test('is complete only if each vendor is; everything that was found is kept', () => {
  const finding = { level: 'error', code: 'tool-hung', subject: 'host', message: 'm', hint: null } as const;
  const merged = mergeInventories([
    host({ devices: [device('b', '0000:41:00.0')] }),
    host({ complete: false, findings: [finding] }),
    host({ devices: [device('a', '0000:09:00.0')] }),
  ]);
  expect(merged).toMatchObject({ complete: false, findings: [finding] });
  expect(uuids(merged.devices)).toEqual(['a', 'b']);
  expect(mergeInventories([])).toEqual(noGpus);
});
