import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { looksLikeCsv, looksLikeRows, readCsv, readQueryText } from './by-hand.ts';

describe('nvidia-smi -q', () => {
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
});

describe('CSV', () => {
  const uuid = 'GPU-d86c351b-8f94-33ab-3b97-accb421fef6d';

  describe('columns', () => {
    test('from the header, units or not', () => {
      const read = readCsv(nvidia('csv/r590-h200.query-gpu.idle.csv'));
      expect(read).toMatchObject({ whole: true, attached: 1, driver: '590.48.01' });
      expect(read.gpus[0]?.facts).toMatchObject({
        memoryTotal: '143771 MiB',
        computeCapability: '9.0',
        pciId: '00000000:83:00.0',
        migCurrent: 'Disabled',
        recoveryAction: 'None',
      });
    });

    test('from what was asked, when there is no header', () => {
      const read = readCsv(`${uuid}, 8.0, 40960\n`, ['--query-gpu=uuid,compute_cap,memory.total', '--format=csv,noheader,nounits']);
      expect(read.gpus[0]?.facts).toEqual({ uuid, computeCapability: '8.0', memoryTotal: '40960' });
    });

    test('from nowhere: no row is read', () => {
      const read = readCsv(nvidia('csv/gb10-unified-memory.nounits.csv'));
      expect(read.gpus).toEqual([]);
      expect(looksLikeRows(nvidia('csv/gb10-unified-memory.nounits.csv'))).toBe(true);
    });

    test('an empty line below the header is none of its business', () =>
      expect(readCsv(nvidia('csv/unknown-error-field.csv')).gpus[0]?.facts.model).toBe('GeForce RTX 2080 Ti'));
  });

  describe('rows', () => {
    const header = 'index, uuid, memory.total [MiB]';
    test('one that is too short or too long is not read', () => {
      const read = readCsv(`${header}\n0, ${uuid}, 1 MiB\n1, ${uuid.replace('d8', 'aa')}\n2, a, b, c, d\n`);
      expect(read.gpus).toHaveLength(1);
      expect(read.whole).toBe(false);
    });

    test('a UUID cut off at the end is none', () => {
      const read = readCsv(`index, uuid\n0, ${uuid}\n1, GPU-683c6e09-3969-31a`);
      expect(read.gpus.map((gpu) => gpu.facts.uuid)).toEqual([uuid]);
      expect(read.whole).toBe(false);
    });

    test('a complaint between them is handed on', () => {
      const complaint = 'Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error';
      const read = readCsv(`${header}\n${complaint}\n0, ${uuid}, 1 MiB\n`);
      expect(read.gpus).toHaveLength(1);
      expect(read.rest).toBe(complaint);
    });
  });

  describe('processes', () => {
    test('of --query-compute-apps', () => {
      const read = readCsv(nvidia('csv/r590-h100-mig.compute-apps.load.csv'));
      expect(read.gpus).toEqual([]);
      expect(read.apps).toHaveLength(3);
      expect(read.apps?.[0]).toEqual({
        gpu: 'GPU-00000000-0000-0000-0000-000000000000',
        pid: '21180',
        name: '/root/tools/memhog',
        memory: '2296 MiB',
        type: 'C',
      });
    });

    test('none is an empty list, not asked is none', () => {
      expect(readCsv(nvidia('csv/r590-h100-mig.compute-apps.idle.csv')).apps).toEqual([]);
      expect(readCsv(nvidia('csv/two-gpus.units.csv')).apps).toBeNull();
    });

    test('a name may hold commas', () => {
      const read = readCsv(`gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n${uuid}, 7, run a, b, c, 12 MiB\n`);
      expect(read.apps?.[0]).toMatchObject({ pid: '7', name: 'run a, b, c', memory: '12 MiB' });
    });

    test('what is remembered of finished ones is no list of processes', () =>
      expect(readCsv('gpu_uuid, pid, gpu_utilization [%], max_memory_usage [MiB], time [ms]\n').apps).toBeNull());
  });

  test.each(['csv/two-gpus.units.csv', 'csv/three-gpus.units.csv', 'csv/gb10-unified-memory.csv'])('%s is known', (file) =>
    expect(looksLikeCsv(nvidia(file))).toBe(true),
  );
  test.each(['q/r535-a10.txt', 'help/r610-rtx2080super.help-query-gpu.txt', 'table/r550-l4.txt', 'list/r590-h200.txt'])(
    '%s is none',
    (file) => expect(looksLikeCsv(nvidia(file))).toBe(false),
  );
});
