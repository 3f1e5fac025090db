import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { looksLikeCsv, looksLikeRows, readCsv } from './csv.ts';

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
