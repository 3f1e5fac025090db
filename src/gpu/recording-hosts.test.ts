/** Each recording of a host, as that host: a table to be checked by eye. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { nvidia, recordings } from '../../test/support/gpu-recordings.ts';
import { shapes } from '../../test/support/gpu-shapes.ts';
import type { Inventory } from './inventory.ts';
import { readRecording } from './recording.ts';

const read = (name: string) => readRecording(join(recordings, name));
const codes = ({ findings }: Inventory) => findings.map((each) => each.code);

// Driver, CUDA, numbers and MIG: the table in the fixtures' README, models and memory read out of the files with another
// parser, compute capabilities from NVIDIA's list.
const hosts: readonly [file: string, driver: string | null, cuda: string | null, shapes: readonly string[]][] = [
  ['xml/r352-grid-k520.xml', '352.99', null, ['1 x GRID K520, 4095, 3.0']],
  ['xml/r384-gt730-limited-trimmed.xml', '384.111', '9.0', ['1 x GeForce GT 730, ?, 3.5']],
  ['xml/r384-gtx1070x6-trimmed.xml', '384.66', '9.0', ['1 x GeForce GTX 1070, 8112, 6.1', '1 x GeForce GTX 1070, 8114, 6.1']],
  ['xml/r390-tesla-m10x4.xml', '390.94', '9.1', ['4 x Tesla M10, 8191, 5.0']],
  ['xml/r410-rtx2080tix2.xml', '410.73', '10.0', ['2 x GeForce RTX 2080 Ti, 10989, 7.5']],
  ['xml/r418-gtx1660ti.xml', '418.43', '10.1', ['1 x Graphics Device, 5912, ?']],
  ['xml/r440-gt730.xml', '440.59', '10.2', ['1 x GeForce GT 730, 2001, 3.5']],
  ['xml/r450-quadro-p2200.xml', '450.80.02', '11.0', ['1 x Quadro P2200, 5058, 6.1']],
  ['xml/r460-gtx1080x2.xml', '460.27.04', '11.2', ['1 x GeForce GTX 1080, 8116, 6.1', '1 x GeForce GTX 1080, 8119, 6.1']],
  ['xml/r460-v100s-x8.xml', '460.73.01', '11.2', ['8 x Tesla V100S-PCIE-32GB, 32510, 7.0']],
  ['xml/r510-a100-40gb-mig.xml', '510.47.03', '11.6', ['1 x NVIDIA A100-SXM4-40GB*, 40960, 8.0']],
  ['xml/r510-tesla-p100.xml', '510.47.03', '11.6', ['1 x Tesla P100-PCIE-16GB, 16384, 6.0']],
  ['xml/r515-tesla-t4.xml', '515.105.01', '11.7', ['1 x Tesla T4, 15360, 7.5']],
  ['xml/r525-quadro-p2000.xml', '525.125.06', '12.0', ['1 x Quadro P2000, 5120, 6.1']],
  ['xml/r536-rtx3080-windows-wddm.xml', '536.40', '12.2', ['1 x NVIDIA GeForce RTX 3080, 10240, 8.6']],
  ['xml/r570-a100-40gb.xml', '570.148.08', '12.8', ['1 x NVIDIA A100-SXM4-40GB, 40960, 8.0']],
  ['xml/r570-rtx3060.xml', '570.124.04', '12.8', ['1 x NVIDIA GeForce RTX 3060, 12288, 8.6']],
  ['xml/r580-gb200-x4-arm64.xml', '580.173.02', '13.0', ['4 x NVIDIA GB200, 189471, 10.0']],
  ['xml/r580-gb300-x4.xml', '580.173.02', '13.0', ['4 x NVIDIA GB300, 284208, 10.3']],
  ['xml/r580-h100-x8.xml', '580.105.08', '13.0', ['8 x NVIDIA H100 80GB HBM3, 81559, 9.0']],
  ['xml/r595-l40s.xml', '595.91.07', '13.2', ['1 x NVIDIA L40S, 46068, 8.9']],
  ['xml/r595-rtx3080.xml', '595.58.03', '13.2', ['1 x NVIDIA GeForce RTX 3080, 10240, 8.6']],
  ['xml/r595-rtx4000-sff-ada.xml', '595.84', '13.2', ['1 x NVIDIA RTX 4000 SFF Ada Generation, 20475, 8.9']],
  ['xml-mock/r580-gb200-healthy.xml', '580.65.06', '13.0', ['2 x NVIDIA GB200, 196608, 10.0']],
  ['xml-mock/r580-gb200-ecc-injected.xml', '580.65.06', '13.0', ['2 x NVIDIA GB200, 196608, 10.0']],
  ['xml-mock/r580-gb200-fabric-degraded.xml', '580.65.06', '13.0', ['2 x NVIDIA GB200, 196608, 10.0']],
  ['xml-mock/r580-gb200-lost.xml', '580.65.06', '13.0', ['1 x NVIDIA GB200, 196608, 10.0', '1 x NVIDIA GB200, ?, 10.0']],
  ['list/a100-80gb-mig-7x1g.10gb.txt', null, null, ['1 x NVIDIA A100-SXM4-80GB*, ?, 8.0', '7 x MIG 1g.10gb ?']],
  [
    'list/a100-80gb-x4-one-mig.txt',
    null,
    null,
    ['1 x NVIDIA A100-SXM4-80GB*, ?, 8.0', '4 x MIG 1g.20gb ?', '3 x NVIDIA A100-SXM4-80GB, ?, 8.0'],
  ],
  ['list/h100-mig-7x1g.10gb.txt', null, null, ['1 x NVIDIA H100 80GB HBM3*, ?, 9.0', '7 x MIG 1g.10gb ?']],
  ['list/r450-a100-mig-old-uuid-7x1g.5gb.txt', null, null, ['1 x A100-SXM4-40GB*, ?, 8.0', '7 x MIG 1g.5gb ?']],
  [
    'list/r450-a100-mig-old-uuid-mixed.txt',
    null,
    null,
    ['1 x A100-SXM4-40GB*, ?, 8.0', '1 x MIG 3g.20gb ?', '1 x MIG 2g.10gb ?', '1 x MIG 1g.5gb ?'],
  ],
  [
    'list/r590-h100-mig.txt',
    null,
    null,
    ['1 x NVIDIA H100 80GB HBM3*, ?, 9.0', '1 x MIG 3g.40gb ?', '1 x MIG 2g.20gb ?', '2 x MIG 1g.10gb ?'],
  ],
  ['list/r590-h200.txt', null, null, ['1 x NVIDIA H200, ?, 9.0']],
  ['list/r595-l40s.txt', null, null, ['1 x NVIDIA L40S, ?, 8.9']],
  ['list/r595-rtx2080super.txt', null, null, ['1 x NVIDIA GeForce RTX 2080 SUPER, ?, 7.5']],
  ['list/r610-rtx2080super.txt', null, null, ['1 x NVIDIA GeForce RTX 2080 SUPER, ?, 7.5']],
  ['list/r540-jetson-orin.txt', null, null, []],
];

/** Those with something odd, and the codes of what is said of it. All other hosts are whole, healthy and quiet. */
const odd: Readonly<Record<string, readonly string[]>> = {
  'xml/r384-gtx1070x6-trimmed.xml': ['output-short'],
  'xml/r418-gtx1660ti.xml': ['model-unknown'],
  'xml/r440-gt730.xml': ['odd-uuid'],
  'xml/r510-a100-40gb-mig.xml': ['mig-uuids-unknown'],
  'xml-mock/r580-gb200-ecc-injected.xml': ['row-remap-failed', 'ecc-uncorrected'],
  'xml-mock/r580-gb200-fabric-degraded.xml': ['fabric'],
  'xml-mock/r580-gb200-lost.xml': ['row-remap-failed', 'ecc-uncorrected', 'gpu-lost'],
  'list/r540-jetson-orin.txt': ['no-uuid'],
};
const incomplete = /trimmed|jetson|xml\/.*-mig\./;

describe('a recording of a host is that host', () => {
  test.each(hosts)('%s', async (file, driver, cuda, expected) => {
    const found = await read(`nvidia-smi/${file}`);
    expect({ driver: found.driver, cuda: found.cuda, shapes: shapes(found) }).toEqual({ driver, cuda, shapes: expected });
    expect(codes(found)).toEqual(odd[file] ?? []);
    // The limited GT 730 says nothing but its names, and is not a victim of the trimming.
    expect(found.complete).toBe(file === 'xml/r384-gt730-limited-trimmed.xml' || !incomplete.test(file));
    // Every UUID, PCI address and minor number there is, in order, and none that is not.
    const text = nvidia(file);
    if (file.startsWith('xml')) {
      const all = (element: string) =>
        [...text.matchAll(new RegExp(`<${element}>([^<]*)</${element}>`, 'g'))].map((match) => match[1]);
      expect(found.devices.map((device) => device.uuid)).toEqual(all('uuid'));
      expect(found.devices.map((device) => device.minor)).toEqual(
        all('minor_number').map((minor) => (minor === 'N/A' ? null : Number(minor))),
      );
      const tails = [...text.matchAll(/<gpu id="0*([0-9A-F]+:[0-9A-F:.]+)"/g)].map((match) =>
        match[1]?.toLowerCase().replace(/^:/, '0:'),
      );
      expect(found.devices.map((device) => device.pciId?.replace(/^0+(?=[0-9a-f]+:[0-9a-f]{2}:)/, ''))).toEqual(tails);
    }
  });

  test('CUDA is said by the tool from 410 on, and follows from the driver before', async () => {
    expect(await read('nvidia-smi/xml/r390-tesla-m10x4.xml')).toMatchObject({ cuda: '9.1', cudaFrom: 'driver' });
    expect(await read('nvidia-smi/xml/r410-rtx2080tix2.xml')).toMatchObject({ cuda: '10.0', cudaFrom: 'tool' });
  });
});
