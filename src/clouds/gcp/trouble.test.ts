/** What Google Cloud does wrong, and what the adapter makes of it. Nothing here is tried again. */
import { expect, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';

const anywhere = { places: [], everywhere: false };
const insert = { method: 'POST', path: /\/instances\b/ };
const ofInserts = (requests: readonly { method: string; url: URL }[]) =>
  requests.filter(({ method, url }) => method === 'POST' && url.pathname.endsWith('/instances'));

test('a stockout comes in an operation that was accepted with 200, with the zones that have some', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.faults.stockout = { zones: ['us-central1-a'], available: ['us-central1-b', 'us-central1-f'] };
  await expect(done(cloud.create(order(), never))).rejects.toMatchObject({
    code: 'E_CLOUD_CAPACITY',
    reason: 'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS',
    isAmbiguous: false,
    retry: true,
    zones: ['us-central1-b', 'us-central1-f'],
    message: expect.stringMatching(
      /^Cannot create onejob-[0-9a-f]{16} \(n1-standard-4\/nvidia-tesla-t4, on demand, us-central1-a\): Compute Engine in acme-ci answered ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: .* It says that us-central1-b, us-central1-f had capacity\.$/,
    ),
  });
  expect([ofInserts(gcp.requests).length, gcp.machines()]).toEqual([1, []]);
});

test('a quota of zero is told apart from a lack of capacity, and named with its limit', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  if (gcp.catalog.quotas.global !== undefined) gcp.catalog.quotas.global.GPUS_ALL_REGIONS = 0;
  await expect(done(cloud.create(order(), never))).rejects.toMatchObject({
    code: 'E_CLOUD_QUOTA',
    reason: 'QUOTA_EXCEEDED',
    retry: false,
    isAmbiguous: false,
    message: expect.stringContaining(
      "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally. Quota GPUS-ALL-REGIONS: the limit is 0.",
    ),
    hint: expect.stringContaining('IAM & Admin, Quotas'),
  });
});

test.each([
  // What HTTP says, by `error.errors[].reason` (and the status, where there is none).
  [{ status: 503 }, 'E_CLOUD_CAPACITY', true],
  [{ status: 500 }, 'E_CLOUD_UNREACHABLE', true],
  [{ status: 429, reason: 'rateLimitExceeded' }, 'E_CLOUD_THROTTLED', false],
  [{ status: 403, reason: 'rateLimitExceeded' }, 'E_CLOUD_THROTTLED', false],
  [{ status: 403, reason: 'quotaExceeded' }, 'E_CLOUD_QUOTA', false],
  [{ status: 403, reason: 'forbidden', message: "Required 'compute.instances.create' permission" }, 'E_CLOUD_DENIED', false],
  [{ status: 403, reason: 'accessNotConfigured' }, 'E_CLOUD_ACCOUNT', false],
  [{ status: 403, reason: 'billingNotEnabled' }, 'E_CLOUD_ACCOUNT', false],
  [{ status: 412, reason: 'conditionNotMet' }, 'E_CLOUD_DENIED', false],
  [{ status: 400, reason: 'invalid' }, 'E_CLOUD_REQUEST', false],
  [{ status: 404, reason: 'notFound' }, 'E_CLOUD_REQUEST', false],
  [{ status: 409, reason: 'alreadyExists' }, 'E_CLOUD_ANSWER', true],
  [{ status: 302, reason: 'found' }, 'E_CLOUD_ANSWER', true],
  ['cut', 'E_CLOUD_UNREACHABLE', true],
  ['silent', 'E_CLOUD_UNREACHABLE', true],
] as const)('an insert that ends with %o is %s', async (how, code, isAmbiguous) => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.fail(insert, how);
  await expect(done(cloud.create(order(), never))).rejects.toMatchObject({ code, isAmbiguous });
  expect(ofInserts(gcp.requests)).toHaveLength(1);
});

test.each([
  ['RESOURCE_POOL_EXHAUSTED', false, 'E_CLOUD_CAPACITY'],
  ['ZONE_RESOURCE_POOL_EXHAUSTED', false, 'E_CLOUD_CAPACITY'],
  ['UNSUPPORTED_OPERATION', true, 'E_CLOUD_CAPACITY'],
  ['UNSUPPORTED_OPERATION', false, 'E_CLOUD_REQUEST'],
  ['QUOTA_EXCEEDED', false, 'E_CLOUD_QUOTA'],
  ['RESOURCE_OPERATION_RATE_EXCEEDED', false, 'E_CLOUD_THROTTLED'],
  ['IP_SPACE_EXHAUSTED', false, 'E_CLOUD_QUOTA'],
  ['PERMISSIONS_ERROR', false, 'E_CLOUD_DENIED'],
  ['CONDITION_NOT_MET', false, 'E_CLOUD_DENIED'],
  ['RESOURCE_NOT_FOUND', false, 'E_CLOUD_REQUEST'],
  ['INTERNAL_ERROR', false, 'E_CLOUD_UNREACHABLE'],
] as const)('an operation that ends with %s (Spot: %s) is %s', async (reason, spot, code) => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.faults.operation = { code: reason, message: 'Something about it.' };
  const offer = { type: 'n1-standard-4/nvidia-tesla-t4', spot, zone: 'us-central1-a' };
  await expect(done(cloud.create(order({ offer }), never))).rejects.toMatchObject({ code, reason, isAmbiguous: false });
});

test('an operation that failed without a word about it, or with details that are not understood, did fail', async () => {
  const { gcp, done, order, another } = await gcpWorld();
  const quotaInfo = { limit: 'four' };
  for (const error of [
    {},
    { errors: [] },
    { errors: [{ code: 'QUOTA_EXCEEDED', message: 'None.', errorDetails: [{ quotaInfo }] }] },
  ]) {
    const told = rewritten(gcp.fetch, (json, url) => (/operations/.test(url.pathname) ? { ...json, error } : json));
    const cloud = await another({}, { fetch: told });
    await expect(done(cloud.create(order(), never))).rejects.toMatchObject({ isAmbiguous: false });
  }
});

test('an answer that was lost is ambiguous, and the machine is in the list', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.fail({ ...insert, times: 1 }, 'lost');
  const wanted = order();
  await expect(done(cloud.create(wanted, never))).rejects.toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: true });
  const { things } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.map(({ run }) => run)).toEqual([wanted.run, wanted.run]);
});

test('the same call again, with the same token, makes no second machine', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  const wanted = order();
  await done(cloud.create(wanted, never));
  expect(await done(cloud.create(wanted, never))).toMatchObject({ id: wanted.run });
  await expect(done(cloud.create({ ...wanted, token: order().token }, never))).rejects.toMatchObject({
    code: 'E_CLOUD_ANSWER',
    isAmbiguous: true,
    reason: 'alreadyExists',
  });
  expect(gcp.machines()).toHaveLength(1);
});

test('looks at an operation may fail while it continues', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.fail({ path: /\/operations\//, times: 3 }, { status: 503 });
  await expect(done(cloud.create(order(), never))).resolves.toMatchObject({ place: 'us-central1-a' });
});

test('an operation that does not end leaves open what became of the machine', async () => {
  const { cloud, done, order, clock } = await gcpWorld({ times: { start: 3_600_000 } });
  const before = clock.now();
  await expect(done(cloud.create(order(), never))).rejects.toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: true });
  expect(clock.now() - before).toBeLessThan(200_000);
});

test('a machine that appears late in lists is still found later', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  gcp.faults.late = 120_000;
  await done(cloud.create(order(), never));
  const kinds = async () => (await done(cloud.list('lab-7', anywhere, never))).things.map(({ kind }) => kind);
  expect(await kinds()).toEqual(['disk']);
  await pass(120_000);
  expect(await kinds()).toEqual(['machine', 'disk']);
});

test('a delete that ends although the machine lives is seen in the list', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const { id, place } = await done(cloud.create(order(), never));
  gcp.faults.deleteLies = true;
  await done(cloud.destroy({ kind: 'machine', id, place }, never));
  await pass(60_000);
  expect((await done(cloud.list('lab-7', anywhere, never))).things[0]).toMatchObject({ kind: 'machine', state: 'running' });
});

test('a zone that cannot be reached is unknown, not empty', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  await done(cloud.create(order(), never));
  await done(cloud.create(order({ offer: { type: 'g2-standard-4', spot: false, zone: 'us-central1-b' } }), never));
  gcp.faults.unreachable = ['us-central1-a'];
  const { things, unknown } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.map(({ place }) => place)).toEqual(['us-central1-b', 'us-central1-b']);
  expect(unknown.toSorted()).toEqual([
    'addresses in region us-central1 (unreachable)',
    'disks in zone us-central1-a (unreachable)',
    'instances in zone us-central1-a (unreachable)',
  ]);
});

/** Whatever Google answers in a way that the stand-in does not. */
const rewritten =
  (act: typeof fetch, change: (json: Record<string, never>, url: URL) => unknown): typeof fetch =>
  async (input, init) => {
    const url = new URL(String(input));
    const answer = await act(url, init);
    return new Response(JSON.stringify(change((await answer.json()) as never, url)), {
      status: answer.status,
      headers: answer.headers,
    });
  };

test.each([
  [{ warning: { code: 'UNREACHABLE', message: 'Some.' } }, 'instances (unreachable)'],
  [{ unreachables: ['projects/acme-ci/zones/us-central1-b'] }, 'instances in zone us-central1-b (unreachable)'],
  [
    { items: { 'zones/us-central1-a': { warning: { code: 'LIST_OVERHEAD_QUOTA_EXCEED' } } } },
    'instances in zone us-central1-a (list overhead quota exceed)',
  ],
  [
    { items: { 'zones/us-central1-a': { instances: [{ name: 'x' }] } } },
    'instances in us-central1-a (an entry that cannot be read)',
  ],
])('a list that says %j is incomplete', async (said, line) => {
  const { gcp, done, another } = await gcpWorld();
  const told = rewritten(gcp.fetch, (json, url) => (url.pathname.endsWith('aggregated/instances') ? { ...json, ...said } : json));
  const cloud = await another({}, { fetch: told });
  expect((await done(cloud.list('lab-7', anywhere, never))).unknown).toEqual([line]);
});

test('whatever a filter lets through, things of others and global addresses are left out', async () => {
  const { gcp, done, order, another } = await gcpWorld();
  await done((await another({})).create(order({ owner: 'other' }), never));
  const blind: typeof fetch = (input, init) => gcp.fetch(String(input).replace(/filter=[^&]*/, 'filter='), init);
  const labels = { 'onejob-owner': 'lab-7' };
  const address = { items: { global: { addresses: [{ name: 'front', status: 'RESERVED', labels }] } } };
  const cloud = await another(
    {},
    { fetch: rewritten(blind, (json, url) => (url.pathname.endsWith('addresses') ? address : json)) },
  );
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual({ things: [], unknown: [] });
});

test('an end at which Google would only stop the machine is not confirmed', async () => {
  const { gcp, done, order, another } = await gcpWorld();
  const told = rewritten(gcp.fetch, (json, url) =>
    /instances\/onejob-/.test(url.pathname) ? { ...json, scheduling: { instanceTerminationAction: 'STOP' } } : json,
  );
  const cloud = await another({}, { fetch: told });
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  await expect(done(cloud.setEnd(wanted, made, never))).rejects.toThrow(
    'its "instanceTerminationAction" is STOP instead of DELETE',
  );
});

test('a second page that does not come makes the list incomplete, and keeps the first', async () => {
  const { cloud, gcp, done, order } = await gcpWorld({ pageSize: 1 });
  await done(cloud.create(order(), never));
  await done(cloud.create(order(), never));
  gcp.fail({ path: /aggregated\/instances.*pageToken/ }, { status: 429, reason: 'rateLimitExceeded', message: 'Slow down.' });
  const { things, unknown } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.map(({ kind }) => kind).toSorted()).toEqual(['disk', 'disk', 'machine']);
  expect(unknown).toEqual(['instances (Cannot list instances: Compute Engine in acme-ci answered rateLimitExceeded: Slow down)']);
});

test('a list that is denied is unknown, and says which permission is missing', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  gcp.faults.denied = ['compute.disks.list'];
  const { unknown } = await done(cloud.list('lab-7', anywhere, never));
  expect(unknown).toEqual([expect.stringMatching(/^disks \(.*Required 'compute.disks.list' permission/)]);
});

test('a policy against external addresses says what to do instead', async () => {
  const { gcp, done, order, cloud, another } = await gcpWorld();
  gcp.faults.noAddresses = true;
  await expect(done(cloud.create(order(), never))).rejects.toMatchObject({
    code: 'E_CLOUD_DENIED',
    hint: expect.stringContaining('external_ip: false'),
  });
  await done((await another({ hasExternalAddress: false })).create(order(), never));
});

test('a disk that is in use is not removed, and one that outlived its machine is', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const { id, place } = await done(cloud.create(order(), never));
  gcp.faults.diskSurvives = true;
  await expect(done(cloud.destroy({ kind: 'disk', id, place }, never))).rejects.toMatchObject({
    code: 'E_CLOUD_ANSWER',
    retry: true,
  });
  await done(cloud.destroy({ kind: 'machine', id, place }, never));
  await pass(30_000);
  expect(gcp.disks()).toHaveLength(1);
  await done(cloud.destroy({ kind: 'disk', id, place }, never));
  expect(gcp.disks()).toEqual([]);
});

test('a clock that is ten minutes off changes neither sign-in nor the end of a machine', async () => {
  const { cloud, gcp, done, order, another } = await gcpWorld();
  for (const skew of [600_000, -600_000]) {
    gcp.faults.skew = skew;
    gcp.revoke();
    await done(cloud.list('lab-7', anywhere, never));
    expect(cloud.skew()).toBe(skew);
    const wanted = order();
    const made = await done(cloud.create(wanted, never));
    await done(cloud.setEnd(wanted, made, never));
    const machine = gcp.machines().find(({ name }) => name === wanted.run);
    expect(Math.abs((machine?.endsAt ?? 0) / 1000 - wanted.expires)).toBeLessThan(60);
    // One that has not heard from Google yet learns from the refusal how late it is.
    expect(await done((await another({})).list('nobody', anywhere, never))).toEqual({ things: [], unknown: [] });
  }
});

test('a caller that gives up while a machine is being made hears that it may exist', async () => {
  const { cloud, gcp, done, order, pass } = await gcpWorld();
  const stop = new AbortController();
  const call = cloud.create(order(), stop.signal).catch((error: unknown) => error);
  await pass(5_000);
  stop.abort(new Error('shutdown'));
  expect(await done(call)).toMatchObject({ isAmbiguous: true });
  expect(gcp.machines()).toHaveLength(1);
});
