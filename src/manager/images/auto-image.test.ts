/** Which image a pool gets by itself, and when it gets another. Over the images that are published now. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, hostWith } from '../../../test/kit/images.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { recordings } from '../../../test/support/gpu-recordings.ts';
import type { DeviceRequest } from '../../config/config.ts';
import type { Device, Inventory } from '../../gpu/inventory.ts';
import { readRecording } from '../../gpu/recording.ts';
import { type AutoImageParts, createAutoImages } from './auto-image.ts';

const recipe = { base: 'auto', packages: [], dockerfile: null, flavour: 'devel', distribution: null } as const;
const pool = (
  name: string,
  devices: Partial<DeviceRequest>,
  image: Partial<AutoImageParts['pools'][number]['imageRecipe']> = {},
) => ({
  name,
  devices: { ...oneDevice, ...devices },
  imageRecipe: { ...recipe, ...image },
});
const images = (...pools: AutoImageParts['pools']) => createAutoImages({ pools, arch: 'amd64', platform: null });
const h100 = card('NVIDIA H100 80GB HBM3', '9.0');
const v100 = card('Tesla V100-SXM2-32GB', '7.0');
const host = (driver: string, cuda: string, ...cards: Device[]): Inventory => hostWith(driver, cuda, ...cards);

describe('a pool without devices', () => {
  test('has the plain image at once, whatever the host', () => {
    const auto = images(pool('cpu', { count: 0 }), pool('old', { count: 0 }, { distribution: 'ubuntu22.04' }));
    expect([auto.of('cpu'), auto.of('old')]).toEqual([{ image: 'ubuntu:24.04' }, { image: 'ubuntu:22.04' }]);
    expect(auto.saw(host('580.95.05', '13.0', h100))).toEqual([]);
    expect(auto.need('cpu')).toBe('ubuntu:24.04');
  });

  test('has none on an architecture that none is published for', () => {
    const odd = createAutoImages({ pools: [pool('cpu', { count: 0 })], arch: null, platform: null });
    expect(() => odd.need('cpu')).toThrow(expect.objectContaining({ code: 'E_IMAGE_CHOICE', retry: false }));
  });
});

describe('a pool with devices', () => {
  test('has none before the first look, and waits for it', () => {
    const auto = images(pool('gpu', {}));
    expect([auto.of('gpu'), auto.findings('gpu')]).toEqual([null, []]);
    expect(() => auto.need('gpu')).toThrow(
      expect.objectContaining({ code: 'E_IMAGE_CHOICE', retry: true, message: expect.stringContaining('not been checked yet') }),
    );
  });

  test('has one that suits all devices it may have, and them only', () => {
    const auto = images(pool('all', {}), pool('new', { model: 'H100' }, { flavour: 'runtime', distribution: 'ubuntu22.04' }));
    expect(auto.saw(host('580.95.05', '13.0', h100, v100))).toEqual(['all', 'new']);
    expect(auto.need('all')).toBe('nvidia/cuda:12.9.1-devel-ubuntu24.04');
    expect(auto.need('new')).toMatch(/^nvidia\/cuda:13\.0\.\d+-runtime-ubuntu22\.04$/);
    expect(auto.findings('new')).toMatchObject([{ level: 'ok', subject: 'pool new' }]);
  });

  test('gets another one when the driver or its devices are others, and not before', () => {
    const auto = images(pool('gpu', {}), pool('v', { model: 'V100' }));
    auto.saw(host('550.54.14', '12.4', h100));
    expect([auto.need('gpu'), auto.saw(host('550.54.14', '12.4', { ...h100, memoryUsedMiB: 9 }))]).toEqual([
      'nvidia/cuda:12.4.1-devel-ubuntu22.04',
      [],
    ]);
    expect(auto.saw(host('580.95.05', '13.0', h100))).toEqual(['gpu']);
    expect(auto.need('gpu')).toMatch(/^nvidia\/cuda:13\.0\./);
    expect(auto.saw(host('580.95.05', '13.0', h100, v100))).toEqual(['gpu', 'v']);
    expect(auto.need('gpu')).toBe('nvidia/cuda:12.9.1-devel-ubuntu24.04');
  });

  test('keeps its image when a look fails: what cannot be seen is unknown', () => {
    const auto = images(pool('gpu', {}));
    auto.saw(host('550.54.14', '12.4', h100));
    expect(auto.saw({ ...hostWith(null, null), complete: false })).toEqual([]);
    expect(auto.need('gpu')).toBe('nvidia/cuda:12.4.1-devel-ubuntu22.04');
    expect(auto.saw(hostWith(null, null))).toEqual(['gpu']);
  });

  test.each<[string, Inventory, RegExp]>([
    [
      'no device that fits',
      host('580.95.05', '13.0', v100),
      /^Cannot choose an image for pool gpu: no device of this host matches what it asks for\.$/,
    ],
    ['a look that saw too little', { ...host('580.95.05', '13.0'), complete: false }, /as far as they could be read\.$/],
    ['a driver that is too old', host('390.157', '9.1', h100), /pool gpu: Driver 390\.157 can run CUDA 9\.1/],
    ['a card in no table', host('580.95.05', '13.0', card('NVIDIA H100 Graphics', null)), /capability is unknown/],
    [
      'cards that share no CUDA',
      host('470.256.02', '11.4', card('Tesla H100 K80', '3.7'), card('H100', '12.0')),
      /no image works with both/,
    ],
  ])('has none with %s, and the reason', (_, seen, reason) => {
    const auto = images(pool('gpu', { model: 'H100' }));
    auto.saw(seen);
    expect(() => auto.need('gpu')).toThrow(
      expect.objectContaining({ code: 'E_IMAGE_CHOICE', retry: false, message: expect.stringMatching(reason) }),
    );
    expect(auto.findings('gpu')).toMatchObject([{ level: 'error', hint: expect.stringContaining('onejob image choose') }]);
  });
});

test.each([
  ['xml/r580-h100-x8.xml', /^nvidia\/cuda:13\.0\.\d+-devel-ubuntu24\.04$/],
  ['xml/r570-a100-40gb.xml', /^nvidia\/cuda:12\.8\.\d+-devel-ubuntu24\.04$/],
  ['xml/r595-l40s.xml', /^nvidia\/cuda:13\.2\.\d+-devel-ubuntu24\.04$/],
])('on the host of %s', async (file, image) => {
  const auto = images(pool('gpu', {}));
  auto.saw(await readRecording(join(recordings, 'nvidia-smi', file)));
  expect(auto.need('gpu')).toMatch(image);
});
