import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { readRecorded } from '../nvidia/recorded.ts';
import { amdInventory, looksLikeAmd } from './smi.ts';

const folder = join(import.meta.dirname, '../../../test/fixtures/gpu/rocm-smi');
const recorded = (name: string) => readFileSync(join(folder, name), 'utf8');
const fixture = (name: string) => (name.endsWith('.txt') ? asJson(recorded(name)) : recorded(name));

/** A recording without `--json`, as what the tool prints with it. */
function asJson(text: string): string {
  const cards: Record<string, Record<string, string>> = { system: {} };
  const add = (card: string, key: string, value: string) => {
    cards[card] = { [key.trim()]: value.trim(), ...cards[card] };
  };
  for (const [, index, key = '', value = ''] of text.matchAll(/^GPU\[(\d+)\]\s*:\s*([^:\n]+):[ \t]*(.*)$/gm))
    add(`card${index}`, key, value);
  add('system', 'Driver version', /^Driver version:(.*)$/m.exec(text)?.[1] ?? '');
  return JSON.stringify(cards);
}
const recordings = readdirSync(folder).filter((name) => name !== 'README.md');

describe('recordings of rocm-smi', () => {
  test.each([
    ['mi100_rocm571.json', '6.2.4', 6, 'Arcturus GL-XL [Instinct MI100]', 'amd-0000:1e:00.0', '0000:1e:00.0', 32_752, 6, 'CDNA'],
    [
      'mi100_rocm602.json',
      '6.3.6',
      4,
      'Arcturus GL-XL [Instinct MI100]',
      'GPU-79ccd55167a2124a',
      '0000:83:00.0',
      32_752,
      6,
      'CDNA',
    ],
    ['mi300x-x4.showall.txt', '6.7.0', 4, 'AMD Instinct MI300X OAM', 'GPU-8d1457e2c20f59d2', '0000:26:00.0', null, null, 'CDNA 3'],
    ['pai-cards.json', '5.3.0-26-generic', 2, 'Vega 20', 'GPU-7c96610172fc1a8d', '0000:03:00.0', 16_368, 310, 'Vega'],
    ['rx6700xt_rocm430.json', '6.3.6', 1, 'AMD GPU 0x73df', 'amd-0000:07:00.0', '0000:07:00.0', 12_272, 1547, null],
    [
      'rx6700xt_rocm571.json',
      '6.3.6',
      1,
      'Navi 22 [Radeon RX 6700/6700 XT / 6800M]',
      'amd-0000:07:00.0',
      '0000:07:00.0',
      12_272,
      1492,
      'RDNA 2',
    ],
    [
      'rx6700xt_rocm612.json',
      '6.3.6',
      1,
      'Navi 22 [Radeon RX 6700/6700 XT / 6800M]',
      'amd-0000:07:00.0',
      '0000:07:00.0',
      12_272,
      1499,
      'RDNA 2',
    ],
    ['vega-10-XT.json', '5.9.25', 1, 'AMD GPU 0x6861', 'GPU-02150e7d042a1124', '0000:04:00.0', 16_368, 16, null],
    [
      'vega-20-WKS-GL-XE.json',
      '5.9.17',
      1,
      'Radeon Instinct MI50 32GB',
      'GPU-02f048617326b1ea',
      '0000:63:00.0',
      32_752,
      10,
      'Vega',
    ],
  ] as const)('%s', (name, driver, count, model, uuid, pciId, memoryMiB, memoryUsedMiB, architecture) => {
    const text = fixture(name);
    expect(looksLikeAmd(text)).toBe(true);
    const { devices, ...host } = amdInventory([text]);
    expect(host).toEqual({ complete: true, driver, cuda: null, cudaFrom: null, findings: [] });
    expect(devices).toHaveLength(count);
    expect(devices[0]).toMatchObject({ kind: 'gpu', vendor: 'amd', model, uuid, pciId, memoryMiB, memoryUsedMiB, architecture });
  });

  test('every recording is in the table', () => {
    expect(recordings).toHaveLength(9);
  });

  test('cards are in the order of their addresses, whatever order the tool prints', () => {
    const cards = (name: string) => amdInventory([fixture(name)]).devices.map(({ index, pciId }) => `${index} ${pciId}`);
    expect(cards('pai-cards.json')).toEqual(['1 0000:03:00.0', '2 0000:06:00.0']);
    expect(cards('mi300x-x4.showall.txt')).toEqual(['0 0000:26:00.0', '1 0000:46:00.0', '2 0000:65:00.0', '3 0000:85:00.0']);
  });

  test('a process without a GPU uses no card; a process that is not listed is unknown', () => {
    expect(amdInventory([fixture('mi100_rocm571.json')]).devices.map(({ processes }) => processes)).toEqual(Array(6).fill([]));
    expect(amdInventory([fixture('mi100_rocm602.json')]).devices[0]?.processes).toBeNull();
  });

  test.each([
    ['two drivers', [fixture('mi100_rocm602.json'), fixture('vega-10-XT.json')], 'the drivers 6.3.6, 5.9.25'],
    [
      'one number, two places',
      [fixture('mi100_rocm602.json'), fixture('rx6700xt_rocm612.json')],
      'card 0 of rocm-smi is at 0000:83:00.0, 0000:07:00.0',
    ],
    [
      'one place, two cards',
      [fixture('mi100_rocm602.json'), fixture('mi100_rocm602.json').replace('0x79ccd55167a2124a', '0x1234567890abcdef')],
      'two different cards at 0000:83:00.0',
    ],
  ])('recordings of different hosts are not one host: %s', (_, texts, message) => {
    const host = amdInventory(texts);
    expect(host).toMatchObject({ complete: false, devices: [], findings: [{ level: 'error', code: 'recordings-differ' }] });
    expect(host.findings[0]?.message).toContain(message);
  });

  test('the same recording twice is one host', () => {
    const text = fixture('mi100_rocm602.json');
    expect(amdInventory([text, text])).toEqual(amdInventory([text]));
  });
});

/** As amd-smi of ROCm 6.1 to 7 prints it: keys from ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py. */
const list = JSON.stringify([
  { gpu: 0, bdf: '0000:26:00.0', uuid: '22ff74a1-0000-1000-808d-1457e2c20f59', kfd_id: 28851, node_id: 2, partition_id: 0 },
  { gpu: 1, bdf: '0000:46:00.0', uuid: 'd2ff74a1-0000-1000-80b4-fa34630e85d4', kfd_id: 21544, node_id: 3, partition_id: 0 },
]);
const card = (gpu: number, serial: string) => ({
  gpu,
  asic: {
    market_name: 'AMD Instinct MI300X',
    vendor_id: '0x1002',
    device_id: '0x74a1',
    asic_serial: serial,
    target_graphics_version: 'gfx942',
  },
  driver: { name: 'amdgpu', version: 'Linuxversion6.14.0-24-generic(buildd@lcy02-amd64-010)(x86_64-linux-gnu-gcc-13)' },
  ras: { ecc_block_state: { UMC: 'ENABLED', SDMA: 'ENABLED' } },
  vram: { type: 'HBM', vendor: 'HYNIX', size: { value: 196592, unit: 'MB' } },
});
const fixed = JSON.stringify({ gpu_data: [card(0, '0x8D1457E2C20F59D2'), card(1, '0xB4FA34630E85D42A')] });
const metric = (uncorrected: number) =>
  JSON.stringify({
    gpu_data: [0, 1].map((gpu) => ({
      gpu,
      mem_usage: { total_vram: { value: 196592, unit: 'MB' }, used_vram: { value: 285, unit: 'MB' } },
      ecc: { total_correctable_count: 3, total_uncorrectable_count: gpu * uncorrected },
    })),
  });

describe('amd-smi', () => {
  test('what its commands say each is put together', () => {
    const host = amdInventory([`WARNING: [amdsmi] something else\n${list}`, fixed, metric(0)]);
    expect(host).toMatchObject({ complete: true, driver: '6.14.0-24-generic', findings: [] });
    expect(host.devices).toHaveLength(2);
    expect(host.devices[1]).toMatchObject({
      uuid: 'GPU-b4fa34630e85d42a',
      index: 1,
      pciId: '0000:46:00.0',
      model: 'AMD Instinct MI300X',
      architecture: 'CDNA 3',
      memoryMiB: 196_592,
      memoryUsedMiB: 285,
      ecc: { current: true, pending: true },
      health: { state: 'ok', uncorrectedErrors: 0 },
    });
  });

  test('a card is the same one for rocm-smi and amd-smi', () => {
    const one = amdInventory([fixture('mi300x-x4.showall.txt')]).devices[0];
    expect(amdInventory([list, fixed]).devices[0]).toMatchObject({ uuid: one?.uuid, pciId: one?.pciId });
  });

  test('uncorrected errors make a card fail, and only that card', () => {
    const { devices } = amdInventory([list, fixed, metric(2)]);
    expect(devices.map(({ health }) => health.state)).toEqual(['ok', 'failed']);
    expect(devices[1]?.health.reasons[0]).toContain('2 uncorrected');
  });

  test('partitions of one card have one id, and are identified by address', () => {
    const parts = JSON.stringify({ gpu_data: [card(0, '0x8D1457E2C20F59D2'), card(1, '0x8D1457E2C20F59D2')] });
    const host = amdInventory([list, parts]);
    expect(host.devices.map(({ uuid }) => uuid)).toEqual(['amd-0000:26:00.0', 'amd-0000:46:00.0']);
    expect(host.findings).toMatchObject([{ level: 'warning', code: 'same-id' }]);
  });

  test('static alone has ids and no addresses; metric alone has neither and invents none', () => {
    expect(amdInventory([fixed]).devices).toMatchObject([{ uuid: 'GPU-8d1457e2c20f59d2', pciId: null }, { pciId: null }]);
    const host = amdInventory([metric(0)]);
    expect(host.devices).toEqual([]);
    expect(host).toMatchObject({ complete: false, findings: [{ code: 'no-identity' }] });
  });

  test('what two tools say is joined by address, or else by id', () => {
    const both = amdInventory([fixture('mi300x-x4.showall.txt'), fixed]);
    expect(both.findings).toEqual([]);
    expect(both.devices).toHaveLength(4);
    expect(both.devices.map(({ memoryMiB }) => memoryMiB)).toEqual([196_592, 196_592, null, null]);
  });

  test('what its tools print without --json is known for theirs, and not read', () => {
    const text = 'GPU: 0\n    BDF: 0000:01:00.0\n    ASIC:\n        MARKET_NAME: AMD Instinct MI210\n';
    for (const one of [text, recorded('mi300x-x4.showall.txt')]) {
      expect(looksLikeAmd(one)).toBe(true);
      const host = amdInventory([one]);
      expect(host).toMatchObject({ complete: false, devices: [], findings: [{ level: 'error', code: 'not-understood' }] });
      expect(host.findings[0]?.hint).toContain('--json');
    }
  });
});

test.each([
  ['WARNING: No JSON data to report\n'],
  ['=== ROCm System Management Interface ===\nWARNING: No AMD GPUs specified\n=== End of ROCm SMI Log ===\n'],
  ['No AMD GPUs specified\n'],
])('a tool that sees no card says so: %j', (text) => {
  expect(looksLikeAmd(text)).toBe(true);
  const { devices, findings } = amdInventory([text]);
  expect(devices).toEqual([]);
  expect(findings).toMatchObject([
    { code: 'no-devices', message: 'The AMD tool sees no card.', hint: expect.stringContaining('lspci') },
  ]);
  expect(readRecorded(text)).toMatchObject({ pieces: [] });
});

describe('what is not an answer', () => {
  test.each([
    ['ERROR:root:Driver not initialized (amdgpu not found in modules)', 'driver-not-loaded'],
    ['amdsmi.amdsmi_exception.AmdSmiLibraryException: AMDSMI_STATUS_NO_PERM', 'insufficient-permissions'],
    [fixture('mi100_rocm602.json').slice(0, 3000), 'output-torn'],
    [fixed.slice(0, 300), 'output-torn'],
    ['========= ROCm System Management Interface =========\nGPU  Temp\n0    40c\n', 'not-understood'],
    ['', 'not-understood'],
  ])('%j', (text, code) => {
    const host = amdInventory([text]);
    expect(host).toMatchObject({ complete: false, devices: [] });
    expect(host.findings.map((finding) => finding.code)).toEqual([code]);
    for (const { message, hint } of host.findings) expect(`${message} ${hint}`).toMatch(/\. .+/);
  });

  test('an empty list is whole', () => {
    expect(amdInventory(['[]'])).toMatchObject({ complete: true, devices: [], findings: [{ code: 'no-devices' }] });
  });

  test('invalid values are unknown', () => {
    const odd = {
      'Unique ID': '0x0',
      'PCI Bus': '0000:07:00.0',
      'VRAM Total Memory (B)': 'N/A',
      'VRAM Total Used Memory (B)': '-5',
      'Card series': 'N/A',
    };
    expect(amdInventory([JSON.stringify({ card0: odd, card1: null, card2: 'x' })]).devices).toMatchObject([
      { uuid: 'amd-0000:07:00.0', memoryMiB: null, memoryUsedMiB: null, model: 'AMD GPU', health: { state: 'unknown' } },
    ]);
  });
});
