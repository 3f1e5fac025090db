import { expect, test } from 'vitest';
import { card, hostWith } from '../../test/kit/images.ts';
import { cudaOfImage, whyNotImage } from './search.ts';

test.each([
  ['nvidia/cuda:12.9.1-devel-ubuntu24.04', '12.9'],
  ['docker.io/nvidia/cuda:13.0-base', '13.0'],
  ['nvcr.io/nvidia/cuda:11.8.0', '11.8'],
  ['registry.lab:5000/mirror/nvidia/cuda:12.4.1-runtime-ubi9@sha256:00', '12.4'],
  ['nvidia/cuda', null],
  ['nvidia/cuda:latest', null],
  ['my-nvidia/cudax:12.4.1', null],
  ['pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel', null],
])('CUDA of %s is %s', (image, cuda) => {
  expect(cudaOfImage(image)).toBe(cuda);
});

const v100 = card('Tesla V100-SXM2-32GB', '7.0');
const h100 = card('NVIDIA H100 80GB HBM3', '9.0');
const geforce = card('NVIDIA GeForce RTX 4090', '8.9');
const why = (image: string, driver: string | null, cuda: string | null, ...cards: (typeof h100)[]) =>
  whyNotImage(`nvidia/cuda:${image}`, hostWith(driver, cuda, ...cards), cards, 'amd64');

test.each<[string, string | null, string | null]>([
  ['as new as the driver can run', why('13.0.2-devel-ubuntu24.04', '580.95.05', '13.0', h100), null],
  ['older', why('12.4.1-devel-ubuntu22.04', '580.95.05', '13.0', h100), null],
  ['of the same family, by minor-version compatibility', why('12.9.1-base', '550.54.14', '12.4', h100), null],
  [
    'of a family that the driver is too old for',
    why('13.0.2-devel-ubuntu24.04', '550.54.14', '12.4', h100),
    'has CUDA 13.0, which needs driver 580.65.06 or newer; this host has 550.54.14',
  ],
  [
    'too new for the card, whatever the driver says',
    why('13.0.2-base', '580.95.05', '13.0', v100, h100),
    'has CUDA 13.0, but 12.9 is the last one that supports Tesla V100-SXM2-32GB (Volta)',
  ],
  [
    'too old for the card',
    why('11.4.3-base', '580.95.05', '13.0', h100),
    'has CUDA 11.4, but 11.8 is the first one that supports NVIDIA H100 80GB HBM3 (Hopper)',
  ],
  [
    'whose own gate refuses',
    why('12.9.1-base', '550.54.14', '12.4', geforce),
    'has CUDA 12.9, and its own check (NVIDIA_REQUIRE_CUDA) refuses driver 550.54.14, which can run CUDA 12.4',
  ],
  ['of an unknown driver', why('13.0.2-base', null, null, h100), null],
  ['for an unknown card', why('13.0.2-base', '580.95.05', '13.0', card('Graphics Device', null)), null],
  ['that is not in the tables', why('14.7.0-base', '580.95.05', '13.0', h100), null],
  ['for no card', why('13.0.2-base', '390.157', null), null],
])('an image %s', (_, found, expected) => {
  expect(found).toBe(expected);
});

test('cards of others have nothing to do with CUDA', () => {
  const amd = card('MI300X', null, { vendor: 'amd' });
  expect(whyNotImage('nvidia/cuda:13.0.2-base', hostWith('6.8.5', null, amd), [amd], 'amd64')).toBeNull();
});
