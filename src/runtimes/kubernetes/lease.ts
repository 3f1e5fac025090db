/**
 * The Lease that owns all pods of an installation: to remove it removes them, even if onejob is gone. It is created before the
 * first pod, because the cluster removes a pod whose owner does not exist.
 */
import { z } from 'zod';
import { type KubeClient, refusalOf } from './client.ts';
import { names } from './pods.ts';

const leaseSchema = z.looseObject({ metadata: z.looseObject({ name: z.string(), uid: z.string() }) });

export interface LeaseSeen {
  readonly name: string;
  readonly uid: string;
}

/** @throws OnejobError E_ENGINE_* */
export async function ensureLease(client: KubeClient, owner: string, signal: AbortSignal): Promise<LeaseSeen> {
  const name = `onejob-${owner}`;
  const path = `/apis/coordination.k8s.io/v1/namespaces/${encodeURIComponent(client.access.namespace)}/leases`;
  const read = () => client.ask({ path: `${path}/${name}`, doing: `look at lease ${name}`, signal, nothing: [404] });
  const body = {
    apiVersion: 'coordination.k8s.io/v1',
    kind: 'Lease',
    metadata: { name, labels: { 'app.kubernetes.io/managed-by': 'onejob', [names.owner]: owner } },
    spec: { holderIdentity: owner },
  };
  const make = () =>
    client.ask({ method: 'POST', path, body, doing: `create lease ${name}`, signal }).catch((error: unknown) => {
      if (refusalOf(error)?.status === 409) return read();
      throw error;
    });
  const { metadata } = client.formed(leaseSchema, (await read()) ?? (await make()), `look at lease ${name}`);
  return { name: metadata.name, uid: metadata.uid };
}

/** Removes it, and so the pods that are left. */
export async function removeLease(client: KubeClient, owner: string, signal: AbortSignal): Promise<void> {
  const path = `/apis/coordination.k8s.io/v1/namespaces/${encodeURIComponent(client.access.namespace)}/leases/onejob-${owner}`;
  await client.ask({ method: 'DELETE', path, doing: `remove lease onejob-${owner}`, signal, nothing: [404] });
}
