/** What `onejob cloud check` finds out about a project, on the stand-in. */
import { expect, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';
import type { Finding } from '../../base/finding.ts';
import type { HostPlan } from '../../ports/cloud.ts';
import { usualImage } from './image.ts';
import { permissions } from './permissions.ts';

const plan: HostPlan = {
  host: 'burst',
  types: ['n1-standard-4/nvidia-tesla-t4', 'g2-standard-4'],
  spot: 'never',
  image: usualImage,
  disk: 50,
  max: 4,
  lifetime: 6 * 3_600_000,
  budget: null,
  prices: {},
};
const lines = (found: readonly Finding[]): string[] =>
  found.map(({ level, subject, message }) => `${level} ${subject}: ${message}`);

test('a project where all is right', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  const found = lines(await done(cloud.preflight(plan, never)));
  expect(found).toEqual([
    'ok google: credential: Signs in as service account onejob@acme-ci.iam.gserviceaccount.com.',
    `ok google: permissions: ${permissions.length} of ${permissions.length} permissions are granted.`,
    'ok google: network: Machines join subnetwork default of network default, each with an external address.',
    'ok burst: n1-standard-4/nvidia-tesla-t4: It is in us-central1-a, us-central1-b, us-central1-f.',
    'ok burst: g2-standard-4: It is in us-central1-a, us-central1-b, us-central1-c.',
    'ok burst: quota GPUS_ALL_REGIONS: Needs 4 of all regions together; the limit is 16, and 0 are in use.',
    'ok burst: quota NVIDIA_T4_GPUS: Needs 4 in us-central1; the limit is 4, and 0 are in use.',
    'ok burst: quota CPUS: Needs 16 in us-central1; the limit is 72, and 0 are in use.',
    'ok burst: quota NVIDIA_L4_GPUS: Needs 4 in us-central1; the limit is 8, and 0 are in use.',
    'ok burst: image: ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580 is ubuntu-accelerator-2404-amd64-with-nvidia-580-v20261101 now.',
    'ok burst: end of life: Google deletes each machine when its lifetime is over (maxRunDuration).',
    'ok burst: price: n1-standard-4/nvidia-tesla-t4 costs about 0.54 USD per hour (estimate, as of 2026-11-01).',
    'ok burst: price: g2-standard-4 costs about 0.71 USD per hour (estimate, as of 2026-11-01).',
  ]);
  expect(gcp.requests.filter(({ method, url }) => method !== 'GET' && url.pathname.startsWith('/compute'))).toEqual([]);
});

test('each missing permission is a problem of its own, with the role to give', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  gcp.faults.denied = ['compute.instances.delete', 'compute.disks.create'];
  const found = (await done(cloud.preflight(plan, never))).filter(({ level }) => level === 'error');
  expect(lines(found)).toEqual([
    'error google: permissions: 22 of 24 permissions are granted in project acme-ci.',
    'error google: compute.disks.create: This permission is missing in project acme-ci.',
    'error google: compute.instances.delete: This permission is missing in project acme-ci.',
  ]);
  expect(found[0]?.hint).toContain('deploy/cloud/gcp-role.yaml');
});

test('permissions for a subnetwork of another project are not looked for in this one', async () => {
  const { gcp, done, another } = await gcpWorld();
  gcp.faults.denied = ['compute.subnetworks.use', 'compute.subnetworks.get', 'compute.subnetworks.useExternalIp'];
  const cloud = await another({ subnetwork: 'projects/acme-net/regions/us-central1/subnetworks/ci' });
  expect(lines(await done(cloud.preflight(plan, never)))).toContain('ok google: permissions: 21 of 21 permissions are granted.');
});

test('permissions that cannot be examined are a warning; a Compute Engine that is not enabled is not', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  gcp.faults.disabled = ['cloudresourcemanager'];
  const found = await done(cloud.preflight(plan, never));
  expect(lines(found.filter(({ level }) => level !== 'ok'))).toEqual([
    'warning google: permissions: They were not examined: the Cloud Resource Manager API is not enabled.',
  ]);
  gcp.faults.disabled = ['compute'];
  const bad = (await done(cloud.preflight({ ...plan, types: ['g2-standard-8'] }, never))).filter(({ level }) => level === 'error');
  expect(bad.map(({ subject }) => subject)).toEqual(['google: network', 'burst: g2-standard-8', 'burst: quota', 'burst: image']);
  expect(bad[0]?.hint).toContain('gcloud services enable compute.googleapis.com');
});

test('without a credential there is one problem, and what needs no question', async () => {
  const { gcp, done, another } = await gcpWorld();
  const cloud = await another({}, { variables: {} });
  const found = await done(cloud.preflight(plan, never));
  expect(lines(found).slice(0, 2)).toEqual([
    'error google: credential: The secret in environment variable GCP_KEY is missing: the variable is not set.',
    'ok burst: end of life: Google deletes each machine when its lifetime is over (maxRunDuration).',
  ]);
  expect(gcp.requests).toEqual([]);
});

test.each([
  ['never', 'error burst: quota NVIDIA_L4_GPUS: Needs 12 in us-central1, but the limit is 8.'],
  ['only', 'error burst: quota PREEMPTIBLE_NVIDIA_L4_GPUS: Needs 12 in us-central1, but the limit is 0.'],
  ['prefer', 'warning burst: quota PREEMPTIBLE_NVIDIA_L4_GPUS: Needs 12 in us-central1, but the limit is 0.'],
] as const)('a quota that is too small is named with what is needed (spot: %s)', async (spot, line) => {
  const { cloud, done } = await gcpWorld();
  const found = await done(cloud.preflight({ ...plan, types: ['g2-standard-4'], spot, max: 12 }, never));
  expect(lines(found)).toContain(line);
});

test('the quota of all regions is 0 in a new project, and machines that run count', async () => {
  const { cloud, gcp, done } = await gcpWorld();
  if (gcp.catalog.quotas.global !== undefined) gcp.catalog.quotas.global.GPUS_ALL_REGIONS = 0;
  const found = await done(cloud.preflight({ ...plan, types: ['a3-highgpu-8g'] }, never));
  expect(lines(found)).toEqual(
    expect.arrayContaining([
      'error burst: quota GPUS_ALL_REGIONS: Needs 32 of all regions together, but the limit is 0.',
      'warning burst: quota NVIDIA_H100_GPUS: Needs 32 in us-central1. Compute Engine does not show this quota.',
    ]),
  );
});

test.each([
  ['acme-images/gpu-base', 20, 'error burst: image: gpu-base-7 needs a disk of 30 GiB, but "disk" is 20 GiB.'],
  [
    'projects/acme-images/global/images/gpu-base-7',
    50,
    'ok burst: image: projects/acme-images/global/images/gpu-base-7 is gpu-base-7 now.',
  ],
  [
    'projects/acme-images/global/images/gpu-arm-1',
    50,
    'error burst: image: gpu-arm-1 is for ARM, but types with NVIDIA GPUs are x86.',
  ],
  [
    'ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-570',
    50,
    'warning burst: image: ubuntu-accelerator-2404-amd64-with-nvidia-570-v20260301 is deprecated.',
  ],
  [
    'acme-images/nothing',
    50,
    'error burst: image: Cannot find image acme-images/nothing: Compute Engine in acme-ci answered notFound',
  ],
  ['ami-0123', 50, 'error burst: image: Cannot use image "ami-0123": it is not written as an image of Google Cloud.'],
])('image %s', async (from, disk, line) => {
  const { cloud, done } = await gcpWorld();
  const found = lines(await done(cloud.preflight({ ...plan, disk, image: { from, has: 'driver' } }, never)));
  expect(found.some((one) => one.startsWith(line))).toBe(true);
});

test('a network that does not exist, and one without a way out', async () => {
  const { done, another } = await gcpWorld();
  const subnetwork = 'projects/acme-ci/regions/us-central1/subnetworks/none';
  expect(lines(await done((await another({ subnetwork })).preflight(plan, never)))).toEqual(
    expect.arrayContaining([expect.stringMatching(/^error google: network: Cannot read subnetwork none: .* answered notFound/)]),
  );
  expect(lines(await done((await another({ hasExternalAddress: false })).preflight(plan, never)))).toContain(
    'warning google: network: Machines join subnetwork default of network default, without an external address. onejob cannot see whether Cloud NAT is set up.',
  );
});

test('hardware that is dead, and lifetimes that Google does not take', async () => {
  const { cloud, done, another } = await gcpWorld();
  const bad = { ...plan, types: ['n1-standard-4/nvidia-tesla-k80'], lifetime: 121 * 86_400_000 };
  expect(lines(await done(cloud.preflight(bad, never)))).toEqual(
    expect.arrayContaining([
      expect.stringMatching(/^error burst: n1-standard-4\/nvidia-tesla-k80: .* has a K80, which is older than Turing/),
      'error burst: end of life: "lifetime" is 10454400 s, but Google takes 30 s to 120 days.',
      'warning burst: price: The price of n1-standard-4/nvidia-tesla-k80 is unknown.',
    ]),
  );
  const alone = await another({ deathDate: 'manager-only' });
  expect(lines(await done(alone.preflight(bad, never)))).toContain(
    'warning burst: end of life: Only onejob ends its machines, because of "death_date: manager-only".',
  );
});
