/** Cards that are lost, and a tool that does not answer: what is known then, and what is not. */
import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import type { Inventory } from '../inventory.ts';
import { type Reply, recorded } from '../run.ts';
import { nvidiaInventory } from './nvidia.ts';

const answer = (output: string, code: number | null = 0): Reply => ({ ...recorded(output, ['-q', '-x']), code });
const codes = ({ findings }: Inventory) => findings.map((each) => each.code);
const h100 = nvidia('xml/r580-h100-x8.xml');
const h100Pci = ['53', '64', '75', '86', '97', 'a8', 'b9', 'ca'].map((bus) => `0000:${bus}:00.0`);
const uuidOf = (n: number) => `GPU-0000000${n}-0000-0000-0000-00000000000${n}`;

/** One card as `-q -x -i <PCI address>` prints it: with the number of all cards. */
const alone = (n: number) => {
  const blocks = h100.split(/(?=\t<gpu id)/);
  return `${blocks[0]}${blocks[n + 1]?.replace('</nvidia_smi_log>', '')}</nvidia_smi_log>\n`;
};

describe('a lost card', () => {
  test('the bus has one more than the tool: it is named, the others are fine, and none is unknown', () => {
    const found = nvidiaInventory({ xml: answer(h100), pciIds: [...h100Pci, '0000:db:00.0'] });
    expect(found.complete).toBe(true);
    expect(found.devices).toHaveLength(8);
    expect(found.findings).toEqual([expect.objectContaining({ level: 'error', code: 'gpu-lost', subject: '0000:db:00.0' })]);
  });

  test("when the driver's own files still know its UUID, it is listed as failed", () => {
    const info = `Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-dbdbdbdb-0000-0000-0000-000000000000\nBus Location: \t 0000:db:00.0\nDevice Minor: \t 8\nGPU Excluded:\t No\n`;
    const found = nvidiaInventory({ xml: answer(h100), pciIds: [...h100Pci, '0000:db:00.0'], procGpus: [info] });
    expect(found.complete).toBe(true);
    expect(found.devices.at(-1)).toMatchObject({
      uuid: 'GPU-dbdbdbdb-0000-0000-0000-000000000000',
      pciId: '0000:db:00.0',
      minor: 8,
      health: { state: 'failed' },
    });
    const excluded = nvidiaInventory({ xml: answer(h100), pciIds: h100Pci, procGpus: [info.replace('\t No', '\t Yes')] });
    expect(excluded).toMatchObject({ complete: true, devices: { length: 8 }, findings: [] });
  });

  test('the bus has more than a list without addresses', () => {
    const pciIds = h100Pci.slice(0, 5);
    const found = nvidiaInventory({ list: answer(nvidia('list/a100-80gb-x4-one-mig.txt')), pciIds });
    expect(codes(found)).toEqual(['gpu-lost']);
  });

  test('the tool fails for all, each card was asked by itself: seven are there, the eighth is named', () => {
    const error = 'Unable to determine the device handle for GPU0000:CA:00.0: Unknown Error\n';
    const replies = [answer(error, 255), ...[0, 1, 2, 3, 4, 5, 6].map((n) => answer(alone(n))), answer(error, 255)];
    const found = nvidiaInventory({ xml: replies, pciIds: h100Pci });
    expect(found.complete).toBe(true);
    expect(found.devices.map((device) => device.uuid)).toEqual([0, 1, 2, 3, 4, 5, 6].map(uuidOf));
    expect(codes(found)).toEqual(['device-handle']);
    expect(found.findings[0]?.subject).toBe('0000:ca:00.0');
  });

  test('the same with one that was not asked: not complete', () => {
    const error = 'Unable to determine the device handle for GPU0000:CA:00.0: Unknown Error\n';
    const replies = [answer(error, 255), ...[0, 1, 2, 3, 4, 5].map((n) => answer(alone(n)))];
    expect(nvidiaInventory({ xml: replies, pciIds: h100Pci })).toMatchObject({ complete: false, devices: { length: 6 } });
  });

  test('all answer when asked one by one', () =>
    expect(nvidiaInventory({ xml: h100Pci.map((_, n) => answer(alone(n))), pciIds: h100Pci })).toMatchObject({
      complete: true,
      devices: { length: 8 },
      findings: [],
    }));

  test('in the XML its values say so; an exit code on top says nothing more', () => {
    const found = nvidiaInventory({ xml: answer(nvidia('xml-mock/r580-gb200-lost.xml'), 15) });
    expect(found).toMatchObject({ complete: true, devices: { length: 2 } });
    expect(found.devices[1]).toMatchObject({
      health: { state: 'failed', reasons: ['is lost: it has fallen off the bus'] },
      memoryMiB: null,
      memoryUsedMiB: null,
    });
    expect(codes(found)).toEqual(['row-remap-failed', 'ecc-uncorrected', 'gpu-lost']);
  });

  test('a complaint next to rows with exit code 0', () => {
    const rows = `Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error\nGPU 0: NVIDIA L4 (UUID: ${uuidOf(1)})\n`;
    const found = nvidiaInventory({ list: answer(rows) });
    expect(found).toMatchObject({ complete: false, devices: [{ uuid: uuidOf(1), index: 0 }] });
    expect(codes(found)).toEqual(['device-handle']);
  });

  test('a gap in the numbers shows it too', () => {
    const list = `GPU 0: NVIDIA L4 (UUID: ${uuidOf(1)})\nGPU 2: NVIDIA L4 (UUID: ${uuidOf(2)})\n`;
    const found = nvidiaInventory({ list: answer(list) });
    expect(found).toMatchObject({ complete: false, devices: { length: 2 } });
    expect(codes(found)).toEqual(['index-gap']);
  });
});

describe('a tool that does not answer', () => {
  test('hangs: what it said is there, the rest is unknown', () => {
    const half = h100.slice(0, h100.indexOf('</gpu>') + 6);
    const found = nvidiaInventory({ xml: { ...answer(half, null), hung: true }, pciIds: h100Pci });
    expect(found).toMatchObject({ complete: false, devices: { length: 1 } });
    expect(codes(found)).toEqual(['tool-hung']);
  });

  test('hangs and says nothing: the names of the cards are known from the driver', () => {
    const found = nvidiaInventory({
      xml: { ...answer('', null), hung: true },
      procGpus: [nvidia('proc/gpus-information-l4.txt')],
      procVersion: 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.120  Release Build  (x@y)  Fri Sep 13\n',
    });
    expect(found).toMatchObject({ complete: false, driver: '550.120', cuda: '12.4', cudaFrom: 'driver' });
    expect(found.devices).toMatchObject([{ uuid: 'GPU-3291dfa4-fcc4-0110-615b-c894a0d7c689', health: { state: 'unknown' } }]);
  });

  test('a hung second call spoils the set as well', () =>
    expect(nvidiaInventory({ xml: answer(h100), list: { ...answer('', null), hung: true } }).complete).toBe(false));

  test.each<[string, Reply, string]>([
    ['half an XML', answer(h100.slice(0, 9000)), 'output-torn'],
    ['nothing', answer(''), 'tool-silent'],
    ['something else', answer('hello world'), 'output-odd'],
    ['an error text with exit code 0', answer(nvidia('errors/no-devices.txt')), 'no-devices'],
    ['exit 9', answer('', 9), 'driver-not-loaded'],
    ['exit 18', answer(nvidia('errors/version-mismatch-new.txt'), 18), 'library-mismatch'],
    ['no such tool', answer('', 127), 'tool-missing'],
  ])('%s', (_, xml, code) => {
    const found = nvidiaInventory({ xml, pciIds: h100Pci });
    expect(found).toMatchObject({ complete: false, devices: [] });
    expect(codes(found)).toEqual([code, 'gpus-unseen']);
  });

  test('fewer blocks than the driver has cards is a failed read', () => {
    const found = nvidiaInventory({ xml: answer(nvidia('xml/r384-gtx1070x6-trimmed.xml')) });
    expect(found).toMatchObject({ complete: false, devices: { length: 2 } });
    expect(codes(found)).toEqual(['output-short']);
  });

  test('a warning next to a whole answer leaves it whole', () => {
    const found = nvidiaInventory({ xml: answer(`${h100}WARNING: infoROM is corrupted at gpu 0000:64:00.0\n`, 14) });
    expect(found).toMatchObject({ complete: true, devices: { length: 8 } });
    expect(found.findings).toEqual([
      expect.objectContaining({ level: 'warning', code: 'inforom-corrupt', subject: '0000:64:00.0' }),
    ]);
  });
});
