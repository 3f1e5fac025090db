/** Devices that pools ask for and a host lacks, on made-up and on recorded hosts. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, hostWith } from '../../test/kit/images.ts';
import { oneDevice } from '../../test/support/devices.ts';
import { recordings } from '../../test/support/gpu-recordings.ts';
import type { Device, Inventory } from '../gpu/inventory.ts';
import { readRecording } from '../gpu/recording.ts';
import type { DeviceRequest, PoolConfig } from './config.ts';
import { choiceFindings } from './device-findings.ts';

type Asked = Partial<DeviceRequest> & Partial<Pick<PoolConfig, 'agents' | 'standby'>>;
const config = (pools: Readonly<Record<string, Asked>>) => ({
  pools: Object.entries(pools).map(([name, { agents = 1, standby = true, ...devices }]) => ({
    name,
    agents,
    standby,
    devices: { ...oneDevice, ...devices },
  })),
});
const host = (...devices: Device[]) => hostWith('580.95.05', '13.0', ...devices);
const said = (pools: Readonly<Record<string, Asked>>, inventory: Inventory) =>
  choiceFindings(config(pools), inventory).map(({ level, subject, message }) => `${level} ${subject}: ${message}`);
const hints = (pools: Readonly<Record<string, Asked>>, inventory: Inventory) =>
  choiceFindings(config(pools), inventory).map(({ hint }) => hint);

const a100 = (n: number, more: Partial<Device> = {}) =>
  card('NVIDIA A100-SXM4-40GB', '8.0', {
    uuid: `GPU-a${n}`,
    memoryMiB: 40_960,
    index: n,
    mig: { mode: 'disabled', pending: null },
    ...more,
  });
const t4 = (n: number) => card('Tesla T4', '7.5', { uuid: `GPU-t${n}`, memoryMiB: 15_360 });
const split = (n: number) => a100(n, { mig: { mode: 'enabled', pending: null } });
const slice = (n: number, profile = '1g.5gb') =>
  a100(0, { kind: 'mig', uuid: `MIG-${n}`, parent: 'GPU-a0', mig: { profile, gpuInstance: n, computeInstance: 0 } });

describe('a pool that can have what it asks for', () => {
  test('is not spoken of', () => {
    const there = host(a100(0), a100(1), t4(0));
    const pools = {
      cpu: { count: 0 },
      large: { agents: 2, model: 'A100', memory: '>=40GiB' },
      rest: { agents: 'per-device' as const, model: 'T4' },
      turns: { agents: 9, standby: false },
      none: { agents: 0, model: 'H100' },
    };
    expect(said(pools, there)).toEqual([]);
  });

  test('shares where it says so', () => {
    expect(said({ x: { agents: 4, share: 4 } }, host(t4(0)))).toEqual([]);
    expect(said({ x: { agents: 5, share: 4 } }, host(t4(0)))).toEqual([
      'warning pool x: It asks for devices for 5 agents, 4 agents to each, but gets 4: 1 device of this host fits.',
    ]);
  });
});

describe('pools that ask for more than there is', () => {
  test('are both named, with what each has', () => {
    const pools = { train: { agents: 3 }, test: { agents: 2, model: 'A100' } };
    expect(said(pools, host(a100(0), a100(1), t4(0), t4(1)))).toEqual([
      'error pool test: It asks for devices for 2 agents, but gets none: 2 devices of this host fit, of which pool train has 2.',
    ]);
    expect(hints(pools, host(a100(0), a100(1), t4(0), t4(1)))[0]).toContain('"standby: false"');
    expect(said({ train: { agents: 1 }, pairs: { agents: 2, count: 2 } }, host(t4(0), t4(1), t4(2), t4(3)))).toEqual([
      'warning pool pairs: It asks for devices for 2 agents, 2 each, but gets 1: 4 devices of this host fit, of which pool train has 1.',
    ]);
  });

  test('alone, a pool is told what to write', () => {
    const pools = { x: { agents: 3 } };
    expect(said(pools, host(t4(0)))).toEqual([
      'warning pool x: It asks for devices for 3 agents, but gets 1: 1 device of this host fits.',
    ]);
    expect(hints(pools, host(t4(0)))).toEqual(['Ask for fewer agents, or write "agents: per-device".']);
    expect(said({ x: { count: 2 } }, host(t4(0)))).toEqual([
      'error pool x: Each of its agents needs 2 devices, but 1 of this host fits.',
    ]);
    expect(said({ x: { count: 2, standby: false } }, host(t4(0)))).toHaveLength(1);
  });

  test('one that is to have an agent per device hears when nothing is left for it', () => {
    const pools = { first: { agents: 2 }, rest: { agents: 'per-device' as const } };
    expect(said(pools, host(t4(0), t4(1)))).toEqual([
      'error pool rest: It asks for one agent per device, but gets none: 2 devices of this host fit, of which pool first has 2.',
    ]);
    expect(said(pools, host(t4(0), t4(1), t4(2)))).toEqual([]);
  });
});

describe('a condition', () => {
  test('on the model that two different ones satisfy is a warning that names them', () => {
    const quadro = card('Quadro RTX 5000', '7.5', { uuid: 'GPU-q' });
    const ada = card('NVIDIA RTX 5000 Ada Generation', '8.9', { uuid: 'GPU-ada' });
    const pools = { x: { agents: 'per-device' as const, model: 'RTX 5000' } };
    expect(said(pools, host(quadro, ada))).toEqual([
      'warning pool x: "model: RTX 5000" matches different cards, Quadro RTX 5000 and NVIDIA RTX 5000 Ada Generation, so its agents differ.',
    ]);
    expect(hints(pools, host(quadro, ada))).toEqual(['Give more of the name, such as "model: Quadro RTX 5000".']);
    expect(said({ x: { ...pools.x, compute: '>=8.0' } }, host(quadro, ada))).toEqual([]);
    expect(said({ x: { agents: 'per-device' } }, host(quadro, ada))).toEqual([]);
  });

  test.each<[string, Asked, string]>([
    [
      'memory',
      { model: 'A100', memory: '>=80GiB' },
      'NVIDIA A100-SXM4-40GB (GPU-a0), has 40960 MiB (40 GiB) of memory, but ">=80GiB" is requested.',
    ],
    ['model', { model: 'H100' }, 'NVIDIA A100-SXM4-40GB (GPU-a0), is a NVIDIA A100-SXM4-40GB, but "H100" is requested.'],
    [
      'the one that misses least',
      { model: 'T4', compute: '>=8.0' },
      'Tesla T4 (GPU-t0), has compute capability 7.5, but ">=8.0" is requested.',
    ],
    ['all that is missed', { vendor: 'amd', memory: '>=1TiB' }, '(GPU-a0), is from nvidia, but amd is requested and has 40960 MiB'],
  ])('that nothing satisfies is said with the nearest device: %s', (_, asked, ending) => {
    const [line, ...more] = said({ x: asked }, host(a100(0), t4(0)));
    expect(more).toEqual([]);
    expect(line).toContain('error pool x: No device of this host matches what it asks for; the nearest, ');
    expect(line).toContain(ending);
  });

  test('on UUIDs of devices that are not there names these', () => {
    expect(said({ x: { uuids: ['GPU-gone', 'GPU-lost'] } }, host(t4(0)))).toEqual([
      'error pool x: None of the devices that it names exists on this host: GPU-gone and GPU-lost.',
    ]);
  });

  test('says nothing where the look may not be whole, but for what it saw', () => {
    const seen = { ...host(card('Quadro RTX 5000', null), card('RTX 5000 Ada', null)), complete: false };
    expect(said({ x: { model: 'H100' }, y: { agents: 9 }, z: { model: 'RTX 5000' } }, seen)).toEqual([
      expect.stringContaining('warning pool z: "model: RTX 5000"'),
    ]);
  });
});

describe('MIG', () => {
  test('wanted while no card is in MIG mode: how to get there', () => {
    expect(said({ x: { mig: '1g.5gb' } }, host(a100(0)))).toEqual([
      'error pool x: It asks for MIG instances, but no card of this host is in MIG mode.',
    ]);
    expect(hints({ x: { mig: '1g.5gb' } }, host(a100(0)))[0]).toBe(
      'Type "sudo nvidia-smi -i GPU-a0 -mig 1" while nothing uses it, then create instances: "sudo nvidia-smi mig -i 0 -cgi 1g.5gb -C".',
    );
    expect(hints({ x: { mig: true } }, host(t4(0)))[0]).toContain('leave "mig" out');
  });

  test('on, and no instance made', () => {
    expect(said({ x: { mig: true } }, host(split(0)))).toEqual([
      'error pool x: It asks for MIG instances, but the cards in MIG mode have none.',
    ]);
    expect(hints({ x: { mig: true } }, host(split(0)))[0]).toContain('mig -i 0 -cgi PROFILE -C');
  });

  test('on for all cards, while whole ones are wanted', () => {
    expect(said({ x: {} }, host(split(0), slice(1)))).toEqual([
      'error pool x: It asks for whole cards, but every card of this host is in MIG mode.',
    ]);
    expect(hints({ x: {} }, host(split(0), slice(1)))[0]).toMatch(/Write "mig: true".*nvidia-smi -i GPU-a0 -mig 0/);
    expect(said({ x: {} }, host(split(0), slice(1), t4(0)))).toEqual([]);
  });

  test('of another profile', () => {
    expect(said({ x: { mig: '3g.20gb' } }, host(split(0), slice(1), slice(2)))).toEqual([
      'error pool x: No device of this host matches what it asks for; the nearest, NVIDIA A100-SXM4-40GB (MIG-1), is a 1g.5gb, but 3g.20gb is requested.',
    ]);
  });
});

test('a host without devices, and one of AMD', () => {
  expect(said({ x: {} }, host())).toEqual(['error pool x: It asks for devices, but this host has none.']);
  expect(said({ x: { vendor: 'amd' } }, host(card('MI300X', null, { vendor: 'amd', uuid: 'amd-1' })))).toEqual([]);
});

test.each([
  ['nvidia-smi/xml/r580-h100-x8.xml', { agents: 'per-device', model: 'H100' } as const, 0],
  ['nvidia-smi/xml/r580-h100-x8.xml', { agents: 9, model: 'H100' }, 1],
  ['nvidia-smi/xml/r595-l40s.xml', { mig: true }, 1],
  ['rocm-smi/mi100_rocm602.json', { vendor: 'nvidia' } as const, 1],
])('recorded %s', async (file, asked, count) => {
  expect(said({ x: asked }, await readRecording(join(recordings, file)))).toHaveLength(count);
});
