/** What the stand-in for Compute Engine refuses, as Google does, and what it can be made to do wrong. */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { instanceOf } from '../../../src/clouds/gcp/order.ts';
import { gcpConfig, gcpWorld, never } from '../../kit/gcp.ts';

type Json = Record<string, unknown>;

async function world() {
  const made = await gcpWorld({ asksForToken: false });
  const { gcp, order } = made;
  const body = (): Json => structuredClone(instanceOf(order(), 'us-central1-a', gcpConfig, gcp.now() / 1000)) as unknown as Json;
  const call = async (method: string, path: string, sent?: unknown, headers: Record<string, string> = {}) => {
    const init = {
      method,
      headers: { 'Content-Type': 'application/json', ...headers },
      body: sent === undefined ? null : JSON.stringify(sent),
    };
    const answer = await gcp.fetch(`https://compute.googleapis.com/compute/v1/projects/acme-ci/${path}`, init);
    return {
      status: answer.status,
      json: (await answer.json()) as { error?: { message: string; errors: { reason: string }[] } } & Json,
    };
  };
  const insert = (sent: unknown, id: string = randomUUID()) => call('POST', `zones/us-central1-a/instances?requestId=${id}`, sent);
  return { ...made, body, call, insert };
}

/** Changes one field, by its path. */
function changed(body: Json, path: string, value: unknown): Json {
  const keys = path.split('.');
  const last = keys.pop() ?? '';
  let at: Json = body;
  for (const key of keys) at = at[key] as Json;
  if (value === undefined) delete at[last];
  else at[last] = value;
  return body;
}

test.each([
  ['gpu', 1, 'Unknown name "gpu"'],
  ['name', 'Onejob', "field 'resource.name'"],
  ['machineType', undefined, 'Required field'],
  ['machineType', 'projects/acme-ci/zones/us-central1-b/machineTypes/n1-standard-4', 'It is not in zone us-central1-a'],
  ['machineType', 'projects/acme-ci/zones/us-central1-a/machineTypes/n9-standard-4', 'does not exist in zone'],
  ['guestAccelerators.0.acceleratorType', 'projects/acme-ci/zones/us-central1-a/acceleratorTypes/nvidia-b200', 'was not found'],
  ['disks.0.initializeParams.diskSizeGb', 50, "field 'resource.disks[0].initializeParams.diskSizeGb'"],
  ['disks.0.initializeParams.diskSizeGb', '5', 'cannot be smaller than the image size (20 GB)'],
  ['disks.0.initializeParams.sourceImage', 'projects/acme-images/global/images/nothing', 'image resource cannot be found'],
  ['scheduling.maxRunDuration.seconds', 3600, "field 'resource.scheduling.maxRunDuration.seconds'"],
  ['scheduling.maxRunDuration.seconds', '29', 'from 30 seconds to 120 days'],
  ['scheduling.instanceTerminationAction', undefined, 'You must specify an instance termination action'],
  ['scheduling.instanceTerminationAction', 'REMOVE', 'Expected one of DELETE, STOP'],
  ['scheduling.maxRunDuration', undefined, 'has the standard provisioning model'],
  ['scheduling.onHostMaintenance', 'MIGRATE', 'do not support live migration'],
  ['networkInterfaces.0.subnetwork', 'projects/acme-ci/regions/us-central1/subnetworks/none', 'was not found'],
  ['labels.Onejob', 'x', 'Label keys are invalid'],
  ['labels.onejob-host', 'Burst', "field 'resource.labels.onejob-host'"],
  ['metadata.items.0.value', 'x'.repeat(262_145), 'Metadata is too large'],
])('an insert with %s = %j is refused', async (path, value, why) => {
  const { gcp, body, insert } = await world();
  const { status, json } = await insert(changed(body(), path, value));
  expect([status >= 400 && status < 500, gcp.machines()]).toEqual([true, []]);
  expect(json.error?.message).toContain(why);
});

test.each(['1', '00000000-0000-0000-0000-000000000000'])('request id %s is refused', async (id) => {
  const { body, insert } = await world();
  expect((await insert(body(), id)).json.error?.message).toContain('Must be a UUID');
});

test('the same request id is the same operation in its zone', async () => {
  const { gcp, body, insert } = await world();
  const [id, sent] = [randomUUID(), body()];
  const [first, again] = [await insert(sent, id), await insert(sent, id)];
  expect([again.json.name, again.json.clientOperationId, gcp.machines().length]).toEqual([first.json.name, id, 1]);
});

test('the operation of a delete runs for as long as the machine is there, whatever the clock says', async () => {
  const { gcp, body, call, insert, pass } = await world();
  await insert(body());
  await pass(60_000);
  const name = gcp.machines()[0]?.name;
  const { json: begun } = await call('DELETE', `zones/us-central1-a/instances/${name}?requestId=${randomUUID()}`);
  const status = async () => (await call('GET', `zones/us-central1-a/operations/${begun.name}`)).json.status;
  gcp.faults.skew = 3_600_000;
  expect([gcp.machines().length, await status()]).toEqual([1, 'RUNNING']);
  await pass(600_000);
  expect([gcp.machines().length, await status()]).toEqual([0, 'DONE']);
});

test('parameters and filters that are not in the API are refused', async () => {
  const { call } = await world();
  const said = async (path: string, headers = {}) => (await call('GET', path, undefined, headers)).json.error?.message ?? '';
  expect(await said('aggregated/instances?retry=1')).toContain('Unknown name "retry"');
  expect(await said('aggregated/instances?filter=labels.a%20eq%20b')).toContain('Invalid list filter expression');
  expect(await said('aggregated/instances?filter=(labels.a%3D%22b%22)%20(name%3Dx)')).toBe('');
  expect(await said('aggregated/instances?returnPartialSuccess=true')).toBe('');
  const dated = { 'X-Goog-Api-Version': '2026-09-01' };
  expect(await said('aggregated/instances?returnPartialSuccess=true', dated)).toContain('Unknown name "returnPartialSuccess"');
});

test('a zone that cannot be reached fails the whole list, unless the caller or its version of the API takes a part', async () => {
  const { gcp, call } = await world();
  gcp.faults.unreachable = ['us-central1-b'];
  expect((await call('GET', 'aggregated/disks')).status).toBe(503);
  const parts = [
    await call('GET', 'aggregated/disks?returnPartialSuccess=true'),
    await call('GET', 'aggregated/disks', undefined, { 'X-Goog-Api-Version': '2026-09-01' }),
  ];
  for (const { json } of parts)
    expect(json.items).toMatchObject({
      'zones/us-central1-a': { warning: { code: 'NO_RESULTS_ON_PAGE' } },
      'zones/us-central1-b': { warning: { code: 'UNREACHABLE' } },
    });
});

test('a machine reads its own metadata, with the header that Google asks for', async () => {
  const { gcp, cloud, done, order } = await world();
  const wanted = order({ userData: '#cloud-config\nruncmd: []\n' });
  await done(cloud.create(wanted, never));
  const read = async (key: string, headers: Record<string, string> = { 'Metadata-Flavor': 'Google' }) => {
    const answer = await gcp.fetch(`http://localhost/machines/${wanted.run}/computeMetadata/v1/${key}`, { headers });
    return [answer.status, await answer.text()];
  };
  expect(await read('instance/attributes/user-data')).toEqual([200, wanted.userData]);
  expect(await read('instance/preempted')).toEqual([200, 'FALSE']);
  for (const machine of gcp.machines()) gcp.preempt(machine);
  expect(await read('instance/preempted')).toEqual([200, 'TRUE']);
  expect((await read('instance/preempted', {}))[0]).toBe(403);
  expect((await read('instance/service-accounts/default/token'))[0]).toBe(404);
});

test('a call without a valid token is refused, and tokens end', async () => {
  const { gcp, pass } = await gcpWorld();
  const headers = { Authorization: `Bearer ${gcp.issue()}` };
  const url = 'https://compute.googleapis.com/compute/v1/projects/acme-ci';
  const statuses = [(await gcp.fetch(url)).status, (await gcp.fetch(url, { headers })).status];
  await pass(3_600_001);
  expect([...statuses, (await gcp.fetch(url, { headers })).status]).toEqual([401, 200, 401]);
});
