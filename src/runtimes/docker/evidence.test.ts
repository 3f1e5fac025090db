import { describe, expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { amd, leased, slice } from '../../../test/kit/runtimes.ts';
import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { type DeviceNode, type Evidence, type HostDevices, judgeEvidence } from './evidence.ts';

const host: HostDevices = {
  migMinors: new Map([
    ['gpu0/gi3', 30],
    ['gpu0/gi3/ci0', 31],
  ]),
  drm: new Map([['0000:01:00.0', ['dri/card1', 'dri/renderD129']]]),
};

/** Nodes as the driver makes them. */
const nodes = (...names: string[]): DeviceNode[] =>
  names.map((name) => {
    const number = Number(/\d+$/.exec(name)?.[0] ?? 0);
    if (/^nvidia\d+$/.test(name)) return { name, major: 195, minor: number };
    if (name === 'nvidiactl') return { name, major: 195, minor: 255 };
    if (name.startsWith('dri/')) return { name, major: 226, minor: number };
    return { name, major: 240, minor: number };
  });
const usual = nodes('null', 'zero', 'tty').map((node) => ({ ...node, major: 1 }));

const judged = (
  devices: SandboxSpec['devices'],
  seen: { visible?: string[]; nodes?: DeviceNode[] },
  changes: Partial<Recipe> = {},
  at: HostDevices = host,
) => {
  const evidence: Evidence = {
    visible: seen.visible ?? [devices.map(({ uuid }) => uuid).join(',') || 'void'],
    nodes: [...usual, ...(seen.nodes ?? [])],
  };
  return judgeEvidence({ devices, recipe: { ...recipe, ...changes } }, evidence, at);
};

const one = [leased({ minor: 1 })];
const control = ['nvidiactl', 'nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'];

describe('a container with NVIDIA cards', () => {
  test('is right with exactly its own', () => {
    expect(judged(one, { nodes: nodes('nvidia1', ...control) })).toEqual([]);
    const two = [leased({ minor: 3 }), leased({ minor: 1 })];
    expect(judged(two, { visible: ['GPU-1,GPU-3'], nodes: nodes('nvidia1', 'nvidia3', ...control) })).toEqual([]);
  });

  test('is wrong with another card, one too many, or none', () => {
    expect(judged(one, { nodes: nodes('nvidia0', ...control) })).toEqual([
      '/dev/nvidia1 is missing',
      '/dev/nvidia0 is not its own',
    ]);
    expect(judged(one, { nodes: nodes('nvidia0', 'nvidia1', ...control) })).toEqual(['/dev/nvidia0 is not its own']);
    expect(judged(one, {})).toEqual(['/dev/nvidiactl is missing', '/dev/nvidia1 is missing']);
  });

  test("is judged by its nodes' numbers, not their names", () => {
    const disguised = { name: 'nvidia1', major: 195, minor: 0 };
    expect(judged(one, { nodes: [disguised, ...nodes('nvidiactl')] })).toEqual([
      '/dev/nvidia1 is missing',
      '/dev/nvidia1 is not its own',
    ]);
    const hidden = { name: 'harmless', major: 195, minor: 0 };
    expect(judged(one, { nodes: [hidden, ...nodes('nvidia1', 'nvidiactl')] })).toEqual(['/dev/harmless is not its own']);
  });

  test('is wrong if it was started for other devices, whatever its nodes', () => {
    const right = nodes('nvidia1', ...control);
    for (const value of ['GPU-0', 'GPU-1,GPU-0', 'all', '1', ''])
      expect(judged(one, { visible: [value], nodes: right })).toEqual([`NVIDIA_VISIBLE_DEVICES is ${value || 'empty'}`]);
    expect(judged(one, { visible: ['GPU-1', 'all'], nodes: right })).toEqual(['NVIDIA_VISIBLE_DEVICES is all']);
    expect(judged(one, { visible: [], nodes: right })).toEqual(['NVIDIA_VISIBLE_DEVICES is not set']);
  });

  test('may say void, as with CDI, if the nodes are right', () => {
    expect(judged(one, { visible: ['void'], nodes: nodes('nvidia1', ...control) })).toEqual([]);
    expect(judged(one, { visible: ['void'] })).not.toEqual([]);
  });

  test("may have its own card's graphics nodes, and no other's", () => {
    const drm = ['dri/card1', 'dri/renderD129'];
    expect(judged(one, { nodes: nodes('nvidia1', ...control, ...drm) })).toEqual([]);
    expect(judged(one, { nodes: nodes('nvidia1', ...control, ...drm, 'dri/renderD128') })).toEqual([
      '/dev/dri/renderD128 is not its own',
    ]);
  });

  test('with unknown numbers has at most as many nodes as cards', () => {
    const jetson = [leased({ minor: null, uuid: 'GPU-j' })];
    expect(judged(jetson, {})).toEqual([]);
    expect(judged(jetson, { nodes: nodes('nvidia0', ...control) })).toEqual([]);
    expect(judged(jetson, { nodes: nodes('nvidia0', 'nvidia1', ...control) })).toHaveLength(2);
  });
});

describe('a container with a MIG instance', () => {
  const mig = [slice(0, 3)];
  const caps = ['nvidia-caps/nvidia-cap30', 'nvidia-caps/nvidia-cap31'];

  test("is right with its card's node and its own capabilities", () => {
    expect(judged(mig, { nodes: nodes('nvidia0', ...control, ...caps) })).toEqual([]);
  });

  test("is wrong with its neighbour's capabilities", () => {
    const neighbours = ['nvidia-caps/nvidia-cap39', 'nvidia-caps/nvidia-cap40'];
    expect(judged(mig, { nodes: nodes('nvidia0', ...control, ...neighbours) })).toHaveLength(4);
    expect(judged(mig, { nodes: nodes('nvidia0', ...control, ...caps, ...neighbours) })).toHaveLength(2);
  });

  test('is judged by its card alone if the capabilities are unknown', () => {
    const blind = { ...host, migMinors: null };
    expect(judged(mig, { nodes: nodes('nvidia0', ...control, ...caps) }, {}, blind)).toEqual([]);
    expect(judged(mig, { nodes: nodes('nvidia1', ...control, ...caps) }, {}, blind)).toHaveLength(2);
  });
});

describe("a container with AMD's or Intel's cards", () => {
  test('is right with exactly their render nodes', () => {
    expect(judged([amd(129)], { visible: ['void'], nodes: nodes('kfd', 'dri/renderD129') })).toEqual([]);
    const intel = leased({ vendor: 'intel', minor: 128 });
    expect(judged([intel], { visible: ['void'], nodes: nodes('dri/renderD128') })).toEqual([]);
  });

  test('is wrong with all of /dev/dri, or without kfd', () => {
    const all = nodes('kfd', 'dri/card0', 'dri/card1', 'dri/renderD128', 'dri/renderD129');
    expect(judged([amd(129)], { visible: ['void'], nodes: all })).toHaveLength(3);
    expect(judged([amd(129)], { visible: ['void'], nodes: nodes('dri/renderD129') })).toEqual(['/dev/kfd is missing']);
  });
});

describe('a container without devices', () => {
  test('has no devices, and was started for none', () => {
    expect(judged([], {})).toEqual([]);
    for (const name of ['nvidia0', 'nvidiactl', 'nvidia-uvm', 'kfd', 'dri/renderD128', 'nvidia-caps/nvidia-cap1'])
      expect(judged([], { nodes: nodes(name) })).toEqual([`/dev/${name} is not its own`]);
    expect(judged([], { visible: ['all'] })).toEqual(['NVIDIA_VISIBLE_DEVICES is all']);
  });

  test('may see those that its owner mounts, or all if it is privileged', () => {
    const mount = { host: '/dev/dri', container: '/dev/dri', readOnly: false, variable: null, cache: null };
    expect(judged([], { nodes: nodes('dri/renderD128') }, { mounts: [mount] })).toEqual([]);
    expect(judged([], { nodes: nodes('dri/renderD128', 'nvidia0') }, { mounts: [mount] })).toEqual(['/dev/nvidia0 is not its own']);
    const unsafe = { privileged: true, pidHost: false, seccompUnconfined: false };
    expect(judged([], { nodes: nodes('nvidia0', 'kfd') }, { unsafe })).toEqual([]);
    expect(judged(one, { nodes: nodes('nvidia0', 'nvidiactl') }, { unsafe })).toEqual(['/dev/nvidia1 is missing']);
  });
});
