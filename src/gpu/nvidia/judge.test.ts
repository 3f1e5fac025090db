import { describe, expect, test } from 'vitest';
import { judgeDevice } from './device.ts';
import type { Facts, GpuField, GpuReading } from './reading.ts';

const well: Facts<GpuField> = { memoryTotal: '40960 MiB', memoryUsed: '0 MiB', temperature: '30 C', performanceState: 'P0' };
const reading = (facts: Facts<GpuField>, more: Partial<GpuReading> = {}): GpuReading => ({
  facts: { ...well, ...facts },
  instances: [],
  processes: [],
  trouble: null,
  depth: 'state',
  ...more,
});
const of = (facts: Facts<GpuField>, more: Partial<GpuReading> = {}) => {
  const { health, findings } = judgeDevice(reading(facts, more), 'GPU-1');
  return { state: health.state, codes: findings.map((each) => each.code), health };
};

describe('healthy', () => {
  test.each<[string, Facts<GpuField>]>([
    ['all is well', { recoveryAction: 'None', remapPending: 'No', fabricState: 'Completed', fabricStatus: 'Success' }],
    [
      'a card without ECC, fabric and the like',
      { uncorrectedDram: 'N/A', remapPending: 'N/A', fabricState: 'N/A', recoveryAction: 'N/A' },
    ],
    ['unified memory that has no size', { memoryTotal: '[N/A]', memoryUsed: 'Not Supported' }],
    ['a question that the driver has dropped', { resetRequired: 'Requested functionality has been deprecated' }],
    ['less bandwidth in the fabric', { fabricSummary: 'Limited Capacity' }],
    ['the usual compute mode', { computeMode: 'Default' }],
    ['a licensed vGPU', { virtualization: 'VGPU', licence: 'Licensed (Expiry: 2026-12-1 0:0:0 GMT)' }],
    ['a card passed through, which needs no licence to compute', { virtualization: 'Pass-Through', licence: 'Unlicensed' }],
    ['a vGPU that has no such product', { virtualization: 'VGPU', licence: 'N/A' }],
  ])('%s', (_, facts) => expect(of(facts)).toMatchObject({ state: 'ok', codes: [] }));
});

describe('failed, with a reason', () => {
  test.each<[string, Facts<GpuField>]>([
    ['recovery-action', { recoveryAction: 'Reset' }],
    ['recovery-action', { recoveryAction: 'Drain P2P' }],
    ['reset-required', { resetRequired: 'Yes' }],
    ['reset-required', { drainRecommended: 'Yes' }],
    ['row-remap-pending', { remapPending: 'Yes' }],
    ['row-remap-failed', { remapFailure: 'Yes' }],
    ['page-retirement-pending', { retirementPending: 'Yes' }],
    ['page-retirement-pending', { retirementPending: 'No', blacklistPending: 'Yes' }],
    ['memory-unrepairable', { unrepairable: 'Yes' }],
    ['sram-errors', { sramThreshold: 'Yes' }],
    ['repair-pending', { tpcRepair: 'Yes' }],
    ['fabric', { fabricState: 'In Progress', fabricStatus: 'N/A' }],
    ['fabric', { fabricState: 'Completed', fabricStatus: 'Insufficient Resources' }],
    ['fabric', { fabricState: 'Completed', fabricStatus: 'Success', fabricRoute: 'True' }],
    ['fabric', { fabricConfig: 'Incorrect SysGUID' }],
    ['compute-prohibited', { computeMode: 'Prohibited' }],
    ['vgpu-unlicensed', { virtualization: 'VGPU', licence: 'Unlicensed (Restricted)' }],
    ['vgpu-unlicensed', { virtualization: 'VGPU', licence: 'Unlicensed' }],
  ])('%s %j', (code, facts) => {
    const { state, codes, health } = of(facts);
    expect({ state, codes }).toEqual({ state: 'failed', codes: [code] });
    expect(health.reasons).toHaveLength(1);
  });

  test('lost, wherever the card said so', () =>
    expect(of({}, { trouble: 'lost' })).toMatchObject({ state: 'failed', codes: ['gpu-lost'] }));
  test('all reasons are said', () => expect(of({ remapPending: 'Yes', recoveryAction: 'Reset' }).health.reasons).toHaveLength(2));
});

describe('unknown is not healthy', () => {
  test.each<[string, Facts<GpuField>]>([
    ['memory', { memoryTotal: 'Unknown Error' }],
    ['temperature', { temperature: '[Unknown Error]' }],
    ['ECC', { uncorrectedDram: 'ERR!' }],
  ])('%s cannot be read', (_, facts) => expect(of(facts)).toMatchObject({ state: 'unknown', codes: ['gpu-unknown'] }));

  test('nothing is said at all', () =>
    expect(of({ memoryTotal: 'N/A', temperature: 'N/A', performanceState: 'N/A' }).state).toBe('unknown'));
  test('only its name was read', () => expect(of({}, { depth: 'name' }).state).toBe('unknown'));
});

describe('may be used, with a warning', () => {
  test.each<[string, Facts<GpuField>]>([
    ['compute-exclusive', { computeMode: 'Exclusive_Process' }],
    ['compute-exclusive', { computeMode: 'Exclusive_Thread' }],
    ['vgpu-unlicensed', { virtualization: 'VGPU', licence: 'Unlicensed (Unrestricted)' }],
  ])('%s %j', (code, facts) => expect(of(facts)).toMatchObject({ state: 'ok', codes: [code] }));
});

describe('uncorrected errors', () => {
  test.each<[string, Facts<GpuField>, number | null]>([
    ['one total', { uncorrectedTotal: '3' }, 3],
    ['by memory', { uncorrectedDram: '2', uncorrectedSram: '1' }, 3],
    ['by kind', { uncorrectedDram: '0', uncorrectedParity: '1', uncorrectedSecded: '4' }, 5],
    ['not counted', { uncorrectedTotal: 'N/A', uncorrectedDram: 'N/A' }, null],
    ['not a number', { uncorrectedTotal: '-1' }, null],
  ])('%s', (_, facts, count) => expect(of(facts).health.uncorrectedErrors).toBe(count));

  test('are a warning: what they mean depends on when they came', () =>
    expect(of({ uncorrectedTotal: '1' })).toMatchObject({ state: 'ok', codes: ['ecc-uncorrected'] }));
});
