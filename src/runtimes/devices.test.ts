import { describe, expect, test } from 'vitest';
import { amd, leased, slice } from '../../test/kit/runtimes.ts';
import { capsOf, gateNodes, nodesOf, parseMigMinors, visibleDevices } from './devices.ts';

const minors = parseMigMinors('config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu1/gi3/access 165\n');

describe('variables', () => {
  test('name the leased cards in the order of the lease, and make CUDA count by PCI address', () => {
    expect(visibleDevices([leased({ minor: 3 }), leased({ minor: 1 })], true)).toEqual({
      NVIDIA_VISIBLE_DEVICES: 'GPU-3,GPU-1',
      CUDA_VISIBLE_DEVICES: 'GPU-3,GPU-1',
      CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    });
  });

  test('name MIG instances by their own UUID', () => {
    expect(visibleDevices([slice(0, 3)], true)).toMatchObject({ CUDA_VISIBLE_DEVICES: 'MIG-0-3' });
  });

  test('without devices ask for none', () => {
    expect(visibleDevices([], true)).toEqual({ NVIDIA_VISIBLE_DEVICES: 'void' });
    expect(visibleDevices([], false)).toEqual({
      NVIDIA_VISIBLE_DEVICES: 'void',
      CUDA_VISIBLE_DEVICES: '',
      ROCR_VISIBLE_DEVICES: '',
    });
  });

  test("count AMD's and Intel's cards from 0 if there are no others, else as the host does", () => {
    const cards = [amd(130), amd(129, { uuid: 'amd-0000:01:00.0' })];
    expect(visibleDevices(cards, true)).toEqual({ NVIDIA_VISIBLE_DEVICES: 'void', ROCR_VISIBLE_DEVICES: '0,1' });
    expect(visibleDevices(cards, false).ROCR_VISIBLE_DEVICES).toBe('GPU-0000000000000030,1');
    const intel = leased({ vendor: 'intel', minor: 129, index: 4 });
    expect(visibleDevices([intel], true).ZE_AFFINITY_MASK).toBe('0');
    expect(visibleDevices([intel], false).ZE_AFFINITY_MASK).toBe('4');
  });
});

describe('nodes', () => {
  test('of two cards are their own, and the shared ones once', () => {
    expect(nodesOf([leased({ minor: 2 }), leased({ minor: 0 })], null)).toEqual({
      needed: ['nvidiactl', 'nvidia2', 'nvidia0'],
      useful: ['nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'],
    });
  });

  test("of a MIG instance are its card's and its two capabilities, if they are known", () => {
    expect(nodesOf([slice(0, 3)], minors).needed).toEqual([
      'nvidiactl',
      'nvidia0',
      'nvidia-caps/nvidia-cap30',
      'nvidia-caps/nvidia-cap31',
    ]);
    expect(nodesOf([slice(0, 3)], null).needed).toEqual(['nvidiactl', 'nvidia0']);
    expect([capsOf(slice(1, 3), minors), capsOf(leased(), minors)]).toEqual([null, []]);
  });

  test('of AMD and Intel are the render node, and kfd for the former', () => {
    expect(gateNodes([amd(129)])).toEqual(['/dev/kfd', '/dev/dri/renderD129']);
    expect(gateNodes([leased({ vendor: 'intel', minor: 128 })])).toEqual(['/dev/dri/renderD128']);
  });

  test('do not include a card without a number', () => {
    expect(gateNodes([leased({ minor: null })])).toEqual([]);
  });
});

test.each(['', 'gpu0/gi3/access', 'gpu0/gi3/access x\n', '\0\n'])('a table without capabilities gives none: %j', (text) => {
  expect(parseMigMinors(text).size).toBe(0);
});
