import fc from 'fast-check';
import { expect, test } from 'vitest';
import { damagedRecordings } from '../../test/support/gpu-fuzz.ts';
import { inventoryOf } from './recording.ts';

test('a damaged recording is read without an error, and no device is made up', () => {
  fc.assert(damagedRecordings(), { numRuns: 60 });
});

// Each of these made a first version take minutes: work that grows with the square of the input.
test.each([
  ['empty lines', '\n', ''],
  ['elements that never close', '<gpu>', ''],
  ['elements in elements', '<a>', '<nvidia_smi_log>'],
  ['closing elements', '</nvidia_smi_log>', ''],
  ['processes that never end', '<process_name>', '<nvidia_smi_log><gpu id="1">'],
  ['prompts', '# $ ', ''],
  ['cells', 'uuid, ', ''],
  ['brackets', '{ [', ''],
])('half a megabyte of %s', (_, piece, start) => {
  inventoryOf([{ name: 'big', text: start + piece.repeat(500_000 / piece.length) }]);
});

test('more GPUs than a host can have are not believed', () => {
  const list = Array.from(
    { length: 20_000 },
    (_, n) => `GPU ${n}: NVIDIA L4 (UUID: GPU-11111111-0000-0000-0000-${String(n).padStart(12, '0')})`,
  );
  const found = inventoryOf([{ name: 'list', text: list.join('\n') }]);
  expect(found.complete).toBe(false);
  expect(found.findings.map((each) => each.code)).toContain('output-odd');
});
