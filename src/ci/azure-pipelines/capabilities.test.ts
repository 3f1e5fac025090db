import { expect, it } from 'vitest';
import type { Device } from '../../gpu/inventory.ts';
import { advertised, capabilitiesFile, gpuCapabilities, sharedCapabilities, tagCapabilities } from './capabilities.ts';

const card = (more: Partial<Device> = {}): Device =>
  ({ vendor: 'nvidia', model: 'NVIDIA A100', memoryMiB: 40_960, computeCapability: '8.0', mig: null, ...more }) as Device;

it('says what devices an agent has, as a person would type it', () => {
  expect(gpuCapabilities([card(), card({ memoryMiB: 24_564 })], '12.4')).toEqual({
    'gpu.count': '2',
    'gpu.model': 'NVIDIA A100',
    'gpu.vendor': 'nvidia',
    'gpu.memory': '23',
    compute: '8.0',
    cuda: '12.4',
  });
  expect(gpuCapabilities([], '12.4')).toEqual({});
  const other = gpuCapabilities([card({ vendor: 'amd', memoryMiB: null, computeCapability: null })], '12.4');
  expect(other).toEqual({ 'gpu.count': '1', 'gpu.model': 'NVIDIA A100', 'gpu.vendor': 'amd' });
});

it('takes tags with and without a value', () => {
  expect(tagCapabilities(['fast', ' site = Bonn', 'a=b=c', 'two= lines\nof it'])).toEqual({
    fast: 'true',
    site: 'Bonn',
    a: 'b=c',
    two: 'lines of it',
  });
});

it('shows no more of an environment than the agent itself will show', () => {
  const environment = {
    JAVA_HOME: '/opt/java',
    LONG: 'x'.repeat(1_024),
    JUST: 'x'.repeat(1_023),
    HOSTNAME: 'c0ffee',
    TERM: 'xterm',
    VSO_AGENT_IGNORE: 'AZP_TOKEN, Licence',
    AZP_TOKEN: 'secret',
    LICENCE: 'secret',
  };
  expect(Object.keys(advertised(environment))).toEqual(['JAVA_HOME', 'JUST']);
});

it('lets a placeholder promise only what others of its kind do as well', () => {
  const all = { git: '/usr/bin/git', 'Agent.Name': 'a1', 'agent.version': '5', 'onejob.slot': 'ci/1', HOSTNAME: 'c0ffee' };
  expect(sharedCapabilities(all)).toEqual({ 'agent.version': '5', git: '/usr/bin/git' });
});

it('writes one line for each', () => {
  expect(capabilitiesFile({ cuda: '12.4', 'gpu.model': 'A = B' })).toBe('cuda=12.4\ngpu.model=A = B\n');
  expect(capabilitiesFile({})).toBe('');
});
