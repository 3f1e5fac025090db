/**
 * Azure, as far as it can be had without an account: Microsoft's own clients drive the stand-in and see what onejob made there, and
 * their models and the ARM schema know what onejob sends.
 */
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Agent, fetch as undiciFetch } from 'undici';
import { describe, expect, test } from 'vitest';
import { createAzure } from '../../src/clouds/azure/azure.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { azureConfig, cloudErrorOf, orderOf, owner, patient, run, silent } from '../kit/azure-cloud.ts';
import { azureCloud, clientSecret, location, subscription } from '../standins/azure-cloud/azure-cloud.ts';
import { type ArmSchemas, armProblems } from '../support/arm-schema.ts';
import { azurePython } from '../support/azure-clients.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { createAuthority } from '../support/tls-front.ts';

const start = promisify(execFile);
const quick = { allocate: 200, boot: 200, report: 200, removeMachine: 200, removeGroup: 300, late: 100 };
const id = `/subscriptions/${subscription}/resourceGroups/${run}/providers/Microsoft.Compute/virtualMachines/${run}`;

/** Both clients speak TLS: Microsoft's refuse to send a token without it. */
async function lab() {
  await using stack = new AsyncDisposableStack();
  const authority = createAuthority(stack.use(scratch()).path);
  const azure = azureCloud({ timing: quick, retryAfter: 1 });
  stack.use(await azure.serve(authority.issue('127.0.0.1')));
  const dispatcher = new Agent({ connect: { ca: authority.certificate } });
  stack.defer(() => dispatcher.close());
  const trusting = ((url: string, init: object) => undiciFetch(url, { ...init, dispatcher })) as unknown as typeof fetch;
  const cloud = createAzure(
    { ...azureConfig, endpoint: azure.url, loginEndpoint: azure.url },
    { clock: systemClock, fetch: trusting, log: silent, variables: { AZURE_SECRET: clientSecret }, version: '1.2.3' },
  );
  const order = orderOf(cloud, Math.floor(Date.now() / 1000), { offer: { type: 'Standard_NC4as_T4_v3', spot: true, zone: null } });
  const everything = stack.move();
  return {
    azure,
    cloud,
    order,
    /** Of the first request that fits. */
    body: (pattern: RegExp): object =>
      JSON.parse(
        azure.sent
          .find((one) => pattern.test(one))
          ?.split('\n')
          .at(-1) ?? '',
      ),
    async ask(what: 'check' | 'drive' | 'read', more: object = {}) {
      const given = { url: azure.url, ca: authority.file, subscription, location, owner, group: run, ...more };
      const script = join(import.meta.dirname, '..', 'support', 'azure-clients.py');
      const asked = start(azurePython, [script, what], { env: { PATH: process.env.PATH, AZURE_TOKEN: azure.token() } });
      asked.child.stdin?.end(JSON.stringify(given));
      return JSON.parse((await asked).stdout);
    },
    [Symbol.asyncDispose]: () => everything.disposeAsync(),
  };
}

/** What onejob sends to make a machine and to have Azure hold its end. */
async function sentBy({ cloud, order, body }: Pick<Awaited<ReturnType<typeof lab>>, 'cloud' | 'order' | 'body'>) {
  const made = await cloud.create(order, patient);
  await cloud.setEnd(order, made, patient);
  return {
    made,
    bodies: {
      group: body(/^PUT \S+resourceGroups\/[^/]+\?/),
      machine: body(/^PUT \S+virtualMachines\//),
      end: body(/^POST \S+SubmitDeallocate/),
      status: body(/^POST \S+GetOperationStatus/),
    },
  };
}

describe.skipIf(lacks('azureClients', 'openssl'))("Microsoft's own clients of Azure", () => {
  test('know every field and value of what onejob sends, and see what it made', async () => {
    await using one = await lab();
    const { made, bodies } = await sentBy(one);
    expect(await one.ask('read')).toEqual({
      groups: [
        { name: run, location, tags: expect.objectContaining({ 'onejob-owner': owner, 'onejob-run': run }), state: 'Succeeded' },
      ],
      machines: [
        {
          id: made.id,
          size: 'Standard_NC4as_T4_v3',
          priority: 'Spot',
          eviction: 'Delete',
          disk: 'Delete',
          nics: ['Delete'],
          tags: expect.objectContaining({ 'onejob-owner': owner, 'onejob-run': run }),
        },
      ],
    });
    expect(await one.ask('check', { bodies })).toEqual({ group: [], machine: [], end: [], status: [] });
    const { properties } = bodies.machine as { properties: object };
    const wrong = { ...bodies.machine, properties: { ...properties, evictionPolicy: 'Vanish', maxRunDuration: 3600 } };
    expect(await one.ask('check', { bodies: { machine: wrong } })).toEqual({
      machine: [
        'machine.properties.evictionPolicy is not one of VirtualMachineEvictionPolicyTypes',
        'machine.properties.maxRunDuration is unknown',
      ],
    });
  });

  test('make, list, end and remove a machine at the stand-in with what onejob sends', async () => {
    await using model = await lab();
    const { bodies } = await sentBy(model);
    await using one = await lab();
    expect(await one.ask('drive', { bodies })).toEqual({
      group: [run, 'Succeeded'],
      machine: [id, 'Succeeded'],
      groups: [run],
      machines: [run],
      resources: [
        ...['Microsoft.Compute/disks', 'Microsoft.Compute/virtualMachines'],
        ...['Microsoft.Network/networkInterfaces', 'Microsoft.Network/publicIPAddresses'],
      ],
      power: [['ProvisioningState/succeeded', 'PowerState/running']],
      view: ['ProvisioningState/succeeded', 'PowerState/running'],
      console: `${one.azure.url}/bootdiagnostics/${run}.serialconsole.log`,
      end: ['Deallocate', 'PendingScheduling', new Date(model.order.expires * 1000).toISOString().replace('.000Z', '+00:00')],
      after: [],
      forced: 'UnsupportedForceDeletionResourceTypeInQueryString',
      gone: [404, 'ResourceGroupNotFound'],
    });
    expect(one.azure.world.groups.size).toBe(0);
  });

  test('hear of a failure that comes late as onejob does', async () => {
    await using model = await lab();
    const { bodies } = await sentBy(model);
    await using one = await lab();
    one.azure.world.faults.exhausted.add('Standard_NC4as_T4_v3');
    const { error } = await one.ask('drive', { bodies });
    expect(error.message).toContain('AllocationFailed');
    const ours = await cloudErrorOf(one.cloud.create({ ...one.order, run: 'onejob-fedcba9876543210' }, patient));
    expect([ours.code, ours.reason, ours.isAmbiguous]).toEqual(['E_CLOUD_CAPACITY', 'AllocationFailed', false]);
  });
});

const schemas = process.env.ONEJOB_ARM_SCHEMAS ?? '';
const schemaFile = join(schemas, 'Microsoft.Compute.json');
if (schemas === '')
  console.log(
    'Skipped: ONEJOB_ARM_SCHEMAS names no folder with Microsoft.Compute.json of 2025-04-01 (Azure/azure-resource-manager-schemas).',
  );

describe.skipIf(schemas === '' || lacks('openssl'))('the ARM schema of Azure', () => {
  test('accepts the machine that onejob asks for, and nothing invented', async () => {
    expect(existsSync(schemaFile)).toBe(true);
    const known = JSON.parse(readFileSync(schemaFile, 'utf8')) as ArmSchemas;
    await using one = await lab();
    // A template says in the resource what a request says in its address.
    const address = { name: run, type: 'Microsoft.Compute/virtualMachines', apiVersion: '2025-04-01' };
    const machine = { ...address, ...(await sentBy(one)).bodies.machine };
    expect(armProblems(known, 'virtualMachines', machine)).toEqual([]);
    const { properties } = machine as unknown as { properties: object };
    const wrong = { ...machine, properties: { ...properties, evictionPolicy: 'Vanish', maxRunDuration: 3600 } };
    expect(armProblems(known, 'virtualMachines', wrong)).toEqual([
      'virtualMachines.properties.evictionPolicy is not one of Deallocate, Delete',
      'virtualMachines.properties.maxRunDuration is unknown',
    ]);
  });
});
