import { expect, test } from 'vitest';
import { bareRecipe } from '../../../test/kit/recipe.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { completePool, type KubernetesPool } from './config.ts';
import { names, podOf } from './pods.ts';
import { probePod } from './probe-pod.ts';

/** A probe pod of an agent with these keys. */
function probeOf(recipe: Partial<Recipe> = {}, keys: Partial<KubernetesPool> = {}) {
  const wants = { gpus: 4, model: 'A100', images: true, folders: false, lifetime: null, keys: { ...completePool({}), ...keys } };
  const spec = {
    agent: 'a1b2c3',
    pool: 'gpu',
    slot: 'gpu/1',
    name: 'gpu-1',
    recipe: { ...bareRecipe, image: 'debian:12', ...recipe, wants },
    devices: [],
  };
  const lease = { name: 'onejob-me', uid: 'u1' };
  const pod = probePod({ owner: 'me', lease, spec, avoided: [] }, 'internet', 'probe-1-guarded', [
    'probe-1-guarded',
    'probe-1-one',
  ]);
  // biome-ignore lint/suspicious/noExplicitAny: read like the JSON that it becomes
  return pod as any;
}

test('a probe pod is of its owner and of no agent', () => {
  const pod = probeOf();
  expect(pod.metadata).toMatchObject({
    name: 'oj-probe-1-guarded',
    labels: { 'onejob/owner': 'me', 'onejob/probe': 'probe-1-guarded', 'onejob/network': 'internet' },
    ownerReferences: [{ kind: 'Lease', uid: 'u1' }],
  });
  const seen = { ...pod, metadata: { ...pod.metadata, uid: 'u2' } };
  expect(podOf(seen)).toBeNull();
  expect(podOf(seen, names.probe)).toMatchObject({ agent: 'probe-1-guarded' });
});

test('a probe pod is small, has no right to anything, and ends by itself', () => {
  const { spec } = probeOf({ env: { TOKEN: 'x' }, capAdd: ['SYS_PTRACE'], memory: 2 ** 40 }, { claim: 'one-h100' });
  expect(spec).toMatchObject({ activeDeadlineSeconds: 900, automountServiceAccountToken: false });
  expect(spec).not.toHaveProperty('resourceClaims');
  const [job] = spec.containers;
  expect(job).toMatchObject({
    image: 'debian:12',
    env: [],
    resources: { limits: { cpu: '100m', memory: '67108864' } },
    securityContext: { runAsUser: 65_534, runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
  });
  expect(JSON.stringify(job)).not.toMatch(/nvidia|SYS_PTRACE|onejob ready/);
});

test('a probe pod goes where agents of its pool go, next to the others', () => {
  const affinity = { nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [] } };
  const { spec } = probeOf({ user: '1000' }, { node_selector: { gpu: 'a100' }, pod: { spec: { affinity } } });
  expect(spec.nodeSelector).toEqual({ gpu: 'a100', 'nvidia.com/gpu.product': 'A100' });
  expect(spec.affinity).toMatchObject({
    ...affinity,
    podAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [{ topologyKey: 'kubernetes.io/hostname' }] },
  });
  expect(spec.containers[0].securityContext.runAsUser).toBe(1000);
});
