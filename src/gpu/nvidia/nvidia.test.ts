import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import type { Inventory } from '../inventory.ts';
import { type Reply, recorded } from '../run.ts';
import { nvidiaInventory } from './nvidia.ts';
import type { NvidiaParts } from './sources.ts';

const answer = (output: string, code: number | null = 0): Reply => ({ ...recorded(output, ['-q', '-x']), code });
const codes = ({ findings }: Inventory) => findings.map((each) => each.code);
const h100 = nvidia('xml/r580-h100-x8.xml');
const h100Pci = ['53', '64', '75', '86', '97', 'a8', 'b9', 'ca'].map((bus) => `0000:${bus}:00.0`);
const uuidOf = (n: number) => `GPU-0000000${n}-0000-0000-0000-00000000000${n}`;

describe('MIG', () => {
  const xml = nvidia('xml/r510-a100-40gb-mig.xml');
  const gpu = 'GPU-27b94a00-ed54-5c24-b1fd-1054085de32a';
  const list = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: ${gpu})
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaaaaaa-0000-5000-8000-000000000000)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbbbbbb-0000-5000-8000-000000000000)
`;

  test('an instance has its UUID and profile from -L, its memory and ids from the XML, the rest from its GPU', () => {
    const found = nvidiaInventory({ xml: answer(xml), list: answer(list) });
    expect(found).toMatchObject({ complete: true, driver: '510.47.03', cuda: '11.6', cudaFrom: 'tool', findings: [] });
    expect(found.devices.map((device) => device.uuid)).toEqual([
      gpu,
      'MIG-aaaaaaaa-0000-5000-8000-000000000000',
      'MIG-bbbbbbbb-0000-5000-8000-000000000000',
    ]);
    expect(found.devices[0]).toMatchObject({
      kind: 'gpu',
      parent: null,
      mig: { mode: 'enabled', pending: null },
      memoryMiB: 40960,
    });
    expect(found.devices[2]).toMatchObject({
      kind: 'mig',
      parent: gpu,
      index: 1,
      minor: 0,
      pciId: '0000:00:04.0',
      model: 'NVIDIA A100-SXM4-40GB',
      memoryMiB: 19968,
      memoryUsedMiB: 19,
      computeCapability: '8.0',
      architecture: 'Ampere',
      mig: { profile: '3g.20gb', gpuInstance: 2, computeInstance: 0 },
      health: { state: 'ok', uncorrectedErrors: 0 },
      processes: [],
    });
  });

  test('a compute process without an instance may be on each of them', () => {
    const line = (pid: number, ids: string, type: string) =>
      `<process_info>${ids}<pid>${pid}</pid><type>${type}</type><process_name>python</process_name><used_memory>5 MiB</used_memory></process_info>`;
    const on = (gi: number) => `<gpu_instance_id>${gi}</gpu_instance_id><compute_instance_id>0</compute_instance_id>`;
    const none = '<gpu_instance_id>N/A</gpu_instance_id><compute_instance_id>N/A</compute_instance_id>';
    const listed = [line(41, on(1), 'C'), line(42, none, 'C'), line(43, on(2), 'C'), line(7, none, 'G')].join('\n');
    const busy = xml.replace(/<processes>[\s\S]*?<\/processes>/, `<processes>\n${listed}\n</processes>`);
    const { devices } = nvidiaInventory({ xml: answer(busy), list: answer(list) });
    const pids = devices.map(({ processes }) => processes?.map(({ pid }) => pid));
    expect(pids).toEqual([[41, 42, 43, 7], expect.arrayContaining([42]), expect.arrayContaining([42])]);
    expect(pids[2]).toEqual([42, 43]);
  });

  test('without -L the instances are counted, not made up, and the set is not complete', () => {
    const found = nvidiaInventory({ xml: answer(xml) });
    expect(found.devices.map((device) => device.uuid)).toEqual([gpu]);
    expect(found.complete).toBe(false);
    expect(found.findings).toEqual([
      expect.objectContaining({
        level: 'error',
        code: 'mig-uuids-unknown',
        subject: gpu,
        message: expect.stringContaining('2 MIG instances'),
      }),
    ]);
  });

  test('a driver that says the UUID in the XML needs no -L', () => {
    let n = 0;
    const named = xml.replace(/<\/index>/g, () => `</index><uuid>MIG-cccccccc-0000-5000-8000-00000000000${n++}</uuid>`);
    expect(nvidiaInventory({ xml: answer(named) })).toMatchObject({ complete: true, devices: { length: 3 } });
  });

  test('a layout that changed between the two calls is said', () => {
    const more = `${list}  MIG 1g.5gb     Device  2: (UUID: MIG-dddddddd-0000-5000-8000-000000000000)\n`;
    const found = nvidiaInventory({ xml: answer(xml), list: answer(more) });
    expect(found.complete).toBe(false);
    expect(codes(found)).toEqual(['mig-changed']);
    expect(found.devices.at(-1)?.health.state).toBe('unknown');
  });

  test('on, but without an instance: nothing to lease, and why', () => {
    const empty = xml.replace(/<mig_devices>[\s\S]*<\/mig_devices>/, '<mig_devices>\nNone\n</mig_devices>');
    const found = nvidiaInventory({ xml: answer(empty) });
    expect(found).toMatchObject({ complete: true, devices: { length: 1 } });
    expect(codes(found)).toEqual(['mig-empty']);
  });

  test('a change that waits for a reset is said', () => {
    const text = nvidia('xml/r570-a100-40gb.xml').replace('<pending_mig>Disabled', '<pending_mig>Enabled');
    const found = nvidiaInventory({ xml: answer(text) });
    expect(found.devices[0]?.mig).toEqual({ mode: 'disabled', pending: 'enabled' });
    expect(codes(found)).toEqual(['mig-pending']);
  });

  test('an instance larger than its GPU has no size that is known', () => {
    const found = nvidiaInventory({ xml: answer(xml.replace('19968 MiB', '50000 MiB')), list: answer(list) });
    expect(found.devices[1]?.memoryMiB).toBeNull();
    expect(codes(found)).toEqual(['odd-value']);
  });
});

describe('a host without a GPU', () => {
  test.each<[string, NvidiaParts]>([
    ['nothing was asked', {}],
    ['there is no tool', { xml: answer('', 127) }],
    ['the tool finds none', { xml: answer(nvidia('errors/no-devices.txt'), 6) }],
    ['the driver is a left-over', { xml: answer(nvidia('errors/driver-not-loaded.txt'), 9) }],
  ])('%s', (_, parts) =>
    expect(nvidiaInventory({ ...parts, pciIds: [] })).toMatchObject({ complete: true, devices: [], findings: [] }),
  );

  test('the bus is unknown: not certain', () =>
    expect(nvidiaInventory({ xml: answer(nvidia('errors/no-devices.txt'), 6) })).toMatchObject({ complete: false, devices: [] }));

  test('a driver that says 0 while the bus has one is not believed', () => {
    const none = '<nvidia_smi_log><driver_version>550.54.14</driver_version><attached_gpus>0</attached_gpus></nvidia_smi_log>';
    expect(nvidiaInventory({ xml: answer(none), pciIds: ['0000:01:00.0'] })).toMatchObject({
      complete: false,
      driver: '550.54.14',
    });
    expect(nvidiaInventory({ xml: answer(none), pciIds: [] })).toMatchObject({ complete: true });
  });
});

describe('nothing is made up', () => {
  const blocks = (...gpus: readonly string[]) =>
    `<nvidia_smi_log><driver_version>550.54.14</driver_version><attached_gpus>${gpus.length}</attached_gpus>${gpus.join('')}</nvidia_smi_log>`;
  const gpu = (pci: string, uuid: string, more = '') =>
    `<gpu id="${pci}"><product_name>NVIDIA L4</product_name><uuid>${uuid}</uuid><performance_state>P0</performance_state>${more}</gpu>`;

  test('two cards with one UUID: the first, and a finding', () => {
    const found = nvidiaInventory({ xml: answer(blocks(gpu('00000000:01:00.0', uuidOf(1)), gpu('00000000:02:00.0', uuidOf(1)))) });
    expect(found).toMatchObject({ complete: false, devices: [{ uuid: uuidOf(1), pciId: '0000:01:00.0' }] });
    expect(codes(found)).toContain('duplicate-uuid');
  });

  test('two UUIDs at one place', () => {
    const found = nvidiaInventory({ xml: answer(blocks(gpu('00000000:01:00.0', uuidOf(1)), gpu('00000000:01:00.0', uuidOf(2)))) });
    expect(found.complete).toBe(false);
    expect(codes(found)).toEqual(['duplicate-pci']);
  });

  test('two instances with one UUID', () => {
    const mig = 'MIG-aaaaaaaa-0000-5000-8000-000000000000';
    const list = `GPU 0: NVIDIA A30 (UUID: ${uuidOf(1)})\n MIG 1g.6gb Device 0: (UUID: ${mig})\n MIG 1g.6gb Device 1: (UUID: ${mig})\n`;
    const found = nvidiaInventory({ list: answer(list) });
    expect(found).toMatchObject({ complete: false, devices: [{ uuid: uuidOf(1) }, { uuid: mig, index: 0 }] });
    expect(codes(found)).toEqual(['duplicate-uuid']);
  });

  test('a card without a UUID is left out and said', () => {
    const found = nvidiaInventory({ xml: answer(blocks(gpu('00000000:01:00.0', 'N/A'), gpu('00000000:02:00.0', uuidOf(2)))) });
    expect(found).toMatchObject({ complete: false, devices: [{ uuid: uuidOf(2) }] });
    expect(found.findings).toEqual([expect.objectContaining({ code: 'no-uuid', subject: '0000:01:00.0' })]);
  });

  test.each([
    ['GPU is lost', 'gpu-lost', /is lost: it has fallen off the bus/],
    ['GPU requires reset', 'reset-required', /cannot be used before it is reset/],
    ['Unknown Error', 'gpu-unknown', /does not answer: its UUID reads "Unknown Error"/],
  ])('a card whose values all read "%s" is named by its address, with what to do', (value, code, message) => {
    const lost = gpu('00000000:01:00.0', uuidOf(1)).replaceAll(/>[^<>\n]+<\//g, `>${value}</`);
    const found = nvidiaInventory({ xml: answer(blocks(lost, gpu('00000000:02:00.0', uuidOf(2)))) });
    expect(found).toMatchObject({ complete: false, devices: [{ uuid: uuidOf(2) }] });
    const about = { code, subject: '0000:01:00.0', message: expect.stringMatching(message), hint: expect.stringMatching(/./) };
    expect(found.findings).toEqual([expect.objectContaining(about)]);
  });

  test('a card without a name is listed, and no name is made up', () => {
    const found = nvidiaInventory({ xml: answer(blocks(gpu('00000000:01:00.0', uuidOf(1)).replace('NVIDIA L4', ''))) });
    expect(found.devices).toMatchObject([{ model: 'unknown', computeCapability: null, architecture: null }]);
    expect(codes(found)).toEqual(['no-model']);
  });

  test.each([
    ['memory', '<fb_memory_usage><total>-5 MiB</total></fb_memory_usage>', { memoryMiB: null }],
    [
      'more used than there is',
      '<fb_memory_usage><total>10 MiB</total><used>20 MiB</used></fb_memory_usage>',
      { memoryMiB: 10, memoryUsedMiB: null },
    ],
    ['minor number', '<minor_number>99999999</minor_number>', { minor: null }],
    ['a process without a number', '<processes><process_info><pid>x</pid></process_info></processes>', { processes: null }],
  ])('impossible numbers are said and unknown: %s', (_, more, expected) => {
    const found = nvidiaInventory({ xml: answer(blocks(gpu('00000000:01:00.0', uuidOf(1), more))) });
    expect(found.devices).toMatchObject([expected]);
    expect(codes(found)).toEqual(['odd-value']);
  });

  test('a masked UUID is shown, and that nothing can be granted by it', () => {
    const found = nvidiaInventory({ xml: answer(nvidia('xml/r440-gt730.xml')) });
    expect(found.devices).toMatchObject([{ uuid: 'GPU-XXX9-b02c-1c4ca42113c8', memoryMiB: 2001 }]);
    expect(codes(found)).toEqual(['odd-uuid']);
  });
});

describe('order and place', () => {
  test('by PCI address as a number, whatever the output does', () => {
    const gpu = (pci: string, n: number) =>
      `<gpu id="${pci}"><product_name>NVIDIA L4</product_name><uuid>${uuidOf(n)}</uuid><performance_state>P0</performance_state></gpu>`;
    const text = `<nvidia_smi_log>${gpu('03F8CFDD:00:00.0', 1)}${gpu('00000010:01:00.0', 2)}${gpu('00000009:01:00.0', 3)}</nvidia_smi_log>`;
    const found = nvidiaInventory({ xml: answer(text) });
    expect(found.devices.map((device) => device.pciId)).toEqual(['0009:01:00.0', '0010:01:00.0', '3f8cfdd:00:00.0']);
    expect(found.devices.map((device) => device.index)).toEqual([2, 1, 0]);
  });

  test('a number that is not the place in the list is taken from -L', () => {
    const list = h100Pci.map((_, n) => `GPU ${7 - n}: NVIDIA H100 80GB HBM3 (UUID: ${uuidOf(n)})`).join('\n');
    const torn = h100.slice(0, -30);
    const found = nvidiaInventory({ xml: answer(torn), list: answer(list) });
    expect(found.devices.map((device) => device.index)).toEqual([7, 6, 5, 4, 3, 2, 1, 0]);
    expect(found.complete).toBe(false);
  });
});

describe('versions', () => {
  test('a tool that finds no libcuda says "Not Found"; the driver knows better', () => {
    const text = h100.replace('<cuda_version>13.0', '<cuda_version>Not Found');
    const found = nvidiaInventory({ xml: answer(text) });
    expect(found).toMatchObject({ cuda: '13.0', cudaFrom: 'driver', complete: true });
    expect(codes(found)).toEqual(['libcuda-missing']);
  });

  test.each([
    ['615.10', '13.4'],
    ['999.1', '13.4'],
    ['586.1', '13.0'],
    ['384.66', '9.0'],
    ['375.20', null],
  ])('driver %s: CUDA %s by its branch', (driver, cuda) => {
    const text = `<nvidia_smi_log><driver_version>${driver}</driver_version><attached_gpus>0</attached_gpus></nvidia_smi_log>`;
    expect(nvidiaInventory({ xml: answer(text) })).toMatchObject({ driver, cuda, cudaFrom: cuda === null ? null : 'driver' });
  });

  test('a mismatch names the module that is loaded', () => {
    const found = nvidiaInventory({
      xml: answer(nvidia('errors/version-mismatch-550.txt'), 18),
      procVersion: 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 10:10:01 UTC 2024\n',
    });
    expect(found).toMatchObject({ driver: '550.120', cuda: '12.4', cudaFrom: 'driver' });
    expect(found.findings[0]?.message).toMatch(/550\.144.*550\.120/);
  });
});

test('a Jetson has a UUID without GPU-, and a word about its images', () => {
  const found = nvidiaInventory({ list: answer('GPU 0: Orin (nvgpu) (UUID: 54d0709b-558d-5a59-9c65-0c5fc14a21a4)\n') });
  expect(found.devices).toMatchObject([
    { uuid: '54d0709b-558d-5a59-9c65-0c5fc14a21a4', computeCapability: '8.7', health: { state: 'unknown' } },
  ]);
  expect(codes(found)).toEqual(['jetson']);
});

test('unified memory has no size, and nothing is wrong with that', () => {
  const xml = nvidia('xml/r595-l40s.xml')
    .replace(/<product_name>[^<]*/, '<product_name>NVIDIA GB10')
    .replace(/<product_architecture>[^<]*/, '<product_architecture>Blackwell')
    .replace(/<fb_memory_usage>.*?<\/fb_memory_usage>/s, '<fb_memory_usage><total>N/A</total><used>N/A</used></fb_memory_usage>');
  expect(nvidiaInventory({ xml: answer(xml) })).toMatchObject({
    complete: true,
    devices: [
      { model: 'NVIDIA GB10', computeCapability: '12.1', architecture: 'Blackwell', memoryMiB: null, health: { state: 'ok' } },
    ],
    findings: [],
  });
});

test('two outputs of different hosts, or times, are not a complete set', () => {
  const found = nvidiaInventory({ xml: answer(h100), list: answer(nvidia('list/h100-mig-7x1g.10gb.txt')) });
  expect(found.complete).toBe(false);
  expect(codes(found)).toContain('sources-differ');
});

test('names cannot move a cursor', () => {
  const found = nvidiaInventory({ list: answer(`GPU 0: NVIDIA \u001b[2J L4 (UUID: ${uuidOf(1)})`) });
  expect(found.devices[0]?.model).toBe('NVIDIA  [2J L4');
});
