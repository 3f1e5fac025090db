/** A Kubernetes runtime on an API that does what a test says, in virtual time. */
import { completePool } from '../../src/runtimes/kubernetes/config.ts';
import { createKubernetesRuntime } from '../../src/runtimes/kubernetes/kubernetes.ts';
import { fakeKubernetes, toldClock } from './fake-kubernetes.ts';
import { bareRecipe } from './recipe.ts';

/** Disposing of it closes both. */
export async function fakedCluster() {
  const api = await fakeKubernetes();
  const clock = toldClock();
  const config = { type: 'kubernetes', name: 'cluster', kubeconfig: null, context: null, namespace: null, address: null } as const;
  const make = (owner = 'me') => createKubernetesRuntime({ config, access: api.access, owner, clock });
  const runtime = make();
  return {
    api,
    clock,
    runtime,
    make,
    async [Symbol.asyncDispose]() {
      runtime.close?.();
      await api[Symbol.asyncDispose]();
    },
  };
}

export type FakedCluster = Awaited<ReturnType<typeof fakedCluster>>;

/** What a pool asks for that says nothing of it. */
export const specOf = (agent: string, gpus = 0) => ({
  agent,
  pool: 'gpu',
  slot: 'gpu/1',
  name: agent,
  recipe: {
    ...bareRecipe,
    image: 'debian:12',
    wants: { gpus, model: null, images: true, folders: false, lifetime: null, keys: completePool({}) },
  },
  devices: [],
});
