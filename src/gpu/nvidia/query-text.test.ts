import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { readQueryText } from './query-text.ts';

test('MIG instances and their processes', () => {
  const read = readQueryText(nvidia('q/r590-h100-mig.load.txt'));
  expect(read).toMatchObject({ driver: '590.48.01', cuda: '13.1', attached: 1, whole: true });
  const [gpu] = read.gpus;
  expect(
    gpu?.instances.map(({ index, gpuInstance, computeInstance, memoryTotal, memoryUsed }) => [
      index,
      gpuInstance,
      computeInstance,
      memoryTotal,
      memoryUsed,
    ]),
  ).toEqual([
    ['0', '2', '0', '40448 MiB', '11091 MiB'],
    ['1', '3', '0', '20096 MiB', '17 MiB'],
    ['2', '9', '0', '9984 MiB', '9 MiB'],
    ['3', '10', '0', '9984 MiB', '9 MiB'],
  ]);
  expect(gpu?.processes).toEqual([
    { gpuInstance: '2', computeInstance: '0', pid: '21180', type: 'C', name: '/root/tools/memhog', memory: '2296 MiB' },
    { gpuInstance: '2', computeInstance: '0', pid: '21181', type: 'C', name: '/root/tools/memhog', memory: '1272 MiB' },
    { gpuInstance: '2', computeInstance: '0', pid: '21198', type: 'C', name: './gpu_burn', memory: '7484 MiB' },
  ]);
  expect(gpu?.facts).toMatchObject({ memoryTotal: '81559 MiB', memoryUsed: '11125 MiB', migCurrent: 'Enabled' });
});

test('versions are those of the newer names', () =>
  expect(readQueryText(nvidia('q/r610-rtx2080super.idle.txt'))).toMatchObject({ driver: '610.57.04', cuda: '13.3' }));

describe('cut off', () => {
  test('in the first of eight GPUs', () => {
    const read = readQueryText(nvidia('q/r535-h100-x8-truncated.txt'));
    expect(read).toMatchObject({ attached: 8, whole: false });
    expect(read.gpus).toHaveLength(1);
    expect(read.gpus[0]).toMatchObject({ depth: 'cut', facts: { uuid: 'GPU-566e6f65-c38e-b12f-4824-6944218668b9' } });
  });

  test('in the middle of a UUID: it is none', () => {
    const text = nvidia('q/r535-a10.txt');
    const cut = text.slice(0, text.indexOf('GPU UUID') + 70);
    expect(readQueryText(cut).gpus[0]?.facts.uuid).toBeUndefined();
  });
});

test('processes of drivers before MIG', () => {
  const text = `Attached GPUs                       : 1
GPU 0000:03:00.0
    Product Name                    : Tesla K40c
    GPU UUID                        : GPU-11111111-1111-1111-1111-111111111111
    Processes
        Process ID                  : 100
            Type                    : C
            Name                    : a
            Used GPU Memory         : 5 MiB
        Process ID                  : 200
            Type                    : G
            Name                    : b
            Used GPU Memory         : 6 MiB
`;
  expect(readQueryText(text).gpus[0]?.processes).toEqual([
    { pid: '100', type: 'C', name: 'a', memory: '5 MiB' },
    { pid: '200', type: 'G', name: 'b', memory: '6 MiB' },
  ]);
});

test.each([
  ['None', []],
  ['N/A', null],
])('processes "%s"', (said, processes) =>
  expect(readQueryText(`Attached GPUs : 1\nGPU 0000:03:00.0\n    Processes : ${said}\n`).gpus[0]?.processes).toEqual(processes),
);
