/** Whatever the host: the image is never too new for a GPU or the driver, and never one that is not published as asked. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { card } from '../../test/kit/images.ts';
import type { Device } from '../gpu/inventory.ts';
import { builtInTables } from '../gpu/tables.ts';
import { chooseImage } from './choose.ts';
import type { Arch, Flavour, ImageRequest } from './request.ts';

/** First and last CUDA by compute capability, written down once more so that the code is not its own witness. */
const ranges: Record<string, readonly [number, number]> = {
  '2.0': [300, 800],
  '3.0': [402, 1002],
  '3.5': [605, 1108],
  '3.7': [605, 1108],
  '5.2': [605, 1209],
  '6.0': [800, 1209],
  '6.1': [800, 1209],
  '7.0': [900, 1209],
  '7.5': [1000, 9999],
  '8.0': [1100, 9999],
  '8.6': [1101, 9999],
  '8.9': [1108, 9999],
  '9.0': [1108, 9999],
  '10.0': [1208, 9999],
  '10.3': [1209, 9999],
  '11.0': [1300, 9999],
  '12.0': [1208, 9999],
  '12.1': [1209, 9999],
};
/** Oldest driver of a CUDA family: major version and the two numbers after it. */
const families: Record<string, readonly [number, number, number]> = { 11: [450, 36, 6], 12: [525, 60, 13], 13: [580, 0, 0] };

const cuda = (version: string) => {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  return major * 100 + minor;
};

const driver = fc.oneof(
  fc
    .tuple(
      fc.constantFrom(352, 390, 410, 450, 455, 460, 470, 510, 515, 525, 535, 550, 565, 570, 580, 590, 595, 610, 700),
      fc.nat(150),
      fc.nat(20),
    )
    .map((parts) => parts.join('.')),
  fc.constantFrom(null, 'N/A', '610.57.04 [Deprecated; will be removed]', '580'),
);
const compute = fc.oneof(
  { weight: 9, arbitrary: fc.constantFrom(...Object.keys(ranges)) },
  { weight: 1, arbitrary: fc.constantFrom(null, '13.7', '8.7', 'odd') },
);
const device = fc
  .record({
    compute,
    model: fc.constantFrom('Tesla T4', 'NVIDIA GeForce RTX 4090', 'NVIDIA RTX A6000', 'Quadro P2000', 'NVIDIA H100', 'odd', ''),
    n: fc.nat(6),
    architecture: fc.constantFrom(null, 'Volta', 'Kepler', 'CDNA 3'),
    vendor: fc.constantFrom('nvidia', 'nvidia', 'nvidia', 'nvidia', 'amd', 'intel'),
  })
  .map(
    ({ model, compute: capability, n, ...more }): Device =>
      card(model, capability, { ...more, uuid: `GPU-${n}` } as Partial<Device>),
  );
const requests: fc.Arbitrary<ImageRequest> = fc
  .record({
    arch: fc.constantFrom<Arch>('amd64', 'arm64'),
    platform: fc.constantFrom('sbsa', null, 'l4t'),
    flavour: fc.constantFrom<Flavour>('base', 'runtime', 'devel'),
    distribution: fc.oneof(
      fc.constant(null),
      fc.constantFrom('ubuntu20.04', 'ubuntu22.04', 'ubuntu24.04', 'ubuntu26.04', 'ubi8', 'centos7', 'odd', ''),
    ),
    devices: fc.array(device, { maxLength: 3 }),
    wanted: fc.option(
      fc.array(
        fc.nat(6).map((n) => `GPU-${n}`),
        { maxLength: 2 },
      ),
      { freq: 4, nil: null },
    ),
    driver,
    cuda: fc.oneof(
      fc.constant(null),
      fc.constantFrom('9.1', '11.2', '11.4', '12.0', '12.2', '12.7', '12.8', '13.0', '13.2', '15.0', 'Not Found'),
    ),
    complete: fc.boolean(),
  })
  .map(({ devices, wanted, driver, cuda, complete, ...more }) => ({
    ...more,
    inventory: { complete, driver, cuda, cudaFrom: cuda === null ? null : ('tool' as const), devices, findings: [] },
    ...(wanted === null ? {} : { devices: wanted }),
  }));

test('an image or a reason, and the image never asks for more than the host has', () => {
  const seen = { image: 0, plain: 0, problem: 0 };
  fc.assert(
    fc.property(requests, (asked) => {
      const { image, problem, steps } = chooseImage(asked);
      expect((image === null) !== (problem === null)).toBe(true);
      expect(steps.length).toBeGreaterThan(0);
      if (image === null) return void seen.problem++;
      const [, tag = '', flavour, distribution = ''] = /^nvidia\/cuda:([\d.]+)-([a-z]+)-(.+)$/.exec(image) ?? [];
      if (flavour === undefined) return void seen.plain++;
      seen.image++;
      expect(flavour).toBe(asked.flavour);
      if (asked.distribution !== null) expect(distribution).toBe(asked.distribution);
      const row = builtInTables.images.find((each) => each.tag === tag);
      expect(row?.[asked.arch]?.distributions).toContain(distribution);
      const { inventory, devices: wanted } = asked;
      for (const each of inventory.devices) {
        if (each.vendor !== 'nvidia' || (wanted !== undefined && !wanted.includes(each.uuid))) continue;
        // Two devices of one UUID are an odd inventory; the first counts then.
        if (wanted !== undefined && inventory.devices.find(({ uuid }) => uuid === each.uuid) !== each) continue;
        const known = each.computeCapability ?? { Volta: '7.0', Kepler: '3.0' }[each.architecture ?? ''] ?? 'unknown';
        const [first, last] = ranges[known] ?? [9999, 0];
        expect([known, cuda(tag) >= first, cuda(tag) <= last]).toEqual([known, true, true]);
      }
      const numbers = /^\d+/.test(inventory.driver ?? '') ? (inventory.driver ?? '').split('.').map(Number.parseFloat) : null;
      const oldest = families[tag.split('.')[0] ?? ''] ?? [9999, 0, 0];
      if (numbers !== null) {
        const at = oldest.findIndex((number, n) => number !== (numbers[n] ?? 0));
        expect(at === -1 || (numbers[at] ?? 0) > (oldest[at] ?? 0)).toBe(true);
      }
    }),
    { numRuns: 3_000 },
  );
  // Without enough of each the property says little.
  expect(Math.min(seen.image, seen.plain, seen.problem)).toBeGreaterThan(20);
});
