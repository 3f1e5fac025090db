import { describe, expect, test } from 'vitest';
import { card, hostWith, request } from '../../test/kit/images.ts';
import { noGpus } from '../gpu/inventory.ts';
import { builtInTables, parseTables } from '../gpu/tables.ts';
import { chooseImage } from './choose.ts';
import type { ImageRequest } from './request.ts';

const v100 = card('Tesla V100-SXM2-32GB', '7.0');
const a100 = card('NVIDIA A100-SXM4-40GB', '8.0');
const h100 = card('NVIDIA H100 80GB HBM3', '9.0');
const b200 = card('NVIDIA B200', '10.0');
const gb10 = card('NVIDIA GB10', '12.1');
const rtx5090 = card('NVIDIA GeForce RTX 5090', '12.0');
const amd = card('AMD Instinct MI100', null, { vendor: 'amd', uuid: 'amd-0000:83:00.0' });
const arm: Partial<ImageRequest> = { arch: 'arm64', platform: 'sbsa' };
const slice = card(a100.model, '8.0', {
  kind: 'mig',
  uuid: 'MIG-1',
  parent: a100.uuid,
  mig: { profile: '1g.5gb', gpuInstance: 7, computeInstance: 0 },
});

const choices: [string, ImageRequest, string][] = [
  ['the newest CUDA that the driver has', request(hostWith('550.54.14', '12.4', h100)), 'nvidia/cuda:12.4.1-devel-ubuntu22.04'],
  [
    'a CUDA that has no toolkit: the one below',
    request(hostWith('565.57.01', '12.7', h100)),
    'nvidia/cuda:12.6.3-devel-ubuntu24.04',
  ],
  ['no CUDA 13 for a V100, although driver 580 has it', request(hostWith('580.95.05', '13.0', v100)), '12.9.1'],
  ['nor for a P100', request(hostWith('580.95.05', '13.0', card('Tesla P100-PCIE-16GB', '6.0'))), '12.9.1'],
  ['CUDA 13 for a T4', request(hostWith('580.95.05', '13.0', card('Tesla T4', '7.5'))), '13.0.3'],
  ['one V100 among newer cards holds all of them back', request(hostWith('580.95.05', '13.0', h100, v100, a100)), '12.9.1'],
  ['but not an agent that does not get it', request(hostWith('580.95.05', '13.0', h100, v100), { devices: [h100.uuid] }), '13.0.3'],
  ['a K80 ends at 11.8', request(hostWith('470.256.02', '11.4', card('Tesla K80', '3.7'))), '11.4.3'],
  ['GB10 on Arm', request(hostWith('580.95.05', '13.0', gb10), arm), 'nvidia/cuda:13.0.3-devel-ubuntu24.04'],
  ['B200 from 12.8 on', request(hostWith('570.133.20', '12.8', b200)), '12.8.2'],
  ['a Hopper under a driver from before it: minor-version compatibility', request(hostWith('470.256.02', '11.4', h100)), '11.8.0'],
  [
    'the same for a GeForce while gates still knew that brand',
    request(hostWith('470.256.02', '11.4', card('NVIDIA GeForce RTX 4090', '8.9'))),
    '11.8.0',
  ],
  ['a MIG instance counts as its GPU', request(hostWith('510.47.03', '11.6', a100, slice), { devices: ['MIG-1'] }), '11.6.2'],
  ['a newer driver than the tables know', request(hostWith('700.10.01', null, a100)), '13.3.1'],
  ['the branch where the tool names no CUDA', request(hostWith('535.104.05', null, a100)), '12.2.2'],
  ['the branch where a container raises the number', request(hostWith('470.256.02', '12.4', a100)), '11.4.3'],
  ['only CUDA is known', request(hostWith(null, '12.4', a100)), '12.4.1'],
  ['an early driver of its branch', request(hostWith('580.10', '13.0', a100)), '12.9.1'],
  [
    'the architecture instead of the compute capability',
    request(hostWith('580.95.05', '13.0', card('Unknown V', null, { architecture: 'Volta' }))),
    '12.9.1',
  ],
  [
    'that of Ada by its long name',
    request(hostWith('580.95.05', '13.0', card('Unknown L', null, { architecture: 'Ada Lovelace' }))),
    '13.0.3',
  ],
  [
    'a display card of Intel next to it',
    request(hostWith('550.54.14', '12.4', h100, card('Intel UHD', null, { vendor: 'intel' }))),
    '12.4.1',
  ],
  [
    'cards that could be read next to one that could not',
    request({ ...hostWith('550.54.14', '12.4', h100), complete: false }),
    '12.4.1',
  ],
  [
    'an asked-for distribution',
    request(hostWith('580.95.05', '13.0', h100), { distribution: 'ubuntu22.04' }),
    'nvidia/cuda:13.0.3-devel-ubuntu22.04',
  ],
  [
    'in other spellings',
    request(hostWith('580.95.05', '13.0', h100), { distribution: 'Rocky 9' }),
    'nvidia/cuda:13.0.3-devel-rockylinux9',
  ],
  [
    'one that the newest CUDA has no more',
    request(hostWith('580.95.05', '13.0', h100), { distribution: 'ubuntu20.04' }),
    'nvidia/cuda:12.9.1-devel-ubuntu20.04',
  ],
  [
    'one that only x86 has',
    request(hostWith('580.95.05', '13.0', h100), { distribution: 'opensuse15' }),
    '13.0.3-devel-opensuse15',
  ],
  ['a flavour', request(hostWith('550.54.14', '12.4', h100), { flavour: 'base' }), 'nvidia/cuda:12.4.1-base-ubuntu22.04'],
  ['a host without a GPU', request(noGpus), 'ubuntu:24.04'],
  [
    'a Jetson, for an agent without a device',
    request({ ...noGpus, complete: false }, { arch: 'arm64', platform: 'l4t', devices: [] }),
    'ubuntu:24.04',
  ],
  ['and with a distribution', request(noGpus, { distribution: 'debian12' }), 'debian:12'],
  ['an agent without a device on a host with one', request(hostWith('550.54.14', '12.4', h100), { devices: [] }), 'ubuntu:24.04'],
];

describe('an image is chosen for', () => {
  test.each(choices)('%s', (_, asked, expected) => {
    const { image, problem } = chooseImage(asked);
    expect(problem).toBeNull();
    expect(image).toContain(expected);
  });
});

const refusals: [string, ImageRequest, RegExp][] = [
  [
    'an unknown GPU',
    request(hostWith('595.1', '13.2', card('Graphics Device', null))),
    /Graphics Device: its compute capability is unknown\. Pin/,
  ],
  ['a generation that is in no table', request(hostWith('700.1', '14.0', card('RTX 9090', '14.0'))), /14\.0 is in no table/],
  ['a Jetson', request(hostWith('540.4.0', '12.6', card('Orin (nvgpu)', '8.7')), { arch: 'arm64', platform: 'l4t' }), /Jetson/],
  ['a Jetson by its GPU alone', request(hostWith('540.4.0', '12.6', card('Orin (nvgpu)', '8.7')), { arch: 'arm64' }), /Jetson/],
  ['a Jetson that lists nothing', request({ ...noGpus, complete: false }, { arch: 'arm64', platform: 'l4t' }), /Jetson/],
  ['an AMD card', request({ ...noGpus, driver: '6.10', devices: [amd] }), /AMD .*Pin an image/],
  ['an AMD card asked for by name', request(hostWith('550.54.14', '12.4', h100, amd), { devices: [amd.uuid] }), /AMD/],
  [
    'a device that is not there',
    request(hostWith('550.54.14', '12.4', h100), { devices: ['GPU-7'] }),
    /no device GPU-7: this host has GPU-nvidia-h100/,
  ],
  [
    'a tool that hung',
    request({
      ...noGpus,
      complete: false,
      findings: [{ level: 'error', code: 'tool-hung', subject: 'host', message: 'nvidia-smi hung.', hint: null }],
    }),
    /Cannot determine which GPUs this host has: nvidia-smi hung\. Pin/,
  ],
  ['a driver without devices', request(hostWith('550.54.14', '12.4')), /driver 550\.54\.14.*lists no devices/],
  ['an unknown driver', request(hostWith(null, null, h100)), /neither the driver nor its CUDA/],
  [
    'Kepler 3.0, which ends at CUDA 10.2',
    request(hostWith('470.256.02', '11.4', card('GRID K520', '3.0'))),
    /K520 can only use CUDA 4\.2 to 10\.2.*11\.4\.3 to 13\.3\.1/,
  ],
  [
    'Kepler under a driver that does not drive it',
    request(hostWith('580.95.05', '13.0', card('Tesla K80', '3.7'))),
    /contradict each other.*470 is the last branch/,
  ],
  [
    'cards that share no CUDA',
    request(hostWith('580.95.05', '13.0', card('Tesla K80', '3.7'), rtx5090)),
    /both Tesla K80 \(up to CUDA 11\.8\) and .*5090 \(from CUDA 12\.8\)/,
  ],
  [
    'a driver older than every image',
    request(hostWith('410.73', '10.0', card('GeForce RTX 2080 Ti', '7.5'))),
    /can run CUDA 10\.0.*driver 470\.42\.01 or newer/,
  ],
  [
    'a driver that no gate lets in',
    request(hostWith('460.73.01', '11.2', card('Tesla V100S-PCIE-32GB', '7.0'))),
    /11\.8\.0 would still run.*refuses.*NVIDIA_DISABLE_REQUIRE/,
  ],
  [
    'a GeForce that newer gates know no more',
    request(hostWith('535.104.05', '12.2', rtx5090)),
    /12\.9\.1 would still run.*refuses/,
  ],
  [
    'a distribution without images',
    request(hostWith('550.54.14', '12.4', h100), { distribution: 'arch' }),
    /No image is published for arch\. The images that run on this host.*ubuntu22\.04/,
  ],
  [
    'one that ended before the GPU began',
    request(hostWith('580.95.05', '13.0', b200), { distribution: 'centos7' }),
    /For centos7 there are 11\.4\.3 to 12\.3\.2 only.*12\.8\.2 to 13\.3\.1.*ubuntu24\.04/,
  ],
  [
    'one that began after the driver',
    request(hostWith('470.256.02', '11.4', a100), { distribution: 'ubuntu24.04' }),
    /For ubuntu24\.04 there are 12\.5\.1 to 13\.3\.1 only.*ubuntu20\.04/,
  ],
  [
    'a distribution that Arm does not have',
    request(hostWith('580.95.05', '13.0', gb10), { ...arm, distribution: 'opensuse15' }),
    /No image is published for opensuse15/,
  ],
  ['no GPU and a word that every object knows', request(noGpus, { distribution: 'constructor' }), /no image without CUDA/],
  ['no GPU and a distribution without a plain image', request(noGpus, { distribution: 'plan9' }), /plan9.*ubuntu24\.04/],
];

describe('no image is chosen, and the reason given, for', () => {
  test.each(refusals)('%s', (_, asked, reason) => {
    const { image, problem } = chooseImage(asked);
    expect(image).toBeNull();
    expect(problem).toMatch(reason);
    expect(problem).toMatch(/\.$/);
  });
});

test('the steps say what was known, from where, and what it ruled out', () => {
  const { steps } = chooseImage(request(hostWith('580.95.05', '13.0', v100, h100), { distribution: 'ubuntu20.04' }));
  expect(steps.map((each) => each.about)).toEqual(['host', 'driver', 'GPU', 'GPU', 'distribution', 'image']);
  expect(steps[1]).toMatchObject({ known: 'driver 580.95.05 can run CUDA 13.0', from: 'nvidia-smi' });
  expect(steps[2]?.known).toBe('Tesla V100-SXM2-32GB, compute 7.0, Volta: CUDA 9.0 to 12.9');
  expect(steps[2]?.rulesOut).toContain('newer than CUDA 12.9');
  expect(steps[4]?.rulesOut).toContain('13.0.3');
  expect(steps.every((each) => each.from !== '')).toBe(true);
});

test('equal cards are one step, and instances are counted', () => {
  const cards = [1, 2].map((n) => card('NVIDIA H100', '9.0', { uuid: `GPU-${n}` }));
  const { steps } = chooseImage(request(hostWith('550.54.14', '12.4', ...cards)));
  expect(steps.filter((each) => each.about === 'GPU').map((each) => each.known)).toEqual([
    '2 × NVIDIA H100, compute 9.0, Hopper: CUDA 11.8 and newer',
  ]);
  const split = chooseImage(request(hostWith('510.47.03', '11.6', a100, slice)));
  expect(split.steps[2]?.known).toContain('NVIDIA A100-SXM4-40GB (1 MIG instance), compute 8.0');
});

test('what no source confirms is said to be so', () => {
  const { steps } = chooseImage(request(hostWith('575.51.03', null, h100)));
  expect(steps.find((each) => each.about === 'driver')?.verified).toBe(false);
  expect(steps.find((each) => each.about === 'GPU')?.verified).toBe(true);
});

describe('an image that no source confirms', () => {
  const unsure = (tag: string) =>
    parseTables(
      { ...builtInTables, images: builtInTables.images.map((each) => (each.tag === tag ? { ...each, verified: false } : each)) },
      'a test',
    );

  test('is passed over for an older one, and that is said', () => {
    const { image, steps } = chooseImage(request(hostWith('595.45.04', '13.2', h100)), unsure('13.2.1'));
    expect(image).toContain('13.1.2');
    expect(steps.find((each) => each.known.startsWith('13.2.1'))).toMatchObject({
      rulesOut: 'it, because no source confirms it',
      verified: false,
    });
  });

  test('is taken where nothing else fits, and that is said', () => {
    const { image, steps } = chooseImage(
      request(hostWith('610.43.02', '13.3', h100), { distribution: 'ubuntu26.04' }),
      unsure('13.3.1'),
    );
    expect(image).toBe('nvidia/cuda:13.3.1-devel-ubuntu26.04');
    expect(steps.at(-1)?.verified).toBe(false);
  });
});

test('cards that were left aside are named', () => {
  const inventory = { ...hostWith('550.54.14', '12.4', h100, amd), complete: false };
  const said = chooseImage(request(inventory)).steps.find((each) => each.about === 'also seen')?.known;
  expect(said).toMatch(/could not read all devices.*AMD Instinct MI100 is ignored/);
});
