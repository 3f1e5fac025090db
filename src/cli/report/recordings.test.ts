/** A recording in a report says the same about the devices as the tool did, and nothing about people. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { inventoryOf } from '../../gpu/recording.ts';
import { createPublicWords } from './public-words.ts';
import { recordingText } from './recordings.ts';

const fixtures = join(import.meta.dirname, '../../../test/fixtures/gpu');
const read = (name: string) => readFileSync(join(fixtures, name), 'utf8');
const words = createPublicWords(['alice']);
const devicesIn = (text: string) => inventoryOf([{ name: 'x', text }]).devices.map(({ processes: _, ...device }) => device);

test.each([
  'nvidia-smi/xml/r580-h100-x8.xml',
  'nvidia-smi/xml/r510-a100-40gb-mig.xml',
  'nvidia-smi/xml/r570-rtx3060.xml',
  'nvidia-smi/xml-mock/r580-gb200-ecc-injected.xml',
  'nvidia-smi/list/a100-80gb-mig-7x1g.10gb.txt',
  'rocm-smi/mi100_rocm571.json',
  'rocm-smi/rx6700xt_rocm612.json',
  'xpu-smi/discovery.json',
])('%s: the same devices', (name) => {
  const text = read(name);
  expect(devicesIn(text).length).toBeGreaterThan(0);
  expect(devicesIn(recordingText(text, words))).toEqual(devicesIn(text));
});

test('serial numbers, processes and what a machine is called go', () => {
  const xml = read('nvidia-smi/xml/r580-h100-x8.xml').replace(
    '<processes>',
    '<processes><process_info><pid>77</pid><process_name>/home/alice/train --key zephyrium</process_name></process_info><vm_name>alice-box</vm_name>',
  );
  const left = recordingText(xml, words);
  for (const gone of ['alice', 'zephyrium', '1650000000001']) expect(left).not.toContain(gone);
  const json = {
    card0: { 'Serial Number': '1650000000001', GUID: '4711' },
    system: { PID77: 'alice, zephyrium' },
    process_list: ['zephyrium'],
  };
  expect(JSON.parse(recordingText(JSON.stringify(json), words))).toEqual({
    card0: { 'Serial Number': expect.stringMatching(/^\(hidden-\d+\)$/), GUID: '4711' },
    system: {},
  });
});
