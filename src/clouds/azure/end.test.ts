import { describe, expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, patient, run } from '../../../test/kit/azure-cloud.ts';

async function withMachine(skew = 0) {
  const one = azureWorld();
  one.world.faults.skew = skew;
  const made = await one.settled(one.cloud.create(one.order(), patient));
  const birth = one.order();
  return { ...one, birth, set: (more: object = {}) => one.settled(one.cloud.setEnd({ ...birth, ...more }, made, patient)) };
}

it('is one operation with a time, which is read back', async () => {
  const { set, azure, birth, world } = await withMachine();
  const held = await set();
  const [end] = world.ends.values();
  expect(held).toBe(`Microsoft.ComputeSchedule operation ${end?.operationId} at ${new Date(birth.expires * 1000).toISOString()}`);
  expect(azure.calls.slice(-2).map((call) => call.split('/').at(-1))).toEqual([
    'virtualMachinesSubmitDeallocate 200',
    'virtualMachinesGetOperationStatus 200',
  ]);
});

it('nothing is asked of Azure with death_date: manager-only', async () => {
  const one = azureWorld({ config: { deathDate: 'manager-only' } });
  const made = await one.settled(one.cloud.create(one.order(), patient));
  const before = one.azure.calls.length;
  expect(await one.cloud.setEnd(one.order(), made, patient)).toBe('nothing at Azure (death_date: manager-only)');
  expect(one.azure.calls.length).toBe(before);
});

it('twice is fine, and has the same correlation', async () => {
  const { set, world } = await withMachine();
  await set();
  await set();
  expect(new Set([...world.ends.values()].map(({ correlationId }) => correlationId)).size).toBe(1);
});

it.each([600_000, -600_000])("counts by Azure's clock when that is %s ms off", async (skew) => {
  const { set, world, cloud, pass, birth, clock } = await withMachine(skew);
  await set();
  expect(cloud.skew()).toBe(skew);
  expect([...world.ends.values()][0]?.deadline).toBe(birth.expires * 1000);
  await pass(birth.expires * 1000 - world.now() + 60_000);
  expect([world.billed(), Math.round((clock.wall() + skew - birth.expires * 1000) / 60_000)]).toEqual([[], 1]);
});

describe('is not confirmed', () => {
  it.each([
    ['refused', 'OperationNotAllowed: Scheduling is not possible now.'],
    ['forgotten', 'OperationNotFound'],
    ['late', 'Azure holds 2030-01-02T06:0'],
    ['failed', '"Failed"'],
  ] as const)('%s', async (end, why) => {
    const { set, world } = await withMachine();
    world.faults.end = end;
    const error = await cloudErrorOf(set());
    expect([error.code, error.message]).toEqual(['E_CLOUD_END', expect.stringContaining(why)]);
    expect(error.message).toContain(`Cannot have Azure deallocate ${run} at 2030-01-01T06:0`);
  });

  it('where its provider is not registered, with what to do', async () => {
    const { set, azure } = await withMachine();
    azure.registered.delete('Microsoft.ComputeSchedule');
    const error = await cloudErrorOf(set());
    expect([error.code, error.reason, error.hint]).toEqual([
      'E_CLOUD_END',
      'MissingSubscriptionRegistration',
      'Run "az provider register --namespace Microsoft.ComputeSchedule".',
    ]);
  });

  it('without the permission, by its name', async () => {
    const { set, azure } = await withMachine();
    azure.grant('Microsoft.Compute/virtualMachines/read');
    const error = await cloudErrorOf(set());
    expect([error.code, error.hint]).toEqual(['E_CLOUD_END', expect.stringContaining('virtualMachinesSubmitDeallocate/action')]);
  });

  it.each([
    [15 * 86_400, 'more than 14 days'],
    [-60, 'has passed'],
  ])('%s s from now', async (seconds, why) => {
    const { set, world, azure } = await withMachine();
    const before = azure.calls.length;
    const error = await cloudErrorOf(set({ expires: Math.floor(world.now() / 1000) + seconds }));
    expect([error.code, error.message, azure.calls.length - before]).toEqual(['E_CLOUD_END', expect.stringContaining(why), 0]);
  });

  it.each([
    { results: [] },
    {},
    { results: [{}, {}] },
    { results: [{ operation: null }] },
    { results: [{ operation: { operationId: 'x', state: 'Scheduled' } }] },
    { results: [{ operation: { operationId: 'x', state: 'Scheduled', opType: 'Start', deadline: '2030-01-01T06:00:00Z' } }] },
  ])('an answer without it: %j', async (json) => {
    const { set, azure } = await withMachine();
    azure.fail({ at: /GetOperationStatus/, how: { status: 200, code: '', json } });
    expect((await cloudErrorOf(set())).code).toBe('E_CLOUD_END');
  });

  it.each([429, 503])('for now, with %s: the caller asks again', async (status) => {
    const { set, azure } = await withMachine();
    for (const at of [/SubmitDeallocate/, /GetOperationStatus/]) {
      azure.fail({ at, how: { status, code: 'Busy' } });
      const { code, retry } = await cloudErrorOf(set());
      expect([code === 'E_CLOUD_END', retry]).toEqual([false, true]);
    }
    expect(await set()).toContain('Microsoft.ComputeSchedule');
  });

  it('no answer at all', async () => {
    const { set, azure } = await withMachine();
    azure.fail({ at: /SubmitDeallocate/, how: 'lost' });
    expect((await cloudErrorOf(set())).code).toBe('E_CLOUD_UNREACHABLE');
  });
});
