/** The pods that try a network: as agents of their pool, but small, harmless, and without a right to anything. */
import { z } from 'zod';
import type { SandboxSpec } from '../../ports/runtime.ts';
import type { KubeClient } from './client.ts';
import { type PodParts, podOfSpec, wantsOf } from './manifest.ts';
import { container, names, type Pod, podName, podOf } from './pods.ts';
import { probeScript } from './probe-script.ts';

/** ms after which a probe pod ends, its image included. */
const lifetime = 15 * 60_000;

export interface ProbeOf extends Omit<PodParts, 'fingerprint'> {
  /** The agent that is to be made on the network. */
  readonly spec: SandboxSpec;
}

/** What is changed of a pod of an agent. */
interface ReadPod {
  readonly metadata: { readonly labels: Readonly<Record<string, string>> };
  readonly spec: { readonly affinity?: object; readonly containers: readonly { readonly name: string }[] };
}

/** `ids`: those of all that must be on one node. */
export function probePod({ spec, ...parts }: ProbeOf, network: string, id: string, ids: readonly string[]): object {
  const agent = { ...spec, agent: id, name: id, devices: [], recipe: harmless(spec.recipe, network) };
  const pod = podOfSpec(agent, { ...parts, fingerprint: 'probe' }) as ReadPod;
  const { [names.agent]: _, ...labels } = pod.metadata.labels;
  const together = {
    labelSelector: { matchExpressions: [{ key: names.probe, operator: 'In', values: ids }] },
    topologyKey: 'kubernetes.io/hostname',
  };
  const command = ['sh', '-c', probeScript('listen')];
  return {
    ...pod,
    metadata: { ...pod.metadata, labels: { ...labels, [names.probe]: id } },
    spec: {
      ...pod.spec,
      affinity: { ...pod.spec.affinity, podAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [together] } },
      containers: pod.spec.containers.map((one) => (one.name === container ? { ...one, command, stdin: false } : one)),
    },
  };
}

function harmless(recipe: SandboxSpec['recipe'], network: string): SandboxSpec['recipe'] {
  const { keys, ...wants } = wantsOf(recipe);
  const mayStay = keys.security === 'restricted' || (recipe.user !== null && !/^0(:|$)/.test(recipe.user));
  return {
    ...recipe,
    network,
    env: {},
    mounts: [],
    tmpfs: {},
    shmSize: null,
    capAdd: [],
    cpus: 0.1,
    memory: 64 * 1024 * 1024,
    unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
    user: mayStay ? recipe.user : '65534:65534',
    wants: { ...wants, gpus: 0, lifetime, keys: { ...keys, claim: undefined, claims: [], security: 'restricted' } },
  };
}

const listSchema = z.looseObject({ items: z.array(z.unknown()) });
const addressSchema = z.looseObject({ status: z.looseObject({ podIP: z.string().optional() }).optional() });

export interface Probe {
  /** With the probe's id in place of an agent's. */
  readonly pod: Pod;
  /** Empty: it has none yet. */
  readonly ip: string;
}

/** Those of an owner. */
export async function probesOf(client: KubeClient, owner: string, signal: AbortSignal): Promise<Probe[]> {
  const doing = 'list probe pods';
  const query = { labelSelector: `${names.owner}=${owner},${names.probe}` };
  const answer = await client.ask({ path: client.path('pods'), query, doing, signal });
  return client.formed(listSchema, answer, doing).items.flatMap((item) => {
    const pod = podOf(item, names.probe);
    return pod === null ? [] : [{ pod, ip: addressSchema.parse(item).status?.podIP ?? '' }];
  });
}

export async function removeProbe(client: KubeClient, id: string, signal: AbortSignal): Promise<void> {
  const body = { gracePeriodSeconds: 1 };
  const path = client.path('pods', podName(id));
  await client.ask({ method: 'DELETE', path, body, doing: 'remove a probe pod', nothing: [404], signal });
}

/** Removes all of an owner. */
export async function removeProbes(client: KubeClient, owner: string, signal: AbortSignal): Promise<void> {
  for (const { pod } of await probesOf(client, owner, signal)) await removeProbe(client, pod.agent, signal);
}
