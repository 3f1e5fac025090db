import { describe, expect, test } from 'vitest';
import { architectureOf, capabilityOfModel } from './architectures.ts';

describe('a model has the compute capability that NVIDIA lists for it', () => {
  test.each([
    ['Tesla K80', '3.7'],
    ['GRID K520', '3.0'],
    ['GeForce GT 730', '3.5'],
    ['Tesla M10', '5.0'],
    ['GeForce GTX TITAN X', '5.2'],
    ['NVIDIA TITAN X (Pascal)', '6.1'],
    ['Tesla P100-PCIE-16GB', '6.0'],
    ['Tesla P4', '6.1'],
    ['NVIDIA GeForce GTX 1080 Ti', '6.1'],
    ['Quadro P2200', '6.1'],
    ['Tesla V100S-PCIE-32GB', '7.0'],
    ['NVIDIA TITAN V', '7.0'],
    ['Tesla T4', '7.5'],
    ['NVIDIA GeForce GTX 1660 Ti', '7.5'],
    ['NVIDIA GeForce RTX 2080 SUPER', '7.5'],
    ['Quadro RTX 4000', '7.5'],
    ['Quadro RTX 5000 with Max-Q Design', '7.5'],
    ['NVIDIA T1000 8GB', '7.5'],
    ['A100-SXM4-40GB', '8.0'],
    ['GRID A100-3-20C', '8.0'],
    ['NVIDIA A30', '8.0'],
    ['NVIDIA A10G', '8.6'],
    ['NVIDIA A40-48Q', '8.6'],
    ['NVIDIA RTX A4000', '8.6'],
    ['NVIDIA GeForce RTX 2050', '8.6'],
    ['NVIDIA GeForce RTX 3090 Ti', '8.6'],
    ['Orin (nvgpu)', '8.7'],
    ['NVIDIA RTX 4000 SFF Ada Generation', '8.9'],
    ['NVIDIA RTX 5000 Ada Generation', '8.9'],
    ['NVIDIA GeForce RTX 4090 D', '8.9'],
    ['NVIDIA L40S', '8.9'],
    ['NVIDIA H100 NVL', '9.0'],
    ['NVIDIA GH200 480GB', '9.0'],
    ['NVIDIA B200', '10.0'],
    ['NVIDIA GB300', '10.3'],
    ['NVIDIA Thor', '11.0'],
    ['NVIDIA GeForce RTX 5090', '12.0'],
    ['NVIDIA RTX PRO 6000 Blackwell Server Edition', '12.0'],
    ['NVIDIA GB10', '12.1'],
  ])('%s: %s', (model, capability) => expect(capabilityOfModel(model)).toBe(capability));

  test.each(['Graphics Device', '', 'NVIDIA R100', 'GeForce RTX 30900', 'NVIDIA A1000000', 'constructor'])(
    '%s is unknown',
    (model) => expect(capabilityOfModel(model)).toBeNull(),
  );
});

describe('what the driver says comes before the name', () => {
  test('nothing is known of a nameless card', () =>
    expect(architectureOf('Graphics Device', null)).toEqual({ computeCapability: null, architecture: null }));
  test('an architecture with one capability tells it, one with several does not', () => {
    expect(architectureOf('Graphics Device', 'Turing').computeCapability).toBe('7.5');
    expect(architectureOf('Graphics Device', 'Blackwell').computeCapability).toBeNull();
  });
  test('a name of another architecture is not believed', () =>
    expect(architectureOf('Tesla T4', 'Rubin')).toEqual({ computeCapability: null, architecture: 'Rubin' }));
  test('both names of Ada are one', () =>
    expect(architectureOf('Graphics Device', 'Ada')).toEqual({ computeCapability: '8.9', architecture: 'Ada Lovelace' }));
});
