import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { inside } from '../../../test/kit/azure-manager.ts';
import { agentContext } from '../../../test/kit/ci-contract.ts';
import type { Device } from '../../gpu/inventory.ts';
import { kindOf } from './capabilities.ts';

const card = (uuid: string, model: string): Device =>
  ({ uuid, vendor: 'nvidia', model, memoryMiB: 40_960, computeCapability: '8.0', mig: null }) as Device;

const kind = (agent: string, devices: readonly Device[], answer = inside(), tags: readonly string[] = ['fast']) => {
  const own = { slot: `ci/${agent}`, name: `box-${agent}`, devices, cuda: '12.4' };
  const context = agentContext(agent, { ...own, ask: async () => answer });
  return kindOf(context, tags, patient);
};

it('is the same for agents that do the same, whatever their names, slots and cards', async () => {
  const [one, two] = [await kind('a1', [card('GPU-1', 'A100')]), await kind('a2', [card('GPU-2', 'A100')])];
  expect(one.set).toBe(two.set);
  expect(one.shared).toEqual(two.shared);
  expect(one.shared).toMatchObject({ cuda: '12.4', 'gpu.model': 'A100', fast: 'true', git: '/usr/bin/git', 'Agent.OS': 'Linux' });
  expect([one.told['onejob.name'], two.told['onejob.name']]).toEqual(['box-a1', 'box-a2']);
});

it('is another one with other devices or tags, and no other one with another image', async () => {
  const one = await kind('a1', [card('GPU-1', 'A100')]);
  expect((await kind('a2', [card('GPU-2', 'H100')])).set).not.toBe(one.set);
  expect((await kind('a2', [card('GPU-1', 'A100'), card('GPU-2', 'A100')])).set).not.toBe(one.set);
  expect((await kind('a2', [card('GPU-1', 'A100')], inside(), ['slow'])).set).not.toBe(one.set);
  const renewed = await kind('a3', [card('GPU-1', 'A100')], inside('tool=mvn=/usr/bin/mvn\n'));
  expect(renewed.set).toBe(one.set);
  expect(renewed.shared).toHaveProperty('mvn');
});

it('writes into the agent only what it would not find out by itself', async () => {
  const { told } = await kind('a1', []);
  expect(told).toEqual({ fast: 'true', 'onejob.name': 'box-a1', 'onejob.pool': 'ci', 'onejob.slot': 'ci/a1' });
});

it.each([
  ['x86_64', 'X64'],
  ['aarch64', 'ARM64'],
  ['arm64', 'ARM64'],
])('says what it runs on: %s', async (arch, said) => {
  expect((await kind('a1', [], inside().replace('x86_64', arch))).all['Agent.OSArchitecture']).toBe(said);
});
