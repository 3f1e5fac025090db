/** What config holds of a runtime of type kubernetes, and of its pools. */
import type { RuntimeConfig } from '../../config/config.ts';
import { kubernetesPoolKeys } from '../../config/kubernetes-keys.ts';
import { complete, key, type WrittenKeys } from '../../schema/key.ts';

export const kubernetesKeys = {
  kubeconfig: key((v) => v.absolute, null, {
    description:
      'The kubeconfig of the cluster. Without it: the service account of the pod in which onejob runs, else `KUBECONFIG` or `~/.kube/config` of the user that onejob runs as.',
    example: '/etc/onejob/kubeconfig',
    shown: 'as described',
  }),
  context: key((v) => v.text('the name of a context', /^\S+$/), null, {
    description: 'The context of the kubeconfig.',
    example: 'lab',
    shown: 'its current one',
  }),
  namespace: key((v) => v.text('the name of a namespace', /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/), null, {
    description: 'The namespace of the agents. It must exist.',
    example: 'ci',
    shown: 'that of the context, else `default`',
  }),
  address: key((v) => v.addressOrName, null, {
    description:
      'Address of this host at which pods reach it. Agents of CI services call onejob there, encrypted, at this port, or without one at a port that onejob chooses and `doctor` names. Without it: the only IPv4 address of this host. In a cluster: name and port of a Service that leads to the pod of onejob, such as `onejob:7443`.',
    example: '10.0.0.1:7443',
    shown: 'the only one',
  }),
};

export interface KubernetesConfig extends RuntimeConfig {
  readonly type: 'kubernetes';
  /** null: as described. */
  readonly kubeconfig: string | null;
  readonly context: string | null;
  readonly namespace: string | null;
  /** IP address of this host, as pods reach it, or a Service that leads to this one; null: its only address. */
  readonly address: string | null;
}

/** The keys of a pool, complete. */
export type KubernetesPool = ReturnType<typeof completePool>;

export function completePool(written: WrittenKeys<typeof kubernetesPoolKeys>) {
  return complete(kubernetesPoolKeys, written);
}

/** Networks that a policy keeps. */
export const guardedNetworks = ['internet', 'none'] as const;
export type GuardedNetwork = (typeof guardedNetworks)[number];
