/** Whatever goes wrong: what the adapter says of a machine is true, and two complete lists without it mean that it is gone. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { azureWorld, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import { CloudError, type Thing, thingKinds } from '../../ports/cloud.ts';

const scope = { places: [], everywhere: false };
const size = 'Standard_NC4as_T4_v3';

/** What makes a machine most often. */
const at = fc.constantFrom(
  ...[/^PUT \S+virtualMachines/, /^PUT \S+virtualMachines/, /^PUT \S+virtualMachines/, /\/operations\//],
  ...[
    /oauth2/,
    /^PUT \S+resourceGroups\/[^/]+\?/,
    /^PUT \S+virtualMachines/,
    /\/operations\//,
    /^DELETE/,
    /^DELETE \S+virtualMachines/,
  ],
  ...[/resourcegroups\?/, /virtualMachines\?/, /statusOnly/, /\/resources\?/, /SubmitDeallocate/, /GetOperationStatus/, /./],
);
const how = fc.constantFrom(
  ...(['lost', 'reset', 'silent'] as const),
  ...[
    { status: 500, code: 'InternalServerError' },
    { status: 500, code: 'InternalServerError', isDone: true },
    { status: 503, code: 'ServerTimeout', isDone: true },
    { status: 429, code: 'TooManyRequests', headers: { 'Retry-After': '7' } },
    { status: 401, code: 'ExpiredAuthenticationToken' },
    { status: 403, code: 'AuthorizationFailed' },
    { status: 409, code: 'AllocationFailed' },
    { status: 200, code: '', json: 'a page' },
  ],
);
const day = fc.record({
  faults: fc.array(fc.record({ at, how, times: fc.integer({ min: 1, max: 3 }) }), { maxLength: 4 }),
  exhausted: fc.boolean(),
  isMute: fc.boolean(),
  lyingRemovals: fc.nat(2),
  blockedGroups: fc.nat(2),
  survivingDisks: fc.nat(2),
  lateInLists: fc.constantFrom(0, 0, 90_000),
  skew: fc.constantFrom(0, 600_000, -600_000),
  spot: fc.boolean(),
  evicted: fc.boolean(),
});

const known = (error: unknown): CloudError => {
  if (error instanceof CloudError) return error;
  throw error;
};

it('holds on every bad day', { timeout: 120_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(day, async ({ faults, exhausted, spot, evicted, ...wrong }) => {
      const one = azureWorld();
      const { azure, world, cloud, settled, pass } = one;
      Object.assign(world.faults, wrong);
      if (exhausted) world.faults.exhausted.add(size);
      for (const fault of faults) azure.fail(fault);
      const order = one.order({ offer: { type: size, spot, zone: null } });
      const made = await settled(cloud.create(order, patient)).catch(known);
      await pass(120_000);
      expect(azure.calls.filter((call) => /^PUT \S+virtualMachines/.test(call)).length).toBeLessThanOrEqual(1);
      if (!(made instanceof CloudError)) expect(world.billed().length).toBe(1);
      else if (!made.isAmbiguous) expect([world.billed(), made.message]).toEqual([[], made.message]);
      if (!(made instanceof CloudError)) {
        const held = await settled(cloud.setEnd(order, made, patient)).catch(known);
        const ends = [...world.ends.values()].filter(({ deadline }) => deadline === order.expires * 1000);
        if (!(held instanceof CloudError)) expect(ends.length).toBeGreaterThan(0);
      }
      if (evicted) for (const machine of world.machines()) if (machine.spot) world.preempt(machine);
      await pass(90_000);

      let complete = 0;
      for (let round = 0; complete < 2 && round < 60; round += 1) {
        const listed = await settled(cloud.list(owner, scope, patient)).catch(known);
        if (listed instanceof CloudError || listed.unknown.length > 0) complete = 0;
        else complete = listed.things.length === 0 ? complete + 1 : 0;
        const things: readonly Thing[] = listed instanceof CloudError ? [] : listed.things;
        for (const kind of thingKinds)
          for (const thing of things.filter((each) => each.kind === kind && each.run === run))
            await settled(cloud.destroy(thing, patient)).catch(known);
        await pass(60_000);
      }
      expect([complete, world.billed(), world.resources.size, world.groups.size]).toEqual([2, [], 0, 0]);
    }),
    { numRuns: 150 },
  );
});
