import { expect, test } from 'vitest';
import { bareRecipe } from '../../../test/kit/recipe.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { completePool, type KubernetesPool } from './config.ts';
import { podOfSpec } from './manifest.ts';

/** The pod of an agent whose pool has these keys. */
function podWith(
  keys: Partial<KubernetesPool> = {},
  recipe: Partial<Recipe> = {},
  { gpus = 0, model = null as string | null } = {},
) {
  const wants = { gpus, model, images: true, folders: false, lifetime: 90_500, keys: { ...completePool({}), ...keys } };
  const spec = {
    agent: 'a1b2c3',
    pool: 'gpu',
    slot: 'gpu/1',
    name: 'Host_GPU.1',
    recipe: { ...bareRecipe, image: 'debian:12', ...recipe, wants },
    devices: [],
  };
  const lease = { name: 'onejob-me', uid: 'u1' };
  // biome-ignore lint/suspicious/noExplicitAny: read like the JSON that it becomes
  return podOfSpec(spec, { owner: 'me', fingerprint: 'f1', lease, avoided: ['k9'] }) as any;
}

test('a pod that nobody asked anything of', () => {
  const { metadata, spec } = podWith();
  expect(metadata).toMatchObject({
    name: 'oj-a1b2c3',
    labels: { 'onejob/owner': 'me', 'onejob/agent': 'a1b2c3' },
    annotations: { 'onejob/pool': 'gpu', 'onejob/slot': 'gpu/1', 'onejob/fingerprint': 'f1' },
    ownerReferences: [{ kind: 'Lease', name: 'onejob-me', uid: 'u1' }],
  });
  expect(spec).toMatchObject({
    hostname: 'host-gpu-1',
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    activeDeadlineSeconds: 91,
    tolerations: [{ key: 'node.kubernetes.io/not-ready' }, { key: 'node.kubernetes.io/unreachable' }],
    affinity: {
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [{ matchFields: [{ key: 'metadata.name', operator: 'NotIn', values: ['k9'] }] }],
        },
      },
    },
  });
  expect(spec.tolerations.some((one: object) => 'tolerationSeconds' in one)).toBe(false);
  expect(spec.volumes).toEqual([{ name: 'workspace', emptyDir: {} }]);
  const [{ command: _, ...job }] = spec.containers;
  expect(job).toMatchObject({
    name: 'job',
    image: 'debian:12',
    stdin: true,
    stdinOnce: false,
    workingDir: '/workspace',
    resources: { limits: {}, requests: {} },
    securityContext: { allowPrivilegeEscalation: true, seccompProfile: { type: 'RuntimeDefault' } },
  });
});

test('limits, GPUs and variables', () => {
  const recipe = { cpus: 1.5, memory: 2 ** 30, env: { A: 'costs $(HOME) $5' } };
  const { spec } = podWith({ resource: 'nvidia.com/mig-1g.10gb' }, recipe, { gpus: 2, model: 'A100' });
  const limits = { cpu: '1500m', memory: '1073741824', 'nvidia.com/mig-1g.10gb': '2' };
  expect(spec.containers[0]).toMatchObject({
    resources: { limits, requests: limits },
    env: [{ name: 'A', value: 'costs $$(HOME) $$5' }],
  });
  expect(spec.nodeSelector).toEqual({ 'nvidia.com/gpu.product': 'A100' });
});

test('a claim takes the place of a resource', () => {
  const { spec } = podWith({ claim: 'one-h100' }, {}, { gpus: 1 });
  expect(spec.resourceClaims).toEqual([{ name: 'devices', resourceClaimTemplateName: 'one-h100' }]);
  expect(spec.containers[0].resources).toEqual({ limits: {}, requests: {}, claims: [{ name: 'devices' }] });
});

test('volumes', () => {
  const claims = [{ claim: 'data', path: '/data', writable: false }];
  const { spec } = podWith({ claims }, { shmSize: 64, tmpfs: { '/scratch': 'size=64m,mode=1777', '/t': '' }, readOnly: true });
  expect(spec.volumes).toEqual([
    { name: 'workspace', emptyDir: {} },
    { name: 'shm', emptyDir: { medium: 'Memory', sizeLimit: '64' } },
    { name: 'tmpfs-0', emptyDir: { medium: 'Memory', sizeLimit: '64Mi' } },
    { name: 'tmpfs-1', emptyDir: { medium: 'Memory' } },
    { name: 'claim-0', persistentVolumeClaim: { claimName: 'data', readOnly: true } },
  ]);
  expect(spec.containers[0].volumeMounts).toContainEqual({ name: 'claim-0', mountPath: '/data', readOnly: true });
  expect(spec.containers[0].securityContext.readOnlyRootFilesystem).toBe(true);
});

test('"restricted" is what the Pod Security Standards call it', () => {
  const { spec } = podWith({ security: 'restricted' }, { user: '1000:1000' });
  expect(spec.containers[0].securityContext).toEqual({
    runAsUser: 1000,
    runAsGroup: 1000,
    allowPrivilegeEscalation: false,
    runAsNonRoot: true,
    capabilities: { drop: ['ALL'] },
    seccompProfile: { type: 'RuntimeDefault' },
  });
});

test('the map "pod" is merged: lists of named things by name, others are replaced', () => {
  const pod = {
    metadata: { labels: { team: 'a' } },
    spec: { schedulerName: 'volcano', containers: [{ name: 'job', env: [{ name: 'B', value: '2' }] }], tolerations: [] },
  };
  const { metadata, spec } = podWith({ pod }, { env: { A: '1' } });
  expect(metadata.labels).toMatchObject({ team: 'a', 'onejob/owner': 'me' });
  expect(spec).toMatchObject({ schedulerName: 'volcano', tolerations: [], restartPolicy: 'Never' });
  expect(spec.containers).toHaveLength(1);
  expect(spec.containers[0]).toMatchObject({
    image: 'debian:12',
    env: [
      { name: 'A', value: '1' },
      { name: 'B', value: '2' },
    ],
  });
});

test.each([
  [{ spec: { restartPolicy: 'Always' } }, 'spec.restartPolicy'],
  [{ metadata: { name: 'mine' } }, 'metadata.name'],
  [{ metadata: { labels: { 'onejob/owner': 'you' } } }, 'metadata.labels.onejob/owner'],
  [{ metadata: { ownerReferences: [{ name: 'other' }] } }, 'metadata.ownerReferences'],
])('the map "pod" may not change %j', (pod, path) => {
  expect(() => podWith({ pod })).toThrow(`"pod" of the pool changes ${path}, which onejob needs as it is.`);
});
