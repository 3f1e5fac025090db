import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { xpuDevice, xpuHealth } from '../../../test/support/xpu-smi.ts';
import { intelInventory, looksLikeIntel } from './xpu-smi.ts';

const folder = join(import.meta.dirname, '../../../test/fixtures/gpu/xpu-smi');
const fixture = (name: string) => readFileSync(join(folder, name), 'utf8');

describe('recordings of xpu-smi', () => {
  test('one card, known by its address', () => {
    expect(looksLikeIntel(fixture('discovery.json'))).toBe(true);
    const host = intelInventory([fixture('discovery.json')]);
    expect(host).toMatchObject({ complete: true, cuda: null, findings: [] });
    expect(host.devices).toHaveLength(1);
    expect(host.devices[0]).toMatchObject({
      vendor: 'intel',
      uuid: 'intel-0000:4d:00.0',
      index: 0,
      pciId: '0000:4d:00.0',
      model: 'Intel(R) Graphics [0x020a]',
      health: { state: 'unknown' },
      processes: null,
    });
  });

  test('what a card says of itself: memory, driver, error correction', () => {
    const host = intelInventory([fixture('discovery.json'), xpuDevice]);
    expect(host.driver).toBe('16929133');
    expect(host.devices[0]).toMatchObject({ memoryMiB: 32_768, memoryUsedMiB: null, ecc: { current: true, pending: true } });
  });

  test('health is joined by number', () => {
    const host = intelInventory([fixture('discovery.json'), xpuHealth]);
    expect(host.devices).toHaveLength(1);
    expect(host.devices[0]?.health).toEqual({ state: 'ok', reasons: [], uncorrectedErrors: null, recoveryAction: null });
  });

  test('cards without an address are counted, not invented', () => {
    const device_list = [0, 1].map((device_id) => ({ device_id, device_name: 'Intel(R) Graphics [0x56c0]' }));
    const host = intelInventory([JSON.stringify({ device_list })]);
    expect(host).toMatchObject({ complete: false, devices: [], findings: [{ level: 'warning', code: 'no-identity' }] });
    expect(host.findings[0]?.message).toContain('2 Intel cards');
  });

  test('health alone makes no card', () => {
    expect(intelInventory([xpuHealth])).toMatchObject({ complete: false, devices: [] });
  });
});

/** As xpu-smi 1.2 prints it: keys from intel/xpumanager, cli/src/lib_core_stub.cpp. */
const list = JSON.stringify({
  device_list: ['0000:4d:00.0', '0000:1a:00.0'].map((pci_bdf_address, device_id) => ({
    device_id,
    device_name: 'Intel(R) Data Center GPU Flex 170',
    device_type: 'GPU',
    pci_bdf_address,
    uuid: '00000000-0000-0000-0000-56c000008086',
  })),
});
const details = JSON.stringify({
  device_id: 1,
  device_name: 'Intel(R) Data Center GPU Flex 170',
  driver_version: '1.3.29735',
  memory_ecc_state: 'disabled',
  memory_physical_size_byte: '14260633600',
  memory_free_size_byte: '14230224896',
  pci_bdf_address: '0000:1a:00.0',
});
const health = (status: string) =>
  JSON.stringify({
    device_list: [
      {
        device_id: 0,
        core_temperature: { status: 'Ok', description: 'All temperature sensors are healthy.' },
        memory: { status, description: 'A memory channel is not well.' },
        xe_link_port: { status: 'Unknown', description: 'The device has no Xe Link.' },
      },
    ],
  });
const processes = JSON.stringify({
  device_util_by_proc_list: [
    { device_id: 0, mem_size: 5726404, process_id: 768707, process_name: 'python', shared_mem_size: 0 },
    { device_id: 0, mem_size: 1507, process_id: 99, process_name: 'xpu-smi', shared_mem_size: 0 },
    { device_id: 1, mem_size: 1507, process_id: 99, process_name: 'xpu-smi', shared_mem_size: 0 },
  ],
});

describe('several outputs', () => {
  test('a whole host, in the order of its addresses, though all cards print one UUID', () => {
    const host = intelInventory([list, details, health('Ok'), processes]);
    expect(host).toMatchObject({ complete: true, driver: '1.3.29735', findings: [] });
    expect(host.devices.map(({ uuid }) => uuid)).toEqual(['intel-0000:1a:00.0', 'intel-0000:4d:00.0']);
    expect(host.devices[0]).toMatchObject({
      memoryMiB: 13_600,
      memoryUsedMiB: 29,
      architecture: 'Xe-HPG',
      ecc: { current: false, pending: false },
      processes: [],
    });
    expect(host.devices[1]).toMatchObject({
      health: { state: 'ok' },
      processes: [{ pid: 768_707, name: 'python', memoryMiB: 5461 }],
    });
  });

  test('a critical part fails its card, a warning is only said', () => {
    expect(intelInventory([list, health('Critical')]).devices[1]?.health).toMatchObject({
      state: 'failed',
      reasons: ['memory: A memory channel is not well.'],
    });
    const warned = intelInventory([list, health('Warning')]);
    expect(warned.devices[1]?.health.state).toBe('ok');
    expect(warned.findings).toMatchObject([{ level: 'warning', code: 'health-warning', subject: 'intel-0000:4d:00.0' }]);
  });

  test('recordings of different hosts are not one host', () => {
    expect(intelInventory([list, fixture('discovery.json').replace('4d:00.0', '5d:00.0')])).toMatchObject({
      complete: false,
      devices: [],
      findings: [{ level: 'error', code: 'recordings-differ' }],
    });
  });

  test('one card alone is not all of them', () => {
    expect(intelInventory([details])).toMatchObject({
      complete: false,
      devices: [{ uuid: 'intel-0000:1a:00.0' }],
      findings: [{ code: 'no-list' }],
    });
  });

  test('what it prints without -j is known for its own, and not read', () => {
    const processes =
      'PID       Command             DeviceID       SHR            MEM\n961       xpumd               0   0   1048576\n';
    const names = ['discovery.txt', 'discovery-device.txt', 'discovery-dump.csv', 'health.txt'];
    for (const text of [processes, ...names.map(fixture)]) {
      expect(looksLikeIntel(text)).toBe(true);
      const host = intelInventory([text]);
      expect(host).toMatchObject({ complete: false, devices: [], findings: [{ level: 'error', code: 'not-understood' }] });
      expect(host.findings[0]?.hint).toContain('discovery -j');
    }
  });
});

describe('what is not an answer', () => {
  test.each([
    [list.slice(0, 200), 'output-torn'],
    ['Error: Fail to connect xpumd', 'not-understood'],
    ['', 'not-understood'],
  ])('%j', (text, code) => {
    expect(intelInventory([text])).toMatchObject({ complete: false, devices: [], findings: [{ level: 'error', code }] });
  });

  test('is said in the words of the tool', () => {
    expect(intelInventory(['Error: Fail to connect xpumd\nTry again.']).findings[0]?.message).toBe(
      'xpu-smi printed something unexpected: "Error: Fail to connect xpumd / Try again.".',
    );
  });

  test('a numbered table of another tool is not accepted', () => {
    expect(looksLikeIntel('+---+------+\n| 0 | Name: x |\n+---+------+\n')).toBe(false);
  });
});
