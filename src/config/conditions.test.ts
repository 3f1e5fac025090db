import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { gpu as card, oneDevice } from '../../test/support/devices.ts';
import type { Device } from '../gpu/inventory.ts';
import { computeCondition, fits, matchesModel, memoryCondition, whyNot } from './conditions.ts';
import type { DeviceRequest } from './config.ts';

const gpu = card(0, { uuid: 'GPU-aaaa', pciId: '0000:01:00.0' });
const slice: Device = {
  ...gpu,
  kind: 'mig',
  uuid: 'MIG-bbbb',
  parent: 'GPU-aaaa',
  memoryMiB: 9_856,
  mig: { profile: '1g.10gb', gpuInstance: 9, computeInstance: 0 },
};
const why = (device: Partial<Device>, asked: Partial<DeviceRequest>, base = gpu) =>
  whyNot({ ...base, ...device }, { ...oneDevice, ...asked });

test('a card for one process is not for a pool whose agents share it', () => {
  const exclusive = { computeMode: 'Exclusive_Process' };
  expect([why(exclusive, { share: 1 }), why({ computeMode: 'Default' }, { share: 2 })]).toEqual([null, null]);
  expect(why(exclusive, { share: 2 })).toMatch(/one process.*Exclusive_Process.*"share: 2"/);
});

describe('model', () => {
  test.each([
    ['NVIDIA A100-SXM4-40GB', 'A100', true],
    ['NVIDIA A100-SXM4-40GB', 'a100-sxm4', true],
    ['A100-PCIE-40GB', 'NVIDIA A100', false],
    ['NVIDIA A10', 'A100', false],
    ['NVIDIA A100-SXM4-40GB', 'A10', false],
    ['NVIDIA A10G', 'A10', false],
    ['Tesla V100S-PCIE-32GB', 'V100', false],
    ['Quadro RTX 5000', 'RTX 5000', true],
    ['NVIDIA RTX 5000 Ada Generation', 'RTX 5000', true],
    ['NVIDIA RTX 5000 Ada Generation', 'RTX 5000 Ada', true],
    ['Quadro RTX 5000', 'RTX 5000 Ada', false],
    ['NVIDIA RTX 50000', 'RTX 5000', false],
    ['NVIDIA RTX PRO 5000 Blackwell', 'RTX 5000', false],
    ['NVIDIA GeForce RTX 2080 Ti', 'rtx 2080', true],
    ['AMD Instinct MI300X', 'MI300X', true],
    ['NVIDIA H100 80GB HBM3', 'H100  80GB', true],
    ['NVIDIA H100 80GB HBM3', ' - ', false],
    ['', 'A100', false],
  ])('%s is a %s: %s', (model, asked, expected) => {
    expect(matchesModel(model, asked)).toBe(expected);
    expect(why({ model }, { model: asked }) === null).toBe(expected);
  });
});

describe('memory', () => {
  test.each([
    ['>=40GiB', 40_960, true],
    ['40GiB', 40_961, true],
    ['>40GiB', 40_960, false],
    ['<=40GiB', 40_960, true],
    ['<40GiB', 40_960, false],
    ['=40GiB', 40_960, true],
    ['>= 24 GB', 23_034, true],
    ['>=24GiB', 24_564, false],
    ['>=39.5GiB', 40_448, true],
  ])('%s with %d MiB: %s', (memory, memoryMiB, expected) => {
    expect(why({ memoryMiB }, { memory }) === null).toBe(expected);
  });

  test('a card of 24 GB is told from one of 24 GiB', () => {
    expect(why({ memoryMiB: 24_564 }, { memory: '>=24GiB' })).toBe(
      'has 24564 MiB (23.99 GiB) of memory, but ">=24GiB" is requested; ">=24GB" would fit',
    );
    expect(why({ memoryMiB: 8_192 }, { memory: '>=24GiB' })).toBe('has 8192 MiB (8 GiB) of memory, but ">=24GiB" is requested');
  });

  test('unknown, or not to be understood: never', () => {
    for (const memory of ['>=1MiB', '<=1TiB', '=0B', '>0B'])
      expect(why({ memoryMiB: null }, { memory })).toContain('unknown memory');
    expect(why({}, { memory: 'much' })).toContain('"much" is not a size');
    expect(memoryCondition('>=')).toMatchObject({ ok: false });
  });

  test("a MIG instance's own counts", () => {
    expect(fits(slice, { ...oneDevice, mig: true, memory: '>=40GiB' })).toBe(false);
  });
});

describe('compute capability', () => {
  test.each([
    ['>=8.0', '8.0', true],
    ['>=8.0', '10.0', true],
    ['>=8', '7.5', false],
    ['8.6', '8.9', true],
    ['<9.0', '8.9', true],
    ['<9.0', '12.0', false],
    ['=7.5', '7.5', true],
    ['= 7.5', '8.0', false],
  ])('%s with %s: %s', (compute, computeCapability, expected) => {
    expect(why({ computeCapability }, { compute }) === null).toBe(expected);
  });

  test('unknown, or not to be understood: never', () => {
    for (const computeCapability of [null, 'sm_80']) expect(why({ computeCapability }, { compute: '>=1.0' })).toContain('unknown');
    expect(why({}, { compute: 'new' })).toContain('not a condition');
    expect(computeCondition('>=8.0.1')).toMatchObject({ ok: false });
  });
});

describe('MIG', () => {
  test('whole cards unless it is written', () => {
    for (const mig of [null, false]) {
      expect(why({}, { mig })).toBeNull();
      expect(why({}, { mig }, slice)).toBe('is a MIG instance, but whole cards are requested');
      expect(why({ mig: { mode: 'enabled', pending: null } }, { mig })).toContain('MIG mode');
      expect(why({ mig: null }, { mig })).toBeNull();
    }
  });

  test('any instance, or one of a profile', () => {
    expect(why({}, { mig: true }, slice)).toBeNull();
    expect(why({}, { mig: true })).toContain('whole card');
    expect(why({}, { mig: '1g.10gb' }, slice)).toBeNull();
    expect(why({}, { mig: '1g.5gb' }, slice)).toBe('is a 1g.10gb, but 1g.5gb is requested');
    const big = { mig: { profile: '3g.39gb', gpuInstance: 1, computeInstance: 0 } };
    expect(why(big, { mig: '3g.40gb' }, slice)).toBeNull();
    expect(why({ mig: { profile: null, gpuInstance: 1, computeInstance: 0 } }, { mig: '1g.10gb' }, slice)).toContain(
      'unknown profile',
    );
  });

  test('an instance by its own name, and all of a named card', () => {
    expect(why({}, { uuids: ['MIG-BBBB'] }, slice)).toBeNull();
    expect(why({}, { uuids: ['MIG-bbbb'], mig: false }, slice)).not.toBeNull();
    expect(why({}, { uuids: ['GPU-aaaa'], mig: true }, slice)).toBeNull();
    expect(why({}, { uuids: ['GPU-aaaa'] }, slice)).not.toBeNull();
    expect(why({}, { uuids: ['GPU-cccc'], mig: true }, slice)).toBe('is not named in "uuid"');
  });
});

test('vendor and UUID', () => {
  expect(why({}, { vendor: 'amd' })).toBe('is from nvidia, but amd is requested');
  expect(why({ vendor: 'amd' }, { vendor: 'amd' })).toBeNull();
  expect(why({}, { uuids: ['GPU-bbbb'] })).toBe('is not named in "uuid"');
  expect(why({}, { uuids: ['GPU-bbbb', 'GPU-AAAA'] })).toBeNull();
});

test('a card that drives a display, or may', () => {
  const desktop = { pid: 1, name: 'Xorg', type: 'G', memoryMiB: 9, gpuInstance: null, computeInstance: null } as const;
  expect(why({ display: true }, {})).toBeNull();
  expect(why({ display: false }, { display: 'refuse' })).toBeNull();
  expect(why({ display: true }, { display: 'refuse' })).toContain('drives a display');
  expect(why({ display: false, processes: [desktop] }, { display: 'refuse' })).toContain('drives a display');
  expect(why({ display: null }, { display: 'refuse' })).toContain('(unknown)');
});

test('whatever is written, an unknown value satisfies nothing, and nothing throws', () => {
  const written = fc.oneof(fc.string(), fc.constantFrom('>=8.0', '<1GiB', '=', '>=0B', '< 99'));
  fc.assert(
    fc.property(written, fc.string(), (condition, model) => {
      const blank = { ...gpu, model, memoryMiB: null, computeCapability: null };
      expect(fits(blank, { ...oneDevice, memory: condition })).toBe(false);
      expect(fits(blank, { ...oneDevice, compute: condition })).toBe(false);
      expect(typeof fits({ ...slice, model }, { ...oneDevice, model: condition, mig: condition })).toBe('boolean');
      if (/[\p{L}\p{N}]/u.test(model)) expect(matchesModel(`NVIDIA ${model} X`, model)).toBe(true);
    }),
    { numRuns: 1000 },
  );
});
