/** Google Cloud as the config writes it, and what its calls need. */
import { expect, test } from 'vitest';
import { gcpWorld, never, planOf } from '../../../test/kit/gcp.ts';
import { strict } from '../../schema/strict.ts';
import { usualImage } from './image.ts';
import { parseType, typeProblem, typeText } from './machine-type.ts';
import { permissions } from './permissions.ts';
import { gcpKeys } from './schema.ts';
import { gcp } from './type.ts';

function resolved(written: unknown) {
  return gcp.resolve('google', strict(gcpKeys).parse(written));
}
function problems(written: unknown): string[] {
  const { error } = strict(gcpKeys).safeParse({ project: 'acme-ci', region: 'us-central1', ...Object(written) });
  return error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ?? [];
}

test('a project and a region are enough', () => {
  expect(resolved({ project: 'acme-ci', region: 'us-central1' })).toEqual({
    name: 'google',
    type: 'gcp',
    project: 'acme-ci',
    region: 'us-central1',
    zones: null,
    credential: { kind: 'usual' },
    subnetwork: 'projects/acme-ci/regions/us-central1/subnetworks/default',
    hasExternalAddress: true,
    deathDate: 'cloud',
    endpoint: 'https://compute.googleapis.com',
  });
  expect(resolved({ project: 'acme-ci' })).toBeNull();
});

test('all of it', () => {
  const key = { kind: 'file', path: '/etc/onejob/gcp.json', expires: null };
  const config = resolved({
    project: 'example.com:acme-ci',
    region: 'europe-west4',
    zones: ['europe-west4-b'],
    network: 'ci',
    credentials: { file: { file: '/etc/onejob/gcp.json' } },
    external_ip: false,
    death_date: 'manager-only',
    endpoint: 'http://127.0.0.1:8080/',
  });
  expect(config).toEqual({
    name: 'google',
    type: 'gcp',
    project: 'example.com:acme-ci',
    region: 'europe-west4',
    zones: ['europe-west4-b'],
    credential: { kind: 'key', key },
    hasExternalAddress: false,
    deathDate: 'manager-only',
    subnetwork: 'projects/example.com:acme-ci/regions/europe-west4/subnetworks/ci',
    endpoint: 'http://127.0.0.1:8080',
  });
  expect(config === null ? [] : gcp.secrets(config)).toEqual([['credentials.file', key]]);
});

test.each([
  [{ network: 'projects/acme-net/global/networks/ci' }, 'projects/acme-net/regions/us-central1/subnetworks/ci'],
  [{ network: 'ci', subnetwork: 'gpu' }, 'projects/acme-ci/regions/us-central1/subnetworks/gpu'],
  [
    { subnetwork: 'projects/acme-net/regions/us-central1/subnetworks/gpu' },
    'projects/acme-net/regions/us-central1/subnetworks/gpu',
  ],
])('%o is one subnetwork', (written, subnetwork) => {
  expect(resolved({ project: 'acme-ci', region: 'us-central1', ...written })?.subnetwork).toBe(subnetwork);
});

test.each([
  [{ credentials: { command: ['gcloud', 'auth', 'print-access-token'] } }, 'command'],
  [{ credentials: { metadata: true } }, 'metadata'],
  [{}, 'usual'],
])('%o signs in by %s', (written, kind) => {
  expect(resolved({ project: 'acme-ci', region: 'us-central1', ...written })?.credential.kind).toBe(kind);
});

test.each([
  [{ region: 'us-central1-a' }, 'region: "us-central1-a" is not a region such as "us-central1"'],
  [{ zones: [] }, 'zones: is empty'],
  [{ zones: ['us-central1'] }, 'zones.0: "us-central1" is not a zone such as "us-central1-a"'],
  [{ endpoint: 'http://example.org' }, 'endpoint: expected an https address such as'],
  [{ death_date: 'never' }, 'death_date: expected "cloud" or "manager-only", found "never"'],
  [{ credentials: { file: '/etc/key.json' } }, 'credentials.file: name the place of the secret'],
  [{ credentials: {} }, 'credentials: write one of file, command, metadata'],
  [{ credentials: { metadata: false } }, 'credentials: write one of file, command, metadata'],
  [
    { credentials: { metadata: true, command: ['a'] } },
    'credentials: write one of file, command, metadata, not both command and metadata',
  ],
  [{ project: 'Acme' }, 'project: "Acme" is not the id of a project such as "acme-ci"'],
])('%o is refused', (written, message) => {
  expect(problems(written)).toEqual([expect.stringContaining(message)]);
});

test.each([
  [{ zones: ['us-central1-a', 'us-west1-b'] }, [[['zones', '1'], 'is us-west1-b, which is not in us-central1, the "region"']]],
  [
    { subnetwork: 'projects/acme-net/regions/us-west1/subnetworks/gpu' },
    [[['subnetwork'], 'is projects/acme-net/regions/us-west1/subnetworks/gpu, which is not in us-central1, the "region"']],
  ],
  [{ zones: ['us-central1-a'], subnetwork: 'gpu' }, []],
])('%o does not fit, or does', (written, found) => {
  const config = resolved({ project: 'acme-ci', region: 'us-central1', ...written });
  expect(config === null ? null : gcp.problems?.(config)).toEqual(found);
});

test.each([
  ['g2-standard-4', null],
  ['a2-highgpu-1g', null],
  ['n1-standard-4/nvidia-tesla-t4', null],
  ['n1-standard-4/nvidia-tesla-t4:4', null],
  ['n1-standard-4', null],
  ['n1-standard-4/nvidia-tesla-p4', 'has a P4, which is older than Turing'],
  ['n1-standard-4/nvidia-tesla-p100', 'has a P100, which is older than Turing'],
  ['n1-standard-4/nvidia-tesla-v100:8', 'has a V100, which is older than Turing'],
  ['g2-standard-4/nvidia-l4', 'whose GPUs are built in. Write g2-standard-4.'],
  ['e2-standard-4/nvidia-tesla-t4', 'attaches GPUs to N1 machines only'],
  ['g4dn.xlarge', 'is not a type of Compute Engine'],
  ['n1-standard-4/nvidia-tesla-t4:0', 'is not a type of Compute Engine'],
  ['', 'is not a type of Compute Engine'],
])('type %s', (type, why) => {
  if (why === null) expect(typeProblem(type)).toBeNull();
  else expect(typeProblem(type)).toContain(why);
});

test('a type that was read is written the same', () => {
  for (const text of ['g2-standard-4', 'n1-standard-4/nvidia-tesla-t4', 'n1-standard-4/nvidia-tesla-t4:2']) {
    const type = parseType(text);
    expect(type === null ? null : typeText(type)).toBe(text);
  }
});

test('its permissions are exactly those that its calls need', async () => {
  const { cloud, gcp: google, done, pass, order } = await gcpWorld();
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  await done(cloud.setEnd(wanted, made, never));
  await done(cloud.console(made, never));
  await done(cloud.deliver(made, 'stay 1 -', never));
  google.faults.diskSurvives = true;
  google.keepAddress('us-central1', 'kept', { 'onejob-owner': 'lab-7' });
  await done(cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, never));
  await pass(30_000);
  for (const { kind, id, place } of (await done(cloud.list('lab-7', { places: [], everywhere: true }, never))).things)
    await done(cloud.destroy({ kind, id, place }, never));
  const plan = planOf(wanted.offer.type, 'never');
  await done(cloud.preflight({ ...plan, image: usualImage }, never));
  await done(
    cloud.preflight({ ...plan, image: { from: 'projects/acme-images/global/images/gpu-base-7', has: 'everything' } }, never),
  );
  expect([...google.used].sort()).toEqual([...permissions]);
  expect([google.machines(), google.disks(), google.addresses()]).toEqual([[], [], []]);
});
