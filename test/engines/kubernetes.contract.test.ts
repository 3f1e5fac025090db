/** The runtime contract, with a real Kubernetes. */
import { describe } from 'vitest';
import { accessOf } from '../../src/runtimes/kubernetes/kubeconfig.ts';
import { createKubernetesRuntime } from '../../src/runtimes/kubernetes/kubernetes.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { plainRecipe } from '../kit/process-runtime.ts';
import { type ContractSubject, runtimeContract } from '../kit/runtime-contract/contract.ts';
import { images } from '../support/images.ts';
import { startKubernetes } from '../support/kubernetes.ts';
import { lacks } from '../support/require.ts';

const keepsNothing = 'it keeps no sandboxes for people';

describe.skipIf(lacks('kubernetes'))('Kubernetes', () => {
  runtimeContract('kubernetes', subject);
});

async function subject(): Promise<ContractSubject> {
  const cluster = await startKubernetes();
  const namespace = await cluster.namespace('ci');
  const config = {
    type: 'kubernetes',
    name: 'cluster',
    kubeconfig: cluster.kubeconfig,
    context: null,
    namespace,
    address: null,
  } as const;
  const make = async (owner = 'me') =>
    createKubernetesRuntime({ config, access: await accessOf(config, systemClock), owner, clock: systemClock });
  const keys = {
    resource: 'nvidia.com/gpu',
    node_selector: {},
    tolerations: [],
    pull_secrets: [],
    claims: [],
    security: 'baseline',
  };
  return {
    runtime: await make(),
    recipe: {
      ...plainRecipe,
      image: images.base,
      pull: 'never',
      wants: { gpus: 0, model: null, images: true, folders: false, lifetime: null, keys },
    },
    remake: make,
    stranger: () => make('other'),
    async leftovers() {
      const names = await cluster.kubectl('-n', namespace, 'get', 'pods,leases', '-l', 'onejob/owner=me', '-o', 'name');
      return names.split('\n').filter((line) => line !== '');
    },
    cleanup: async () => cluster[Symbol.asyncDispose](),
    joinsOutput: true,
    exceptions: {
      held: keepsNothing,
      'held-input': keepsNothing,
      'held-output': keepsNothing,
      'held-terminal': keepsNothing,
      'held-abort': keepsNothing,
      exec: 'it runs nothing beside a script yet',
      'exec-ends': 'it runs nothing beside a script yet',
      door: 'its sandboxes are on other hosts, which reach nothing of this one',
      usage: 'it does not measure files on the disks of nodes',
    },
  };
}
