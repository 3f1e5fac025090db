/** Machines of Google Cloud on the stand-in, in virtual time. */
import { expect, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';

const anywhere = { places: [], everywhere: false };
const gone = { things: [], unknown: [] };

test('a machine is made with its labels, its end and its disk, and is gone after it was destroyed', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  expect(made).toEqual({ id: wanted.run, place: 'us-central1-a', zone: 'us-central1-a' });
  const holds = await done(cloud.setEnd(wanted, made, never));
  expect(holds).toBe('Compute Engine deletes it at 2030-01-01T06:00:20.000Z (terminationTimestamp)');
  const told = { run: wanted.run, host: 'burst', born: wanted.born, expires: wanted.expires };
  const listed = await done(cloud.list('lab-7', anywhere, never));
  expect(listed).toEqual({
    things: [
      { ...told, kind: 'machine', id: wanted.run, place: 'us-central1-a', state: 'running', offer: wanted.offer },
      { ...told, kind: 'disk', id: wanted.run, place: 'us-central1-a', state: 'running', offer: null },
    ],
    unknown: [],
  });
  // Answers have only what is read of them, not the text for cloud-init with its join token.
  const answers = gcp.requests.flatMap(({ method, answer }) => (method === 'GET' ? [JSON.stringify(answer)] : []));
  expect(answers.filter((text) => /user-data|#cloud-config/.test(text))).toEqual([]);
  await done(cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, never));
  expect((await done(cloud.list('lab-7', anywhere, never))).things[0]).toMatchObject({ kind: 'machine', state: 'ending' });
  await pass(30_000);
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual(gone);
  // Again, as the controller does when it is not sure.
  await done(cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, never));
  expect([gcp.machines(), gcp.disks()]).toEqual([[], []]);
});

test('nothing on the machine is of use to a job', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  await done(cloud.create(order(), never));
  const sent = gcp.requests.find(({ method, url }) => method === 'POST' && url.pathname.endsWith('/instances'))?.body;
  expect(sent).toMatchObject({
    serviceAccounts: [],
    shieldedInstanceConfig: { enableSecureBoot: true, enableVtpm: true, enableIntegrityMonitoring: true },
    scheduling: { onHostMaintenance: 'TERMINATE', automaticRestart: false, instanceTerminationAction: 'DELETE' },
  });
  expect(JSON.stringify(sent)).toContain('{"key":"block-project-ssh-keys","value":"TRUE"}');
  expect(JSON.stringify(sent)).not.toContain('ya29.');
});

test('an image that has everything boots without Secure Boot, which would refuse a driver that nobody signed', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  await done(cloud.create(order({ image: { from: 'acme-images/gpu-base', has: 'everything' } }), never));
  expect(gcp.requests.find(({ url }) => url.pathname.endsWith('/instances'))?.body).toMatchObject({
    shieldedInstanceConfig: { enableSecureBoot: false, enableVtpm: true },
  });
});

test('Google itself deletes a machine at its end', async () => {
  const ends: string[] = [];
  const { cloud, gcp, done, pass, order } = await gcpWorld({ hooks: { onEnd: (_, why) => void ends.push(why) } });
  await done(cloud.create(order(), never));
  await pass(6 * 3_600_000 - 60_000);
  expect(gcp.machines()).toHaveLength(1);
  await pass(120_000);
  expect([gcp.machines(), gcp.disks(), ends]).toEqual([[], [], ['end of life']]);
});

test('a machine whose guest powers off is stopped, has no end any more, and is listed until it is destroyed', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  for (const machine of gcp.machines()) gcp.guestShutdown(machine);
  await pass(12 * 3_600_000);
  const { things } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.map(({ kind, state }) => [kind, state])).toEqual([
    ['machine', 'stopped'],
    ['disk', 'running'],
  ]);
  await expect(done(cloud.setEnd(wanted, made, never))).rejects.toMatchObject({ code: 'E_CLOUD_END' });
  await done(cloud.destroy({ kind: 'machine', id: wanted.run, place: 'us-central1-a' }, never));
  await pass(30_000);
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual(gone);
});

test('Spot is asked for by name, and takes a machine away for good', async () => {
  const notices: string[] = [];
  const { cloud, gcp, done, pass, order } = await gcpWorld({ hooks: { onNotice: ({ name }) => void notices.push(name) } });
  const wanted = order({ offer: { type: 'n1-standard-4/nvidia-tesla-t4', spot: true, zone: 'us-central1-b' } });
  const made = await done(cloud.create(wanted, never));
  await done(cloud.setEnd(wanted, made, never));
  const listed = await done(cloud.list('lab-7', anywhere, never));
  expect(listed.things[0]?.offer).toEqual(wanted.offer);
  for (const machine of gcp.machines()) gcp.preempt(machine);
  await pass(60_000);
  expect([notices, await done(cloud.list('lab-7', anywhere, never))]).toEqual([[wanted.run], gone]);
});

test('GPUs that are built in, several attached ones, and none at all are offers as the config writes them', async () => {
  const { cloud, done, order } = await gcpWorld();
  const types = ['g2-standard-4', 'n1-standard-8/nvidia-tesla-t4:2', 'n1-standard-4'];
  for (const type of types) await done(cloud.create(order({ offer: { type, spot: false, zone: 'us-central1-a' } }), never));
  const { things } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.flatMap(({ offer }) => offer?.type ?? [])).toEqual(types);
});

test.each([
  ['missing', /it has no "terminationTimestamp" \(RUNNING\)/],
  ['late', /it says 2030-01-02T06:00:20.000Z, which is later than 2030-01-01T06:00:00.000Z/],
] as const)('an end that Google does not confirm (%s) is an error', async (how, why) => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.faults.end = how;
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  await expect(done(cloud.setEnd(wanted, made, never))).rejects.toMatchObject({
    code: 'E_CLOUD_END',
    message: expect.stringMatching(why),
  });
});

test('with "death_date: manager-only" no end is asked for', async () => {
  const { gcp, done, order, another } = await gcpWorld();
  const cloud = await another({ deathDate: 'manager-only' });
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  expect(await done(cloud.setEnd(wanted, made, never))).toBe('onejob alone ("death_date: manager-only")');
  expect(gcp.machines()[0]).toMatchObject({ endsAt: null, wanted: { maxRun: null, onEnd: null } });
  // Spot must not leave a stopped machine with its disk.
  await done(cloud.create(order({ offer: { ...wanted.offer, spot: true } }), never));
  expect(gcp.machines()[1]).toMatchObject({ wanted: { maxRun: null, onEnd: 'DELETE' } });
});

test('a lifetime that Google does not take is refused before anything is sent', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  const { born } = order();
  for (const expires of [born + 10, born + 121 * 86_400])
    await expect(done(cloud.create(order({ expires }), never))).rejects.toMatchObject({ code: 'E_CLOUD_REQUEST' });
  expect(gcp.requests).toEqual([]);
});

test('machines, disks and addresses are listed by themselves, and others with similar labels never', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const wanted = order();
  await done(cloud.create(wanted, never));
  await done(cloud.create(order({ owner: 'lab-77' }), never));
  await done(cloud.create(order({ owner: 'other' }), never));
  gcp.keepAddress('us-central1', 'kept', { 'onejob-owner': 'lab-7', 'onejob-run': wanted.run });
  gcp.keepAddress('us-central1', 'foreign', { owner: 'lab-7' });
  const [machine] = gcp.machines();
  if (machine !== undefined) machine.labels['onejob-expires'] = 'never';
  const { things } = await done(cloud.list('lab-7', anywhere, never));
  expect(things.map(({ kind, id, run, expires }) => [kind, id, run, expires])).toEqual([
    ['machine', wanted.run, wanted.run, null],
    ['disk', wanted.run, wanted.run, wanted.expires],
    ['address', 'kept', wanted.run, null],
  ]);
  gcp.faults.diskSurvives = true;
  for (const { kind, id, place } of things) {
    await done(cloud.destroy({ kind, id, place }, never)).catch(() => {});
    await pass(30_000);
  }
  expect(await done(cloud.list('lab-7', anywhere, never))).toEqual(gone);
  expect([gcp.machines().length, gcp.addresses().length]).toEqual([2, 1]);
});

test('an owner of digits only is found too', async () => {
  const { cloud, done, order } = await gcpWorld();
  await done(cloud.create(order({ owner: '2026' }), never));
  expect((await done(cloud.list('2026', anywhere, never))).things).toHaveLength(2);
});

test('a list is read to its last page', async () => {
  const { cloud, done, order } = await gcpWorld({ pageSize: 2 });
  for (let count = 0; count < 5; count++)
    await done(cloud.create(order({ offer: { type: 'n1-standard-4', spot: false, zone: 'us-central1-a' } }), never));
  const { things, unknown } = await done(cloud.list('lab-7', anywhere, never));
  expect([things.length, unknown]).toEqual([10, []]);
});

test('the console is the end of the serial port', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  const made = await done(cloud.create(order(), never));
  const [machine] = gcp.machines();
  if (machine !== undefined) machine.console = `${'x'.repeat(100_000)}\nCloud-init finished\n`;
  const text = await done(cloud.console(made, never));
  expect([text.length, text.endsWith('Cloud-init finished\n')]).toEqual([65_536, true]);
  await expect(done(cloud.console({ id: 'onejob-0', place: 'us-central1-a' }, never))).rejects.toMatchObject({
    reason: 'notFound',
  });
});

test('zones are those of the region with the type and its GPU, in the order of the config', async () => {
  const { cloud, gcp, done, another } = await gcpWorld();
  expect(await done(cloud.zones('n1-standard-4/nvidia-tesla-t4', never))).toEqual([
    'us-central1-a',
    'us-central1-b',
    'us-central1-f',
  ]);
  expect(await done(cloud.zones('g2-standard-4', never))).toEqual(['us-central1-a', 'us-central1-b', 'us-central1-c']);
  const before = gcp.requests.length;
  await done(cloud.zones('g2-standard-4', never));
  expect(gcp.requests).toHaveLength(before);
  const some = await another({ zones: ['us-central1-f', 'us-central1-c', 'us-central1-a'] });
  expect(await done(some.zones('n1-standard-4/nvidia-tesla-t4', never))).toEqual(['us-central1-f', 'us-central1-a']);
  await expect(done(some.zones('a3-highgpu-8g', never))).rejects.toMatchObject({
    code: 'E_CLOUD_REQUEST',
    hint: 'Look at the name of the type.',
  });
  const west = await another({ region: 'us-west1' });
  await expect(done(west.zones('a2-highgpu-1g', never))).rejects.toThrow(
    'Cannot find a zone with a2-highgpu-1g: there is none in us-west1 for acme-ci.',
  );
});

test('a zone that cannot be reached is left out, and looked at again the next time', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  gcp.faults.unreachable = ['us-central1-a'];
  expect(await done(cloud.zones('g2-standard-4', never))).toEqual(['us-central1-b', 'us-central1-c']);
  gcp.clearFaults();
  expect(await done(cloud.zones('g2-standard-4', never))).toContain('us-central1-a');
});

test('prices are estimates with a day, for what people use', async () => {
  const { cloud } = await gcpWorld();
  const price = (type: string, spot: boolean) => cloud.price({ type, spot }, never);
  expect(await price('n1-standard-4/nvidia-tesla-t4:2', false)).toEqual({ perHour: 0.89, asOf: '2026-11-01' });
  expect((await price('g2-standard-4', true))?.perHour).toBeLessThan((await price('g2-standard-4', false))?.perHour ?? 0);
  expect(await price('a4-highgpu-8g', false)).toBeNull();
});
