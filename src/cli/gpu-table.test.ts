import { describe, expect, test } from 'vitest';
import { gpu as card } from '../../test/support/devices.ts';
import type { DeviceView } from '../contract/schema.ts';
import type { Device, GpuProcess, Inventory } from '../gpu/inventory.ts';
import type { ProcessOwner } from '../gpu/processes.ts';
import { gpuLines } from './gpu-table.ts';
import { createColors, widthOf } from './text.ts';

function gpu(n: number, change: Partial<Device> = {}): Device {
  return card(n, {
    uuid: `GPU-3291dfa4-fcc4-0110-615b-c894a0d7c68${n}`,
    pciId: `0000:${n}1:00.0`,
    model: 'NVIDIA A100-SXM4-80GB',
    memoryMiB: 81_920,
    memoryUsedMiB: 640,
    health: { state: 'ok', reasons: [], uncorrectedErrors: 0, recoveryAction: 'None' },
    ...change,
  });
}

const instance = (n: number, of: Device): Device =>
  gpu(n, {
    kind: 'mig',
    uuid: `MIG-7a358787-30bf-5c22-94ec-99b0d1d15b5${n}`,
    parent: of.uuid,
    mig: { profile: '1g.10gb', gpuInstance: n, computeInstance: 0 },
    memoryMiB: 9728,
    memoryUsedMiB: 12,
  });

const process = (pid: number, change: Partial<GpuProcess> = {}): GpuProcess => ({
  pid,
  name: '/usr/bin/python3',
  type: 'C',
  memoryMiB: 9421,
  gpuInstance: null,
  computeInstance: null,
  ...change,
});

function page(
  change: Partial<Inventory>,
  width: number | null,
  owners: readonly ProcessOwner[] = [],
  leases: readonly DeviceView[] = [],
): string[] {
  const inventory: Inventory = {
    complete: true,
    driver: '580.95.05',
    cuda: '13.0',
    cudaFrom: 'tool',
    devices: [],
    findings: [],
    ...change,
  };
  const known = new Map(owners.map((owner) => [owner.pid, owner]));
  const views = new Map(leases.map((view) => [view.uuid, view]));
  return gpuLines(inventory, 'No GPUs here.', { colors: createColors(false), width, owners: known, leases: views });
}

test('a wide terminal has a line per GPU', () => {
  expect(page({ devices: [gpu(0), gpu(1, { processes: [process(42)] })] }, 160)).toEqual([
    'driver 580.95.05, CUDA up to 13.0',
    'UUID                                      #  PCI           MODEL                  MEMORY        CC   MIG  STATE  HELD BY',
    'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c680  0  0000:01:00.0  NVIDIA A100-SXM4-80GB  0.6/80.0 GiB  8.0  off  ok     -',
    'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c681  1  0000:11:00.0  NVIDIA A100-SXM4-80GB  0.6/80.0 GiB  8.0  off  ok     python3 (pid 42), 9.2 GiB',
  ]);
});

test('otherwise the holder of a GPU is below it', () => {
  expect(page({ devices: [gpu(0), gpu(1, { processes: [process(42)] })] }, 130).slice(2)).toEqual([
    'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c680  0  0000:01:00.0  NVIDIA A100-SXM4-80GB  0.6/80.0 GiB  8.0  off  ok',
    'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c681  1  0000:11:00.0  NVIDIA A100-SXM4-80GB  0.6/80.0 GiB  8.0  off  ok',
    '    held by python3 (pid 42), 9.2 GiB',
  ]);
});

test('80 columns: instances are below their GPU, and no UUID is cut', () => {
  const parent = gpu(0, { mig: { mode: 'enabled', pending: null } });
  const lines = page({ devices: [parent, instance(0, parent), instance(1, parent)] }, 80);
  expect(lines.slice(1)).toEqual([
    'UUID                                        #  STATE  MEMORY',
    'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c680    0  ok     0.6/80.0 GiB',
    '    NVIDIA A100-SXM4-80GB, 0000:01:00.0, compute 8.0, MIG on',
    '  MIG-7a358787-30bf-5c22-94ec-99b0d1d15b50  0  ok     1g.10gb 0.0/9.5 GiB',
    '  MIG-7a358787-30bf-5c22-94ec-99b0d1d15b51  1  ok     1g.10gb 0.0/9.5 GiB',
  ]);
});

test.each([40, 60, 80, 100, 120, 140, 200])('nothing is wider than a terminal of %i columns', (width) => {
  const parent = gpu(0, { mig: { mode: 'enabled', pending: 'disabled' }, processes: [process(1), process(2), process(3)] });
  const failed = gpu(1, {
    health: { state: 'failed', reasons: ['it fell off the bus '.repeat(12)], uncorrectedErrors: 1, recoveryAction: null },
  });
  for (const line of page({ devices: [parent, instance(0, parent), failed], complete: false }, width))
    expect(widthOf(line)).toBeLessThanOrEqual(width);
});

test('omits empty columns, and marks what is unknown', () => {
  const amd = gpu(0, {
    vendor: 'amd',
    uuid: 'amd-0000:07:00.0',
    model: 'AMD GPU 0x73df',
    mig: null,
    computeCapability: null,
    memoryMiB: null,
    memoryUsedMiB: null,
    processes: null,
  });
  expect(page({ devices: [amd], cuda: null, cudaFrom: null, driver: '6.3.6' }, 160)).toEqual([
    'driver 6.3.6',
    'UUID              #  PCI           MODEL           MEMORY  STATE  HELD BY',
    'amd-0000:07:00.0  0  0000:01:00.0  AMD GPU 0x73df  ?       ok     ?',
  ]);
});

test('holders are named with their owners, what computes first, at most two', () => {
  const owner: ProcessOwner = {
    pid: 42,
    state: 'S',
    uid: 1000,
    user: 'alice',
    command: 'python3',
    startedAt: new Date().setHours(14, 2, 0, 0),
    containers: [],
    agents: [],
    mark: null,
  };
  const held = [process(7, { name: 'Xorg', type: 'G', memoryMiB: 12 }), process(42), process(43), process(44)];
  const lines = page({ devices: [gpu(0, { processes: held })] }, null, [owner]);
  expect(lines[2]).toMatch(/ alice: python3 \(pid 42\), 9\.2 GiB, since 14:02; python3 \(pid 43\), 9\.2 GiB; 2 more$/);
});

test('findings are below, with what to do', () => {
  const bad = gpu(0, { health: { state: 'failed', reasons: ['GPU is lost'], uncorrectedErrors: null, recoveryAction: 'Reboot' } });
  const finding = { level: 'error', code: 'tool-hung', subject: 'host', message: 'It hung.', hint: 'Reboot.' } as const;
  expect(page({ devices: [bad], findings: [finding], complete: false }, 160)).toEqual([
    'driver 580.95.05, CUDA up to 13.0',
    '! Not all GPUs could be read: the state of GPUs that are not listed is unknown.',
    expect.stringMatching(/^UUID/),
    expect.stringMatching(/failed +-$/),
    '',
    `! ${bad.uuid}: GPU is lost`,
    '! It hung.',
    '  -> Reboot.',
  ]);
});

test('a host without GPUs is one sentence; one that cannot be seen is not called empty', () => {
  expect(page({ driver: null, cuda: null }, 80)).toEqual(['No GPUs here.']);
  const finding = { level: 'error', code: 'driver-not-loaded', subject: 'host', message: 'No driver.', hint: null } as const;
  expect(page({ driver: null, cuda: null, complete: false, findings: [finding] }, 80).join('\n')).not.toContain('No GPUs here.');
});

test('CUDA that follows from the driver says so', () => {
  expect(page({ cudaFrom: 'driver' }, 80)[0]).toBe('driver 580.95.05, CUDA up to 13.0 (by the driver)');
});

test('what a tool prints moves no cursor', () => {
  expect(page({ devices: [gpu(0, { model: 'A\u001b[2J\nB' })] }, null).join('\n')).not.toContain('\u001b');
});

describe('where a daemon leads', () => {
  const view = (device: Device, change: Partial<DeviceView> = {}): DeviceView => ({
    uuid: device.uuid,
    kind: device.kind,
    model: device.model,
    pciId: device.pciId,
    index: device.index,
    memoryMiB: device.memoryMiB,
    profile: null,
    parent: device.parent,
    state: 'leased',
    slot: 'lab/1',
    agents: [],
    why: null,
    since: null,
    until: null,
    retryAt: null,
    hint: null,
    use: null,
    ...change,
  });
  const card = gpu(0, { mig: { mode: 'enabled', pending: null } });
  const devices = [card, instance(1, card), gpu(1), gpu(2)];
  const fan = { state: 'quarantined', why: `${gpu(2).uuid} is in quarantine: fan`, hint: 'Type "onejob gpus clear".' } as const;
  const leases = [
    view(card, { slot: null, why: 'it is in MIG mode, so jobs get its instances' }),
    view(instance(1, card)),
    view(gpu(1), { state: 'free', slot: null }),
    view(gpu(2), { ...fan, slot: 'lab/2' }),
    view(gpu(3), { state: 'missing', slot: 'lab/3', why: `${gpu(3).uuid} absent since boot`, hint: null }),
  ];

  test('each device says what jobs use it for', () => {
    const lines = page({ devices }, null, [], leases);
    expect(lines[1]).toMatch(/ STATE +FOR JOBS +HELD BY$/);
    expect(lines[2]).toMatch(/ ok +- +-$/);
    expect(lines[3]).toMatch(/^ {2}MIG-.* ok +lab\/1 +-$/);
    expect(lines[4]).toMatch(/ ok +free +-$/);
    expect(lines[5]).toMatch(/ ok +lab\/2, quarantined +-$/);
    expect(lines.slice(6)).toEqual([
      '',
      `! ${gpu(2).uuid} is in quarantine: fan`,
      '  -> Type "onejob gpus clear".',
      `! ${gpu(3).uuid} absent since boot`,
    ]);
  });

  test('what to do about a card in quarantine is said once', () => {
    const hint = 'Type "nvidia-smi --gpu-reset -i X" as root.';
    const about = { level: 'error', code: 'recovery-action', subject: gpu(2).uuid } as const;
    const findings = [
      { ...about, message: `${gpu(2).uuid} needs "GPU Reset".`, hint: 'Reset it (nvidia-smi --gpu-reset -i X).' },
      { ...about, code: 'power-cable', message: `${gpu(2).uuid} has no power.`, hint: 'Plug it in.' },
    ];
    const lines = page({ devices: [gpu(2)], findings }, null, [], [view(gpu(2), { ...fan, hint })]);
    expect(lines.slice(4)).toEqual([
      `! ${gpu(2).uuid} is in quarantine: fan`,
      `  -> ${hint}`,
      `! ${gpu(2).uuid} has no power.`,
      '  -> Plug it in.',
    ]);
  });

  test('also at a narrow terminal', () => {
    const lines = page({ devices }, 70, [], leases);
    for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(70);
    expect(lines.filter((line) => line.includes('for jobs'))).toEqual([
      '    for jobs: -',
      '    for jobs: lab/1',
      '    for jobs: free',
      '    for jobs: lab/2, quarantined',
    ]);
  });

  test('a problem of a card and its instances is shown once', () => {
    const why = `${card.uuid} is reserved by alice`;
    const both = [view(card, { state: 'reserved', why }), view(instance(1, card), { state: 'reserved', why })];
    expect(page({ devices: [card, instance(1, card)] }, null, [], both).filter((line) => line.startsWith('!'))).toEqual([
      `! ${why}`,
    ]);
  });
});
