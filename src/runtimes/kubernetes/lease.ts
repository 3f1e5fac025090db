/**
 * The Lease that owns all pods of an installation: to remove it removes them, even if onejob is gone. It is created before the
 * first pod, because the cluster removes a pod whose owner does not exist.
 */
import { z } from 'zod';
import type { KubeClient } from './client.ts';
import { names } from './pods.ts';

const leaseSchema = z.looseObject({ metadata: z.looseObject({ name: z.string(), uid: z.string() }) });

export interface LeaseSeen {
  readonly name: string;
  readonly uid: string;
}

/** @throws OnejobError E_ENGINE_* */
export async function ensureLease(client: KubeClient, owner: string, signal: AbortSignal): Promise<LeaseSeen> {
  const name = `onejob-${owner}`;
  const [all, path] = [client.path('leases'), client.path('leases', name)];
  const body = {
    apiVersion: 'coordination.k8s.io/v1',
    kind: 'Lease',
    metadata: { name, labels: { 'app.kubernetes.io/managed-by': 'onejob', [names.owner]: owner } },
    spec: { holderIdentity: owner },
  };
  const read = () => client.ask({ path, doing: `look at lease ${name}`, signal, nothing: [404] });
  // 409: somebody else made it meanwhile.
  const make = () => client.ask({ method: 'POST', path: all, body, doing: `create lease ${name}`, signal, nothing: [409] });
  const answer = (await read()) ?? (await make()) ?? (await read());
  const { metadata } = client.formed(leaseSchema, answer, `look at lease ${name}`);
  return { name: metadata.name, uid: metadata.uid };
}

/** Removes it, and so the pods that are left. */
export async function removeLease(client: KubeClient, owner: string, signal: AbortSignal): Promise<void> {
  const name = `onejob-${owner}`;
  await client.ask({ method: 'DELETE', path: client.path('leases', name), doing: `remove lease ${name}`, signal, nothing: [404] });
}
