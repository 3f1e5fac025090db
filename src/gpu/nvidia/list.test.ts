import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { readList } from './list.ts';

const gpuLine = 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-c08d91cb-e324-655c-71ba-7570956445bc)';
const migLine = '  MIG 1c.3g.40gb  Device  0: (UUID: MIG-c788539f-c1ea-5a36-8b4d-9b07d024b1bb)';

test('GPUs with their instances, in the old and the new form', () => {
  const old = readList(nvidia('list/r450-a100-mig-old-uuid-mixed.txt'));
  expect(old.whole).toBe(true);
  expect(old.gpus[0]?.instances).toEqual([
    {
      profile: '3g.20gb',
      index: '0',
      uuid: 'MIG-GPU-4200ccc0-2667-d4cb-9137-f932c716232a/2/0',
      gpuInstance: '2',
      computeInstance: '0',
    },
    {
      profile: '2g.10gb',
      index: '1',
      uuid: 'MIG-GPU-4200ccc0-2667-d4cb-9137-f932c716232a/3/0',
      gpuInstance: '3',
      computeInstance: '0',
    },
    {
      profile: '1g.5gb',
      index: '2',
      uuid: 'MIG-GPU-4200ccc0-2667-d4cb-9137-f932c716232a/9/0',
      gpuInstance: '9',
      computeInstance: '0',
    },
  ]);
  const four = readList(nvidia('list/a100-80gb-x4-one-mig.txt'));
  expect(four.gpus.map((gpu) => gpu.instances.length)).toEqual([4, 0, 0, 0]);
});

test('split compute instances, lines without indentation, Windows line ends', () => {
  const read = readList(`${gpuLine}\r\n${migLine.trim()}\r\n`);
  expect(read.whole).toBe(true);
  expect(read.gpus[0]?.instances).toEqual([
    { profile: '1c.3g.40gb', index: '0', uuid: 'MIG-c788539f-c1ea-5a36-8b4d-9b07d024b1bb' },
  ]);
});

test('a name may have brackets', () =>
  expect(readList('GPU 0: Orin (nvgpu) (UUID: 54d0709b-558d-5a59-9c65-0c5fc14a21a4)').gpus[0]?.facts).toEqual({
    index: '0',
    model: 'Orin (nvgpu)',
    uuid: '54d0709b-558d-5a59-9c65-0c5fc14a21a4',
  }));

test('the same line twice is one GPU', () =>
  expect(readList(`${gpuLine}\n${migLine}\n${gpuLine}\n${migLine}`).gpus).toHaveLength(1));

describe('not whole', () => {
  test.each([
    ['a line cut off', `${gpuLine}\n${migLine.slice(0, 50)}`],
    ['a GPU without a UUID', `${gpuLine}\nGPU 1: NVIDIA H100 80GB HBM3`],
    ['an instance without a GPU', `${migLine}\n${gpuLine}`],
    ['nothing', ''],
    ['something else', 'No devices were found'],
  ])('%s', (_, text) => expect(readList(text).whole).toBe(false));
});
