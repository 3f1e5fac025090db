import { describe, expect, test } from 'vitest';
import { builtInTables } from '../gpu/tables.ts';
import { admits, brandsOf } from './search.ts';

const gateOf = (tag: string, arch: 'amd64' | 'arm64' = 'amd64') =>
  builtInTables.images.find((each) => each.tag === tag)?.[arch]?.gate ?? null;

test.each<[string, string, string, boolean]>([
  ['12.4.1', '535.104.05', 'NVIDIA GeForce RTX 4090', true],
  ['12.4.1', '535.104.05', 'Tesla T4', true],
  ['12.4.1', '545.23.06', 'Tesla T4', false],
  ['13.1.2', '580.95.05', 'NVIDIA GeForce RTX 4090', false],
  ['13.1.2', '580.95.05', 'TITAN RTX', false],
  ['13.1.2', '580.95.05', 'NVIDIA H100 80GB HBM3', true],
  ['13.1.2', '580.95.05', 'NVIDIA RTX PRO 6000 Blackwell Server Edition', true],
  ['13.1.2', '580.95.05', 'NVIDIA GB10', false],
  ['13.1.2', '580.95.05', 'Graphics Device', false],
  ['11.4.3', '460.73.01', 'Tesla V100-SXM2-32GB', false],
])('the gate of %s, driver %s, %s: %s', (tag, driver, model, expected) => {
  expect(admits(gateOf(tag), builtInTables, driver, [model])).toBe(expected);
});

test('one GPU that is not let in keeps all out', () => {
  const models = ['Tesla T4', 'NVIDIA GeForce RTX 4090'];
  expect(admits(gateOf('12.9.1'), builtInTables, '570.133.20', models)).toBe(false);
});

test('older images for Arm ask for CUDA alone', () => {
  expect(gateOf('12.3.2', 'arm64')).toBeNull();
  expect(admits(null, builtInTables, '535.104.05', ['Tesla T4'])).toBe(false);
});

describe('brands', () => {
  test.each([
    ['GeForce GTX 1080', 'geforce'],
    ['NVIDIA TITAN V', 'titan'],
    ['Quadro P2000', 'quadro'],
    ['NVIDIA RTX 6000 Ada Generation', 'nvidiartx'],
    ['GRID K520', 'grid'],
    ['NVIDIA L40S', 'nvidia'],
    ['A100-SXM4-40GB', 'nvidia'],
    ['NVIDIA GH200 480GB', 'nvidia'],
  ])('%s may be %s', (model, brand) => {
    expect(brandsOf(model)).toContain(brand);
  });

  test('a name that says nothing has none', () => {
    expect(['Graphics Device', 'NVIDIA T1000', ''].map(brandsOf)).toEqual([null, null, null]);
  });
});
